"""The groups of a node's queues, and their pins, as the cluster connection sees them that serves these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from meshq import abc
from meshq.broker.catalog._pins_machine import Name
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.core._core import Core


class ClusteredGroups(abc.PinnedGroups):
    """The pins of a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pins = core.router.pins
        self._served = False

    def begin(self, takes: Callable[[str], bool], wake: Callable[[], None]) -> bool:
        """Serve the groups of some addresses from now on; False: another service does so."""
        if self._served:
            return False
        self._served = True
        self._pins.begin(self._core.settings.node_id.hex(), takes, wake)
        return True

    def end(self) -> None:
        """Serve no groups any more."""
        self._served = False
        self._pins.end()

    def see(
        self,
        members: Collection[str],
        targets: Collection[str],
        *,
        leavers: Collection[str] = (),
        active: bool,
        leaving: bool,
    ) -> None:
        """Take in the nodes of the cluster."""
        pins = self._pins
        if active != pins.active:
            held = [(queue.name, name) for queue in self._grouped() for name in _consumed(queue)]
            pins.switch(active=active)
            for name in held if active else ():
                # Its consumer has it already.
                pins.told(name, pins.own)
            self._offer_anew()
        pins.leavers = frozenset(leavers)
        gone = pins.see(frozenset(targets), frozenset(members))
        for name in gone:
            self._offer(name)
        if leaving != pins.leaving:
            pins.leaving = leaving
            self._offer_anew()

    def wanted(self) -> Sequence[tuple[str, str, str, bool]]:
        """The pins that are wanted, and the nodes that are to get these."""
        found: list[tuple[str, str, str, bool]] = []
        self._forget_placeless()
        if self._pins.leaving:
            return found
        able: dict[str, Mapping[str, tuple[Filter, ...]]] = {}
        for name in self._pins.open():
            queue = self._core.router.queues.get(name[0])
            if queue is None or queue.grouped is None or name[1] not in queue.grouped.table:
                # Its messages have gone meanwhile.
                self._pins.close(name)
                continue
            if name[0] not in able:
                able[name[0]] = self._core.ingress.groups.able(queue)
            if not able[name[0]]:
                # Of queues that nobody consumes there may be many groups.
                continue
            node, here = self._core.ingress.groups.preferred(queue, name[1], able[name[0]])
            if here and self._pins.was_here(name):
                # Others sent it here since this node held the pin: they may still do so.
                node = self._pins.own
            if node:
                found.append((*name, node, here))
        return found

    def _forget_placeless(self) -> None:
        """Forget that a node holds a pin whose queue that node has no more."""
        there = [(queue, holder) for queue, known in self._pins.away.items() for holder in known]
        for queue, holder in there:
            found = self._core.router.queues.get(queue)
            if found is None or not self._core.ingress.groups.has_place(found, holder):
                for group in list(self._pins.away.get(queue, {}).get(holder, ())):
                    self._pins.forget((queue, group))
                    self._offer((queue, group))

    def has_place(self, queue: str, node: str) -> bool:
        """Whether messages can go to a node that has a pin."""
        known = self._core.router.queues.get(queue)
        return node == self._pins.own or known is None or self._core.ingress.groups.has_place(known, node)

    def held(self) -> Sequence[tuple[str, str]]:
        """The pins that this node holds."""
        return list(self._pins.held)

    def waiting(self) -> int:
        """How many pins are wanted."""
        return len(self._pins.open())

    def ask(self, queue: str, group: str) -> None:
        """Note that the arbiter is asked for a pin now."""
        known = self._core.router.queues.get(queue)
        if known is not None:
            self._pins.ask((queue, group), known.last)

    def told(self, queue: str, group: str, holder: str) -> None:
        """Take in who holds a pin."""
        name = queue, group
        answered = self._pins.told(name, holder)
        more = name in self._pins.wanted
        self._offer(name)
        if answered and not more:
            # No message has come since the arbiter was asked.
            self._pins.wanted.pop(name, None)
        known = self._core.router.queues.get(queue)
        if holder == self._pins.own and known is not None and not known.roster.consumers:
            # The consumer for which it was asked has left: nobody else looks at the group now.
            self._core.router.demand.mobility_changed(queue)

    def freed(self, queue: str, group: str) -> None:
        """Forget which node held a pin, unless messages are under way to that node: further ones follow these."""
        name = queue, group
        holder = self._pins.elsewhere.get(name)
        if holder is not None and holder not in self._busy():
            self._pins.forget(name)
            # What was to go there has to be asked for anew.
            self._offer(name)

    def given_up(self) -> Sequence[tuple[str, str]]:
        """Give up pins that are not needed here."""
        found = []
        for queue_name, groups in list(self._pins.held_of.items()):
            queue = self._core.router.queues.get(queue_name)
            if queue is not None and queue.roster.consumers and not self._pins.leaving:
                continue
            table = queue.grouped.table if queue is not None and queue.grouped is not None else {}
            for group in list(groups):
                known = table.get(group)
                if known is None or (self._pins.leaving and not known.unacked):
                    self._pins.give_up((queue_name, group))
                    found.append((queue_name, group))
        return found

    def period_over(self, idle_after: float, pins_max: int) -> tuple[Sequence[tuple[str, str]], int]:
        """End a period; return the pins that are given up, and how many are too many."""
        if not self._pins.period_over(idle_after, pins_max):
            return (), 0
        for queue in self._grouped():
            for group in queue.grouped.table if queue.grouped is not None else ():
                self._pins.keep((queue.name, group))
        idle, crowded = self._pins.idle(idle_after, pins_max, self._busy())
        for name in idle:
            self._pins.give_up(name)
        return idle, crowded

    def _busy(self) -> set[str]:
        """The nodes to which messages are under way."""
        queues = self._core.router.queues.values()
        forwards = [queue for queue in queues if queue.kind is QueueKind.STORE_AND_FORWARD]
        return {queue.name.rpartition(".")[2] for queue in forwards if queue.counts.ready or queue.counts.unacked}

    def kept(self) -> Mapping[tuple[str, str], str]:
        """The pins that this node has given."""
        return self._core.definitions.pins.pins

    def keep(self, queue: str, group: str, node: str | None) -> None:
        """Keep who has a pin that this node has given."""
        self._core.definitions.pins.keep((queue, group), node)

    def introduced(self) -> tuple[str, str]:
        """The members and the nodes that are kept as introduced."""
        return self._core.definitions.pins.introduced

    def keep_introduced(self, members: str, lives: str) -> None:
        """Keep who has introduced itself."""
        self._core.definitions.pins.keep_introduced(members, lives)

    def move(self) -> None:
        """Have messages moved to the nodes that hold their groups."""
        news = list(self._pins.news)
        self._pins.news.clear()
        for name in news:
            self._core.router.demand.mobility_changed(name)

    def _grouped(self) -> list[Queue]:
        queues = self._core.router.queues.values()
        return [queue for queue in queues if queue.roster.may_offer and queue.grouped is not None]

    def _offer(self, name: Name) -> None:
        queue = self._core.router.queues.get(name[0])
        if queue is not None and queue.grouped is not None:
            queue.grouped.closed(name[1]) if name not in self._pins.held else queue.grouped.opened(name[1])
            self._core.pending.schedule_dispatch(queue)
            self._core.pending.run()

    def _offer_anew(self) -> None:
        for queue in self._grouped():
            assert queue.grouped is not None
            for group in list(queue.grouped.table):
                if queue.roster.may_offer is not None and queue.roster.may_offer(group):
                    queue.grouped.opened(group)
                else:
                    queue.grouped.closed(group)
            self._core.pending.schedule_dispatch(queue)
        self._core.pending.run()


def _consumed(queue: Queue) -> list[str]:
    """The groups of a queue that a consumer has."""
    table = queue.grouped.table if queue.grouped is not None else {}
    return [name for name, group in table.items() if group.owner is not None or group.unacked]
