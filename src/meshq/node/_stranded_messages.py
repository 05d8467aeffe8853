"""The view of a node that its services have: demand, stranded messages, the fronts of its queues, and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from meshq import abc
from meshq.broker import (
    ClusteredGroups,
    Core,
    LongOperation,
    SessionRegistry,
    answer_call,
    filters_here,
    flat,
    held_messages,
    is_hidden,
    kept_messages,
    redistribute,
    waiting_queues,
)
from meshq.errors import MeshqError, NotActiveError
from meshq.node._local_broker import LocalPeerQueues, LocalRemoteBindings
from meshq.notifications import Notification


class LocalDemand(abc.Demand):
    """The demand at a node."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` whenever a queue or its consumers have changed."""
        self._core.router.demand.watchers.append(watcher)

    def watch_peers(self, watcher: Callable[[bytes, str], None]) -> None:
        """Call ``watcher`` whenever another node has linked to this node."""
        self._core.router.demand.on_peer.append(watcher)

    def count(self, queue: str | None, address: str | None) -> tuple[int, int]:
        """Count queues here, and their consumers."""
        router = self._core.router
        if queue is not None:
            found = [router.queues[queue]] if queue in router.queues else []
        else:
            found = list(router.queues.values())
        seen = [one for one in found if address in (None, one.address) and not is_hidden(one)]
        return len(seen), sum(len(one.roster.consumers) for one in seen)

    def note_connector(self, name: str, settings: Sequence[str] | None) -> None:
        """Note the settings of a network connector that belong on all connectors; None: no connector any more."""
        connectors = self._core.router.demand.connectors
        if settings is None:
            connectors.pop(name, None)
        else:
            connectors[name] = settings

    def kept(self, beginning: str) -> tuple[int, float | None]:
        """Return how many messages wait here for another broker of the network, and for how many seconds the oldest of
        them has."""
        core, settings = self._core, self._core.settings
        node_id = core.identity.node_id.hex()
        return kept_messages(core.router, node_id, beginning, settings.now_ms(), settings.elapsed_ms())


class LocalNotifications(abc.NotificationSink):
    """The notifications of a node's services, which come outside of its passes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def emit(self, kind: type[Notification], **about: Any) -> None:
        """Notify all watchers at once, and subscriptions in a pass soon."""
        self._core.settings.event_bus.emit(kind, **about)
        self._core.pending.run_soon()


class LocalStrandedMessages(abc.StrandedMessages):
    """The messages of a node that no consumer there can get."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call ``watcher`` for each queue at once, and whenever its messages may be free to move, or no longer."""
        self._core.router.demand.mobility_watchers.append(watcher)
        for name in list(self._core.router.queues):
            watcher(name)

    def stranded(self, queue: str) -> abc.StrandedQueue | None:
        """The state of a queue whose messages wait for consumers elsewhere; None: the queue keeps them."""
        found = self._core.router.queues.get(queue)
        redistribution = self._core.mover.redistribution
        if found is not None and redistribution.away(found):
            pins = self._core.router.pins
            changes = pins.answers, pins.targets, redistribution.times_freed.total()
            return abc.StrandedQueue(address=found.address, messages=found.counts.ready, delay=0.0, demand=changes)
        takers = redistribution.takers(found) if found is not None and not redistribution.keeps(found) else ()
        if found is None or not takers:
            return None
        delay = found.settings.redistribution_delay
        assert delay is not None, "such a queue keeps its messages"
        filters = frozenset(filter.text for filter in filters_here(found) or ())
        freed = redistribution.times_freed
        demand = tuple(
            (one.forward.number, one.number, one.filter, one.filters, one.features, freed[one.forward.number])
            for one in takers
        )
        return abc.StrandedQueue(
            address=found.address, messages=found.counts.ready, delay=delay, filters=filters, demand=demand
        )

    async def move(self, queue: str, limit: int) -> int:
        """Move up to ``limit`` messages to other nodes; return how many."""
        found = self._core.router.queues.get(queue)
        if found is None:
            await trio.lowlevel.checkpoint()
            return 0
        return await MoveCall().run(partial(redistribute, self._core, found, limit))


class LocalHeldQueues(abc.HeldQueues):
    """The messages at the fronts of the queues of a node."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def names(self) -> list[str]:
        """The queues in which messages wait."""
        return waiting_queues(self._core)

    def held(self, queue: str) -> list[abc.HeldMessages]:
        """The messages at the front of a queue."""
        return list(held_messages(self._core, queue))


class LocalAnswers(abc.OwnAnswers):
    """The answers of a node about itself."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Carry out an operation of management."""
        self._core.closing.check_running()
        values = answer_call(self._core, operation, arguments)
        if isinstance(values, dict):
            await trio.lowlevel.checkpoint()
            return flat(values)
        call = _OwnCall()
        self._core.running_operations.schedule(LongOperation(values, call.done, call.failed))
        self._core.pending.run()
        return flat(await call.result())

    def of(self, cluster: str) -> abc.NodeQuestions:
        """Return the way to ask the nodes of a cluster."""
        questions = self._core.settings.clusters.get(cluster)
        if questions is None:
            raise NotActiveError(f"the cluster connection {cluster!r} is not served")
        return questions

    def add(self, cluster: str, questions: abc.NodeQuestions) -> None:
        """Let others ask the nodes of a cluster."""
        self._core.settings.clusters[cluster] = questions

    def drop(self, cluster: str) -> None:
        """Ask these nodes nothing more."""
        self._core.settings.clusters.pop(cluster, None)


class MoveCall:
    """The wait for one move; a cancelled wait ends the move."""

    def __init__(self) -> None:
        #: Whether more messages are to be moved.
        self.wanted: bool = True
        self._moved = 0
        self._error: MeshqError | None = None
        self._ended = trio.Event()

    async def run(self, begin: Callable[[MoveCall], None]) -> int:
        """Begin a move; return the number of messages when their records are durable.

        Checkpoint: always.
        Cancellation: what has moved has moved, and nothing else will.
        """
        try:
            begin(self)
            await self._ended.wait()
        finally:
            self.wanted = False
        if self._error is not None:
            raise self._error
        return self._moved

    def done(self, moved: int) -> None:
        """Note the number of moved messages, whose records are durable."""
        self._moved = moved
        self._ended.set()

    def failed(self, error: MeshqError) -> None:
        """Note that the move has ended early."""
        self._error = error
        self._ended.set()


class _OwnCall:
    """The wait for one operation."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._error: MeshqError | None = None
        self._ended = trio.Event()

    def done(self, values: dict[str, Any]) -> None:
        self._values = values
        self._ended.set()

    def failed(self, error: MeshqError) -> None:
        self._error = error
        self._ended.set()

    async def result(self) -> dict[str, Any]:
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._values


class LocalRedirectors(abc.Redirectors):
    """The balancers of one life of a node."""

    def __init__(self, core: Core, sessions: SessionRegistry) -> None:
        self._core = core
        self._sessions = sessions

    def add(self, name: str, redirector: abc.Redirector) -> None:
        """Let acceptors and operators use a balancer."""
        self._core.settings.redirectors[name] = redirector

    def clients(self) -> int:
        """Return how many clients are connected now, or raise as a probe of this broker would."""
        self._core.closing.check()
        return self._sessions.clients


def local_broker(
    core: Core,
    control: abc.NodeControl,
    acceptor: abc.LocalAcceptor,
    *,
    transfer: abc.Transfer,
    redirectors: abc.Redirectors,
    services: Sequence[abc.Service],
) -> abc.LocalBroker:
    """Return the broker of a core, as its services see it."""
    return abc.LocalBroker(
        control=control,
        acceptor=acceptor,
        demand=LocalDemand(core),
        routes=LocalRemoteBindings(core),
        peers=LocalPeerQueues(core),
        stranded=LocalStrandedMessages(core),
        transfer=transfer,
        notifications=LocalNotifications(core),
        topologies=core.settings.topologies,
        answers=LocalAnswers(core),
        held=LocalHeldQueues(core),
        groups=ClusteredGroups(core),
        redirectors=redirectors,
        services=services,
    )
