"""Where a message would go, and why: the decisions of placing, told instead of done.

Filters have a third answer where nothing is known of the message: it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from meshq.address import Target
from meshq.broker.placing._distribution_plan import RemoteBinding
from meshq.broker.placing._router import Address, Router
from meshq.broker.placing._sharing import wants_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.selector import Filter

Rows = list[dict[str, Any]]
#: True, False, or None for what is not known.
Known = bool | None
_SAID: Final = {True: "yes", False: "no", None: "maybe"}


def both(first: Known, second: Known) -> Known:
    """Whether two things are so."""
    if first is False or second is False:
        return False
    return True if first and second else None


def either(first: Known, second: Known) -> Known:
    """Whether one of two things is so."""
    if first or second:
        return True
    return False if first is False and second is False else None


class Explainer:
    """Follows one message, or any message where ``message`` is None, through the tables of a node."""

    def __init__(self, router: Router, message: StoredRun | None) -> None:
        self._router = router
        self._wants = wants_of(message) if message is not None else None
        self.rows: Rows = []

    def follow(self, target: Target) -> Rows:
        """A row for each queue and each divert on the way, in the order in which they are come by."""
        if target.queue is not None:
            queue = self._router.find_queue(target)
            if queue is not None:
                self._one(queue)
            return self.rows
        reached: dict[str, Known] = {target.address: True}
        for name in self._router.diverts.order(target.address):
            if name in reached and reached[name] is not False:
                self._address(name, reached, first=name == target.address)
        return self.rows

    # -- one thing after the other

    def _accepts(self, filter: Filter | None) -> Known:
        if filter is None:
            return True
        return self._wants((filter,), 0) if self._wants is not None else None

    def _wanted(self, filters: tuple[Filter, ...]) -> bool:
        return self._wants(filters, 0) if self._wants is not None else True

    def _one(self, queue: Queue) -> None:
        accepted = self._accepts(queue.terms.filter)
        self._row("queue", queue.name, queue.address, queue.terms.filter, accepted, "it is sent to this queue")

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
        address = self._router.addresses.get(name)
        if address is None:
            return
        if kept is False:
            for queue in address.queues:
                why = f"the divert {taken_by!r} takes it away"
                self._row("queue", queue.name, name, queue.terms.filter, False, why)
        elif first and address.rings:
            self._among_nodes(address, kept)
        else:
            self._here(address, kept)

    def _here(self, address: Address, kept: Known) -> None:
        takers = [(queue, both(kept, self._accepts(queue.terms.filter))) for queue in address.queues]
        count = sum(taken is not False for _, taken in takers)
        for queue, taken in takers:
            self._dealt("queue", queue.name, address, queue.terms.filter, taken, count)

    def _among_nodes(self, address: Address, kept: Known) -> None:
        chosen: dict[int, int] = {}
        for ring in address.rings.values():
            members = ring.members(self._wanted) or ring.left(self._wanted)
            chosen.update((id(member), len(members)) for member in members)
        anycast = sum(chosen.values()) if address.routing == "anycast" else 0
        for ring in address.rings.values():
            everybody: Sequence[Queue | RemoteBinding] = [*([ring.local] if ring.local else []), *ring.remotes]
            for member in everybody:
                self._member(address, member, kept, len(chosen) if anycast else chosen.get(id(member), 0), chosen)

    def _member(
        self, address: Address, member: Queue | RemoteBinding, kept: Known, count: int, chosen: dict[int, int]
    ) -> None:
        remote = isinstance(member, RemoteBinding)
        filter = member.filter if isinstance(member, RemoteBinding) else member.terms.filter
        kind = f"remote {member.forward.name}" if isinstance(member, RemoteBinding) else "queue"
        taken = both(kept, self._accepts(filter))
        if taken is not False and id(member) not in chosen:
            why = "nobody there wants it, or somebody does elsewhere" if remote else "somebody on another node wants it"
            self._row(kind, member.name, address.name, filter, False, why)
            return
        self._dealt(kind, member.name, address, filter, taken, count)

    def _dealt(self, kind: str, name: str, address: Address, filter: Filter | None, taken: Known, takers: int) -> None:
        shared = takers > 1 and (address.routing == "anycast" or kind.startswith("remote"))
        if taken is not False and shared:
            self._row(kind, name, address.name, filter, None, f"one of {takers} gets it, in turn")
            return
        copy = address.routing == "multicast"
        why = "each queue of a multicast address gets a copy" if copy else "it is the only queue that takes it"
        self._row(kind, name, address.name, filter, taken, why)

    def _row(self, kind: str, name: str, address: str, filter: Filter | None, gets: Known, why: str) -> None:
        accepted = self._accepts(filter)
        if accepted is False:
            why = "its filter does not accept the message"
        elif accepted is None and gets is None:
            why = "if its filter accepts the message"
        self.rows.append(
            {
                "kind": kind.partition(" ")[0],
                "name": name,
                "address": address,
                "via": kind.partition(" ")[2],
                "filter": filter.text if filter is not None else "",
                "gets": _SAID[gets],
                "why": why,
            }
        )
