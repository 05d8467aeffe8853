"""Permissions: the rights of a user, worked out once for each address, and the checks of each operation.

A client without a login (in the same program, or of a broker without users) has no rights to look up: it may do
everything, and nothing is checked.  Nodes of a cluster have their own frames, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from meshq import limits
from meshq.address import MANAGEMENT, TEMPORARY, Target, parse_target
from meshq.broker.access._reply_addresses import reply_addresses
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._router import Router
from meshq.broker.events._event_bus import EventBus
from meshq.broker.queue._session_identity import SessionIdentity
from meshq.errors import MeshqError
from meshq.notifications import SecurityRefused
from meshq.permissions import PERMISSIONS, Permissions, Roles, permissions_for
from meshq.settings import Security
from meshq.wire import KIND_HEADERS, RunBytes, decline

#: Temporary queues have one pattern for all of them: their names are chance.
ANY_TEMPORARY: Final = f"{TEMPORARY}*"
#: What stands for all addresses.
ANYWHERE: Final = "#"
#: Who may do one of these at an address may know what is there.
_LOOKING: Final = ("consume", "browse", "manage")


class Asker(SessionIdentity, Protocol):
    """The session that asks for something."""

    @property
    def rights(self) -> Rights | None:
        """The rights of the owner; None: all that there are."""


class Rights:
    """The rights of one user, shared by the user's sessions.  Security settings do not change while a node runs."""

    __slots__ = ("_known", "_patterns", "_roles", "access", "user")

    def __init__(self, access: Access, user: str, roles: Roles, patterns: Mapping[str, Permissions]) -> None:
        self.access: Access = access
        self.user: str = user
        self._roles = roles
        self._patterns = patterns
        self._known: dict[str, frozenset[str]] = {}

    def at(self, address: str) -> frozenset[str]:
        """The permissions at an address."""
        if address.startswith(TEMPORARY):
            address = ANY_TEMPORARY
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= limits.PERMITTED_ADDRESSES_MAX:
                self._known.clear()
            known = self._known[address] = self._work_out(address)
        return known

    @property
    def sends(self) -> bool:
        """Whether there is any address to which the user may send."""
        return any(self._roles & permissions.send for permissions in self._patterns.values())

    def _work_out(self, address: str) -> frozenset[str]:
        found = permissions_for(self._patterns, address)
        if found is None:
            return frozenset()
        return frozenset(name for name in PERMISSIONS if self._roles & getattr(found, name))

    def __repr__(self) -> str:
        return f"<Rights of {self.user!r}, roles {', '.join(sorted(self._roles)) or 'none'}>"


class Access:
    """The rights of all users of a node; ``security`` None: there are no logins."""

    def __init__(
        self,
        security: Security | None,
        definitions: Definitions,
        event_bus: EventBus,
        warn: Callable[[str, str], None],
    ) -> None:
        self._security = security
        self._event_bus = event_bus
        self._warn = warn
        self._users: dict[str, Rights] = {}
        self._quiet = False
        #: What exists, and what a user would create.
        self.definitions: Definitions = definitions
        #: Requests that were refused because they were not permitted.
        self.refused: int = 0

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Neither count nor report refusals meanwhile."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def note_refusal(self, asker: Asker, permission: str, address: str) -> None:
        """Count and report that a session was refused a permission at an address."""
        if self._quiet:
            return
        self.refused += 1
        user = asker.owner[1]
        self._warn("forbidden", f"{user!r} lacks the permission {permission!r} at {address!r}")
        self._event_bus.emit(SecurityRefused, user=user, permission=permission, address=address, peer=asker.peer)

    def of(self, owner: tuple[str, str]) -> Rights | None:
        """The rights of a session's owner, which is a role on the wire and a user; None: all that there are."""
        role, user = owner
        security = self._security
        if security is None or not user:
            return None
        if role == "peer":
            # Its links have frames of their own.
            return Rights(self, user, frozenset(), {})
        if security.permissions is None:
            return None
        rights = self._users.get(user)
        if rights is None:
            roles = (security.roles or {}).get(user, frozenset())
            rights = Rights(self, user, roles, security.permissions)
            if user in (security.roles or {}):
                # Anybody may ask about a user that there is not.
                self._users[user] = rights
        return rights


def permit(session: Asker | None, permission: str, address: str, *, queue: str = "", divert: str = "") -> None:
    """See that a session may do something at an address; ``queue`` or ``divert``: what was named, which is bound to it.

    Whoever is refused learns nothing of where a queue or a divert is, and not whether it is there: unless the name of
    the queue would be theirs.
    Raises:
        SecurityError: it may not.
    """
    rights = session.rights if session is not None else None
    if session is None or rights is None or permission in rights.at(address):
        return
    rights.access.note_refusal(session, permission, address)
    where = repr(queue or address)
    if divert:
        where = f"the address of the divert {divert!r}"
    elif queue not in ("", address) and permission in rights.at(queue):
        where = f"the address of the queue {queue!r}"
    raise decline("forbidden", f"the user {rights.user!r} lacks the permission {permission!r} at {where}")


def may(session: Asker | None, permission: str, address: str) -> bool:
    """Whether a session may do something at an address."""
    rights = session.rights if session is not None else None
    return rights is None or permission in rights.at(address)


def may_look(session: Asker | None, address: str) -> bool:
    """Whether a session may look at an address."""
    rights = session.rights if session is not None else None
    return rights is None or not rights.at(address).isdisjoint(_LOOKING)


def permit_look(session: Asker | None, address: str, *, queue: str = "") -> None:
    """Check that a session may look at an address.

    Raises:
        SecurityError: the user has no permission for which looking is needed.
    """
    if not may_look(session, address):
        permit(session, _LOOKING[-1], address, queue=queue)


def permit_keeping(session: Asker) -> None:
    """See that a session may have the node keep something before it is said where it goes: a body, a stage, a sink.

    Raises:
        SecurityError: the session may send nowhere.
    """
    rights = session.rights
    if rights is not None and not rights.sends:
        permit(session, "send", ANYWHERE)


def permit_sending(session: Asker, target: Target) -> None:
    """See that a session may send somewhere, also if that comes into being by it.

    Raises:
        SecurityError: it may not.
    """
    if session.rights is None:
        return
    permit(session, "send", target.address)
    permit_making(session, target)


def permit_making(session: Asker | None, target: Target) -> None:
    """Check that a session may create the missing parts of a target by sending to it.

    Raises:
        SecurityError: it may not.
    """
    rights = session.rights if session is not None else None
    if rights is not None and rights.access.definitions.would_make(target):
        permit_new(session, target)


def permit_new(session: Asker | None, target: Target) -> None:
    """Check that a session may create the address and the queue of a target.

    The name of a queue is judged like an address: a queue takes the name away from the address of that name.

    Raises:
        SecurityError: it may not.
    """
    permit(session, "create", target.address)
    permit_name(session, target.queue, target.address)


def permit_name(session: Asker | None, name: str | None, address: str) -> None:
    """See that a session may give a name to a queue of an address, or that the queue is there.

    Raises:
        SecurityError: it may not.
    """
    rights = session.rights if session is not None else None
    if rights is None or name is None or name == address:
        return
    queue = rights.access.definitions.router.queues.get(name)
    if queue is None or queue.address != address:
        permit(session, "create", name)


def permit_moving(session: Asker | None, address: str) -> None:
    """Check that a session may move messages to an address, which is created by the move if need be.

    Raises:
        SecurityError: it may not.
    """
    permit(session, "send", address)
    rights = session.rights if session is not None else None
    if rights is not None and address not in rights.access.definitions.router.addresses:
        permit(session, "create", address)


def permit_run(session: Asker, target: Target, run: RunBytes, kinds: int) -> None:
    """Check that a session may send a run: the channel was permitted, but the target may be gone by now, and the reply
    addresses of the messages need permission, too.

    Raises:
        SecurityError: it may not.
    """
    permit_making(session, target)
    permit_replies(session, run, kinds)


def may_have(session: Asker, target: Target, run: RunBytes, kinds: int) -> bool:
    """Whether ``permit_run`` would permit a run; a refusal is not reported."""
    if session.rights is None:
        return True
    with session.rights.access.quietly():
        try:
            permit_run(session, target, run, kinds)
        except MeshqError:
            return False
    return True


def permit_replies(session: Asker, run: RunBytes, kinds: int) -> None:
    """See that all answers to the messages of a run go where the one who asks may take them.

    Raises:
        SecurityError: one would not.
    """
    if session.rights is not None and kinds & KIND_HEADERS:
        for reply_to in reply_addresses(run):
            permit_reply_to(session, parse_target(reply_to, "reply_to"))


def permit_reply_to(session: Asker, target: Target) -> None:
    """See that answers go where the one who asks may take them.

    Raises:
        SecurityError: they would not.
    """
    rights = session.rights
    if rights is None:
        return
    if target.address.startswith(TEMPORARY):
        queue = rights.access.definitions.router.queues.get(target.address)
        owner = queue.spec.owner if queue is not None else None
        if owner is None or owner.owner != session.owner:
            permit_own(session, target.address)
        return
    if target.address == MANAGEMENT:
        permit_own(session, target.address)
    permit(session, "consume", target.address)


def permit_own(session: Asker, address: str) -> None:
    """Refuse replies to a temporary queue of another session, or one that is gone, and to the management address.

    Raises:
        SecurityError: always, unless the session may do everything.
    """
    rights = session.rights
    if rights is None:
        return
    rights.access.note_refusal(session, "consume", address)
    whose = "queue" if address == MANAGEMENT else "temporary queue"
    raise decline("forbidden", f"the {whose} {address!r} for answers is not one of the user {rights.user!r}")


def queue_address(router: Router, name: str) -> str:
    """The address at which rights to a queue are looked up, whether it is there or not."""
    target = parse_target(name, "queue")
    queue = router.queues.get(target.address) if target.queue is None else None
    return queue.address if queue is not None else target.address
