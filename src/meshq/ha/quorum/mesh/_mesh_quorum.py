"""The provider that asks a quorum of witnesses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import attrs
import trio
from trio import TaskStatus

from meshq.abc import Env, QuorumProvider, QuorumRecord, QuorumSession
from meshq.address import check_name
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, RefusedError, SettingsError, caused
from meshq.ha.quorum._held_lock import RENEWALS, HeldLock
from meshq.ha.quorum._session_block import RunningSession, SessionBlock
from meshq.ha.quorum.mesh._dial import DialSettings
from meshq.ha.quorum.mesh._lock_machine import Answers, Ask, Lock, Steps
from meshq.ha.quorum.mesh._message_format import check_record
from meshq.ha.quorum.mesh._witness_link import LinkSettings, WitnessLink
from meshq.ha.quorum.mesh._witness_machine import Reply
from meshq.ids import IDENTITY_BYTES
from meshq.logs import logger
from meshq.settings import Secret, in_range, is_bool

T = TypeVar("T")
_log = logger("quorum")
SERVERS_MIN: Final = 3
SERVERS_MAX: Final = 99
SESSION_S: Final = (0.02, 1_200.0)
WAIT_S: Final = (0.001, 86_400.0)
#: Above, clocks that do not go alike could let two nodes hold one lock.
PERCENT: Final = (1, 90)
RETRIES_MAX: Final = 1_000


def _servers(value: Any) -> tuple[str, ...]:
    allowed = f"{SERVERS_MIN} to {SERVERS_MAX} different URLs, an odd number"
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SettingsError("servers", value, allowed)
    endpoints = [Endpoint.parse(url) for url in value]
    places = {(one.host, one.port) for one in endpoints}
    if not SERVERS_MIN <= len(endpoints) <= SERVERS_MAX or len(endpoints) % 2 == 0 or len(places) < len(endpoints):
        raise SettingsError("servers", tuple(value), allowed)
    return tuple(value)


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _secret(value: Any) -> Secret:
    return value if isinstance(value, Secret) else Secret(value)


@attrs.frozen(kw_only=True)
class MeshQuorum(QuorumProvider):
    """A quorum of our own witnesses (``QuorumNode``), of which more than half decide.

    ``servers``: the URLs of all of them, three or more, an odd number; every node gives the same ones.
    ``user``, ``password``, ``ensemble``: as the witnesses have them.  ``session``: seconds after which another node may
    have the lock of a node that is not heard of; 2 to 20 ticks of the witnesses.  ``session_percent``: the part of the
    session for which a renewal of the lock holds.  ``connection_timeout``: seconds for a connection, and for an answer.
    ``retries``: so many further tries, with ``retry_interval`` seconds before each.  ``namespace``: keeps quorums apart
    that use the same witnesses.  ``tls``: of ``tls://`` URLs; plaintext beyond this machine needs ``insecure=True``.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    servers: tuple[str, ...] = attrs.field(converter=_servers, kw_only=False)
    user: str = attrs.field(default="quorum", validator=_name)
    password: Secret = attrs.field(converter=_secret, repr=False)
    ensemble: str = attrs.field(default="meshq", validator=_name)
    session_s: float = attrs.field(default=18.0, alias="session", validator=in_range(*SESSION_S))
    session_percent: float = attrs.field(default=33, validator=in_range(*PERCENT))
    connection_timeout: float = attrs.field(default=8.0, validator=in_range(*WAIT_S))
    retries: int = attrs.field(default=1, validator=in_range(0, RETRIES_MAX, whole=True))
    retry_interval: float = attrs.field(default=1.0, validator=in_range(*WAIT_S))
    namespace: str = ""
    tls: object = None
    insecure: bool = attrs.field(default=False, validator=is_bool)
    env: Env | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        for url in self.servers:
            endpoint = Endpoint.parse(url)
            if endpoint.scheme not in ("tcp", "tls"):
                raise SettingsError("servers", url, "tcp://HOST:PORT or tls://HOST:PORT")
            if endpoint.scheme == "tcp" and not endpoint.loopback and not self.insecure:
                raise SettingsError("servers", url, "a loopback host, or insecure=True, or tls://")

    def session(self, node_id: bytes, instance: bytes) -> AbstractAsyncContextManager[QuorumSession]:
        """The part of a node in the quorum, until the block is left."""
        for name, value in (("node_id", node_id), ("instance", instance)):
            if type(value) is not bytes or len(value) != IDENTITY_BYTES:
                raise SettingsError(name, value, f"{IDENTITY_BYTES} bytes")
        return SessionBlock(MeshQuorumSession(self, place_of(node_id, self.namespace), instance, _env(self.env)))


def _env(given: Env | None) -> Env:
    if given is not None:
        return given
    from meshq.env import default_env

    return default_env()


def place_of(node_id: bytes, namespace: str) -> bytes:
    """Return the id under which witnesses keep a node id of a namespace."""
    if not namespace:
        return node_id
    import hashlib

    return hashlib.sha256(b"meshq quorum\0" + namespace.encode() + b"\0" + node_id).digest()[:IDENTITY_BYTES]


class MeshQuorumSession(RunningSession):
    """The part of a node in a quorum of witnesses."""

    def __init__(self, settings: MeshQuorum, place: bytes, instance: bytes, env: Env) -> None:
        self._settings = settings
        dial = DialSettings(
            ensemble=settings.ensemble,
            user=settings.user,
            password=settings.password,
            tls=settings.tls,
            connection_timeout_s=settings.connection_timeout,
        )
        session_s = float(settings.session_s)
        of_links = LinkSettings(dial=dial, session_s=session_s, retry_interval_s=settings.retry_interval)
        names: dict[str, WitnessLink] = {}
        self._links = [WitnessLink(Endpoint.parse(url), of_links, env, names) for url in settings.servers]
        share = settings.session_percent / 100
        size = len(settings.servers)
        self._machine = Lock(place, instance, size=size, session_s=session_s, share=share)
        self._lease_s = session_s * share
        self._lock = HeldLock()
        # Whoever takes, changes or gives back the lock waits for whoever does already.
        self._turn = trio.Lock()
        self._running = trio.CancelScope()
        # Witnesses without their journal, of which was told.
        self._told: set[str] = set()

    @property
    def held_until(self) -> float:
        """The moment until which the lock is surely held; 0.0 when it is not held."""
        return self._lock.until

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections and renew the lock, until ``end``."""
        with self._running:
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    nursery.start_soon(link.run)
                task_status.started()
                await self._keep_renewing()

    async def end(self) -> None:
        """Give the lock back, and end ``run``."""
        with trio.move_on_after(self._settings.connection_timeout):
            await self.release()
        self._running.cancel()

    async def read(self) -> QuorumRecord:
        """Return the record."""
        if not self._lock.until:
            return await self._again(lambda: self._machine.read(held=False))
        async with self._turn:
            return await self._again(lambda: self._machine.read(held=self._lock.until > 0.0))

    async def acquire(self) -> bool:
        """Try to get the lock."""
        async with self._turn:
            if not self._lock.until:
                until = await self._again(self._machine.acquire)
                if until <= trio.current_time():
                    # It came too late: nobody waits for a whole session because of that.
                    await self._again(self._machine.release)
                    return False
                self._lock.take(until)
            return True

    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        """Store a record in the place of another one."""
        async with self._turn:
            if not self._lock.until:
                raise RefusedError("the lock of the node id is not held", outcome="not_done")
            check_record(new)
            try:
                return await self._again(lambda: self._machine.compare_and_set(expected, new))
            except RefusedError:
                self._lock.end()
                raise

    async def release(self) -> None:
        """Give the lock back."""
        self._lock.end()
        await trio.lowlevel.checkpoint()
        if self._machine.claimed:
            async with self._turn:
                await self._carry_out(self._machine.release())

    async def lost(self) -> None:
        """Wait until the lock is not held."""
        await self._lock.wait_lost()

    async def _keep_renewing(self) -> None:
        while True:
            await self._lock.wait_taken()
            number = self._lock.number
            await trio.sleep(self._lease_s / RENEWALS)
            if not self._lock.until or number != self._lock.number:
                continue
            try:
                until = await self._carry_out(self._machine.renew(), self._lease_s / 3)
            except RefusedError:
                if number == self._lock.number:
                    self._lock.end()
                continue
            self._lock.renew(until, number)

    async def _again(self, make: Callable[[], Steps[T]]) -> T:
        """Carry steps out, and again if too few witnesses have answered."""
        for left in range(self._settings.retries, -1, -1):
            try:
                return await self._carry_out(make())
            except ConnectionBrokenError as error:
                if refusals := [link.refusal for link in self._links if link.refusal is not None]:
                    raise refusals[0] from error
                if not left:
                    failures = [link.failure for link in self._links if link.failure is not None]
                    raise caused(error, failures[0] if failures else TimeoutError("no answer in time")) from None
            await trio.sleep(self._settings.retry_interval)
        raise AssertionError("the last try returns or raises")

    async def _carry_out(self, steps: Steps[T], patience: float = math.inf) -> T:
        try:
            ask = next(steps)
            while True:
                ask = steps.send(await self._ask(ask, patience))
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            self._tell_who_forgot()

    def _tell_who_forgot(self) -> None:
        for member in sorted(self._machine.forgetful - self._told):
            self._told.add(member)
            _log.warning(
                "the witness %s began with an empty journal, and does not count for the node id; "
                "bring its journal back, or begin with a new ensemble",
                member,
                extra={"event": "witness_forgot"},
            )

    async def _ask(self, ask: Ask, patience: float) -> Answers:
        began = trio.current_time()
        patience = min(patience, self._settings.connection_timeout, self._lease_s)
        replies: dict[str, Reply] = {}
        enough = trio.Event()

        def answered(name: str, reply: Reply) -> None:
            replies[name] = reply
            granted = sum(one.granted for one in replies.values())
            if granted >= ask.wanted or len(replies) - granted > len(self._links) - ask.wanted:
                enough.set()

        numbers = [link.post(ask.question, answered, began + patience) for link in self._links]
        if ask.wanted:
            with trio.move_on_after(patience):
                await enough.wait()
        else:
            await trio.lowlevel.checkpoint()
        for link, number in zip(self._links, numbers, strict=True):
            link.forget(number)
        return Answers(began, dict(replies))
