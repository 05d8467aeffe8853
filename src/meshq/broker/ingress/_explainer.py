"""Where a message would go, and why: the decisions of placing, told instead of done.

Filters have a third answer where nothing is known of the message: it may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from meshq.address import SEPARATOR, Target
from meshq.broker.catalog._auto_create_plan import resolve_target
from meshq.broker.catalog._distribution_plan import (
    ClusteredQueue,
    Known,
    Member,
    RemoteBinding,
    Taker,
    both,
    either,
    groups_of,
    takers,
)
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._group_places import GroupPlaces
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import AUTO_CREATED
from meshq.broker.queue._run import StoredRun
from meshq.broker.records._row_options import read_options
from meshq.errors import NotFoundError, UsageError
from meshq.selector import Filter

Rows = list[dict[str, Any]]
_COPY: Final = "each queue of a multicast address gets a copy"
_GONE: Final = {"away": "is away", "left": "has left"}
_SAID: Final = {True: "yes", False: "no", None: "maybe"}


class Explainer:
    """Follows one message, or any message where ``message`` is None, through the tables of a node."""

    def __init__(self, router: Router, message: StoredRun | None, groups: GroupPlaces) -> None:
        """``groups``: where messages with a group go."""
        self._router = router
        self._groups = groups
        asked = read_options(message.content, 0) if message is not None else None
        # The group of the message.
        self._named_group: str | None = asked[0].group if asked else None
        self._wants = wants_of(message) if message is not None else None
        self.rows: Rows = []

    def follow(self, target: Target) -> Iterator[int]:
        """Make a row for each queue and each divert on the way, in the order in which they are come by.

        Yields before each address how many these may be.
        """
        reached: dict[str, Known] = {target.address: True}
        if target.queue is not None:
            yield self._count(target.address)
            self._place(target, True)
            return
        for name in self._router.diverts.order(target.address):
            if name in reached and reached[name] is not False:
                yield self._count(name)
                self._address(name, reached, first=name == target.address)

    def _count(self, name: str) -> int:
        address = self._router.addresses.get(name)
        queues = len(address.queues) if address is not None else 0
        return 1 + queues + len(self._router.bindings(name)) + len(self._router.diverts.leaving(name))

    # -- one thing after the other

    def _judge(self, filters: tuple[Filter, ...]) -> Known:
        return self._wants(filters, 0) if self._wants is not None else None

    def _accepts(self, filter: Filter | None) -> Known:
        return True if filter is None else self._judge((filter,))

    def _address(self, name: str, reached: dict[str, Known], *, first: bool) -> None:
        kept = state = reached[name]
        taken_by = ""
        for rule in self._router.diverts.leaving(name):
            diverted = both(state, self._accepts(rule.filter))
            reached[rule.forwarding_address] = either(reached.get(rule.forwarding_address, False), diverted)
            way = "only there" if rule.exclusive else "too"
            self._row(
                "divert", rule.name, name, rule.filter, diverted, f"it goes to {rule.forwarding_address!r}, {way}"
            )
            if rule.exclusive and diverted is not False:
                kept = both(kept, None if diverted is None else False)
                taken_by = taken_by or rule.name
        self._place(Target(name, None), kept, taken_by=taken_by, first=first)

    def _place(self, target: Target, kept: Known, *, taken_by: str = "", first: bool = True) -> None:
        """The queues at a target, and who of them gets a message that is kept there."""
        try:
            use = resolve_target(self._router, target)
        except (NotFoundError, UsageError):
            # It would be refused, or nobody is there to whom a divert could lead.
            self._elsewhere(target.address, target.queue or "", "", here=not first)
            return
        queues = list(use.address.queues) if use.address is not None else []
        if use.makes:
            queues.append(Queue(0, use.makes, target.address, durable=True, spec=AUTO_CREATED))
        clustered_queues = self._router.clustered_queues_of(target.address, use.routing, queues, {})
        if use.only and not (use.only in clustered_queues and clustered_queues[use.only].remotes):
            # Nobody else has the one that is named.
            clustered_queues = {}
        if use.only:
            queues = [queue for queue in queues if queue.name == use.only]
            clustered_queues = {name: clustered for name, clustered in clustered_queues.items() if name == use.only}
        here = not clustered_queues or not first
        anycast = use.routing == "anycast"
        groups: list[list[Taker]] = []
        if here:
            alone = [Taker(ClusteredQueue(queue.name), queue, self._accepts(queue.spec.filter)) for queue in queues]
            groups = [alone] if anycast else [[taker] for taker in alone]
        else:
            groups = [
                takers(group, self._judge) for group in groups_of(list(clustered_queues.values()), anycast=anycast)
            ]
        why_not = f"the divert {taken_by!r} takes it away" if kept is False else ""
        named = None if here else self._named_group
        pinned = (
            self._groups.explain(target.address, [*clustered_queues.values()], named) if named is not None else None
        )
        if pinned is not None:
            groups = []
            for clustered in clustered_queues.values():
                self._pinned(clustered, *pinned, kept, why_not)
        for group in groups:
            self._group(group, kept, why_not, anycast=anycast, alone=bool(use.only))
        self._elsewhere(target.address, use.only, use.routing, here=here)

    def _group(self, group: Sequence[Taker], kept: Known, why_not: str, *, anycast: bool, alone: bool) -> None:
        """Queues of which one gets the message."""
        count = sum(taker.gets is not False for taker in group)
        for _, member, gets, _ in group:
            taken = both(kept, gets)
            if taken is False:
                self._member(member, False, why_not or self._why_not(member))
                continue
            if count > 1:
                taken, why = None, f"one of {count} gets it, in turn"
            elif alone:
                why = "it is sent to this queue"
            else:
                why = "it is the only queue that takes it" if anycast else _COPY
            self._member(member, taken, why + _notes(member))

    def _pinned(self, clustered: ClusteredQueue, chosen: Member, why: str, kept: Known, why_not: str) -> None:
        """Queues of one name where all messages of a group go one way."""
        for member in clustered.members:
            gets = kept if member is chosen else False
            self._member(member, gets, why_not or (why if gets is not False else "its group goes elsewhere"))

    def _elsewhere(self, name: str, only: str, routing: str, *, here: bool) -> None:
        """Explain queues on other nodes that get no message from this node."""
        for binding in self._router.bindings(name):
            if only and binding.name not in (only, f"{name}{SEPARATOR}{only}"):
                continue
            if binding.mode == "off":
                self._member(binding, False, "nothing goes there: the load balancing of the link is 'off'")
            elif binding.routing != routing:
                why = f"nothing goes there: the address is {binding.routing} there, and {routing or 'unknown'} here"
                self._member(binding, False, why)
            elif here:
                self._member(binding, False, "what comes by a divert stays on this node")

    def _why_not(self, member: Member) -> str:
        """The reason why a queue does not get a message that another queue gets."""
        gone = member.gone if isinstance(member, RemoteBinding) else ""
        if gone:
            return f"its node {_GONE[gone]}, and another queue takes it"
        if not (member.consumers if isinstance(member, RemoteBinding) else member.roster.consumers):
            return "nobody consumes from it, and another queue takes it"
        filters = member.filters if isinstance(member, RemoteBinding) else member.roster.filters
        if filters and self._judge(filters) is False:
            return "the filters of its consumers do not accept the message, and another queue takes it"
        return "a queue on this node takes it"

    def _member(self, member: Member, gets: Known, why: str) -> None:
        if isinstance(member, RemoteBinding):
            far = f"; it is {member.distance} links away" if member.distance > 1 else ""
            self._row("remote", member.name, member.address, member.filter, gets, why + far, via=member)
        else:
            self._row("queue", member.name, member.address, member.spec.filter, gets, why)

    def _row(
        self,
        kind: str,
        name: str,
        address: str,
        filter: Filter | None,
        gets: Known,
        why: str,
        *,
        via: RemoteBinding | None = None,
    ) -> None:
        accepted = self._accepts(filter)
        if accepted is False:
            why = "its filter does not accept the message"
        elif accepted is None and gets is None:
            why = "if its filter accepts the message"
        self.rows.append(
            {
                "kind": kind,
                "name": name,
                "address": address,
                "via": via.forward.name if via is not None else "",
                "filter": filter.text if filter is not None else "",
                "gets": _SAID[gets],
                "why": why,
                "node_id": _node_id(via) if via is not None else "",
                "node_name": via.node_name if via is not None else "",
            }
        )


def _node_id(binding: RemoteBinding) -> str:
    return binding.path[0] if binding.path else binding.forward.name.rpartition(".")[2]


def _notes(member: Member) -> str:
    """Further facts about a queue that gets a message."""
    if isinstance(member, RemoteBinding):
        return f"; its node {_GONE[member.gone]}: until it is back the message waits here" if member.gone else ""
    return "; the queue is made on first use" if not member.number else ""
