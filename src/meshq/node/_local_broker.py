"""The broker as its services see it: remote bindings in, held messages out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from meshq import abc, limits
from meshq.broker import (
    AnyConsumer,
    Core,
    Dispatch,
    Queue,
    QueueConsumer,
    RemoteBinding,
    StoredRun,
    dispatched_run,
    read_whole,
)
from meshq.errors import ClosedError, JournalBrokenError, MeshqError, SettingsError
from meshq.selector import Filter, parse_filter
from meshq.wire import RunBytes, with_body

#: The window of a link: many full frames, so that a round trip does not slow the link down.
FORWARD_WINDOW = 64 * limits.RUN_MESSAGES_MAX
FORWARD_WINDOW_BYTES = 16 * limits.MIB
#: Of the node's memory, the part that one link has on its way at most: what is on its way can't be paged.
FORWARD_SHARE = 16


class _Waiting:
    """A dispatch, and its messages as they are sent."""

    __slots__ = ("content", "dispatch", "whole")

    def __init__(self, dispatch: Dispatch, content: RunBytes, *, whole: bool) -> None:
        self.dispatch = dispatch
        self.content = content
        # Whether nothing is missing of it.
        self.whole = whole


class ForwardQueue(abc.StoreAndForwardQueue):
    """A store-and-forward queue: it has one consumer, the link."""

    #: The consumer is no session's.
    principal: None = None

    def __init__(self, core: Core, queue: Queue) -> None:
        self._core = core
        self.queue = queue
        self.number = queue.number
        self._consumer: QueueConsumer | None = None
        # Takes the runs of the attached link.
        self._take: Callable[[abc.ForwardRun], None]
        # Dispatches that wait for their large body, or for the large body of a dispatch before them.
        self._line: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """Messages held, given or not."""
        return self.queue.counts.ready + self.queue.counts.unacked

    def attach(self, take: Callable[[abc.ForwardRun], None], stored: int) -> None:
        """Begin to give."""
        self.detach()
        self._take = take
        self._core.times.expiry.answered(self.queue, stored)
        window = max(1, min(FORWARD_WINDOW_BYTES, self._core.memory.limit_bytes // FORWARD_SHARE))
        self._consumer = QueueConsumer(self.queue, self, 1, FORWARD_WINDOW, window)
        self.queue.add_consumer(self._consumer)
        self._core.router.mobility_changed(_key(self))
        self._core.pending.schedule_dispatch(self.queue)
        self._core.pending.run()

    def deliver(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Forward messages that the queue has dispatched.

        A large body travels as that of an ordinary message, which it is no larger than: whatever is was refused.
        """
        body = dispatch.view.run.body
        if body is None and not self._line:
            self._give(dispatch, dispatched_run(dispatch, whole=True))
            return
        waiting = _Waiting(dispatch, dispatched_run(dispatch, whole=True), whole=body is None)
        self._line.append(waiting)
        if body is not None:
            read_whole(self._core.bodies, body, partial(self._got, waiting))

    def _got(self, waiting: _Waiting, found: bytes | MeshqError) -> None:
        if waiting not in self._line:
            # The link was lost: the messages are dispatched again to the next link.
            return
        if isinstance(found, MeshqError):
            self._line.remove(waiting)
            if self._consumer is not None:
                # It can't be read: what it is is left to a human.
                self._core.redelivery.reject(self._consumer, [(waiting.dispatch.tag, waiting.dispatch.tag)])
                self._core.pending.schedule_dispatch(self.queue)
        else:
            waiting.content, waiting.whole = with_body(waiting.content, found), True
        while self._line and self._line[0].whole:
            first = self._line.popleft()
            self._give(first.dispatch, first.content)

    def _give(self, dispatch: Dispatch, content: RunBytes) -> None:
        view = dispatch.view
        run = view.run
        self._take(
            abc.ForwardRun(
                tag=dispatch.tag,
                rows=content.rows,
                number=view.first + dispatch.start,
                step=dispatch.step,
                message=run.number + dispatch.start * run.number_step,
                stride=run.number_step,
                producer=run.producer,
                address=run.address,
                stamp=run.stamp,
                durable=run.durable,
                table=content.table,
                body=content.body,
                queues=view.remote,
                topic=self._core.router.routing_anywhere(run.address) == "multicast",
                arrival=run.options.arrival if run.options is not None else 0,
                waited=partial(self._waited, run),
                origin=tuple(run.options.origin) if run.options is not None and run.options.origin is not None else (),
            )
        )

    def _waited(self, run: StoredRun) -> int:
        if run.options is None or not run.options.arrival:
            return 0
        return run.options.waited_ms(self._core.timers.elapsed_ms, self._core.timers.now_ms)

    def done(self, first_tag: int, last_tag: int) -> None:
        """Acknowledge messages that the other node has stored."""
        if self._consumer is not None:
            try:
                self._core.acknowledger.settle(self._consumer, [(first_tag, last_tag)])
            except (ClosedError, JournalBrokenError):
                # The node ends and says why, but not to the other one; the link's numbers tell the next life.
                return
            self._core.mover.redistribution.freed(self.queue)
            self._core.pending.schedule_dispatch(self.queue)
            self._core.pending.run()

    def detach(self) -> None:
        """Detach the lost link."""
        self._line.clear()
        self.queue.answered = None
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._core.redelivery.abandon(consumer, None)
            self.queue.remove_consumer(consumer)


class LocalPeerQueues(abc.PeerQueues):
    """The store-and-forward queues of a node."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def forwarding(self, name: str) -> ForwardQueue:
        """The store-and-forward queue of this name."""
        return ForwardQueue(self._core, self._core.definitions.forward_queue(name))

    def former(self, prefix: str) -> list[abc.KnownPeer]:
        """Nodes of an earlier life."""
        by_number = self._core.router.by_number
        known = [
            (by_number[number].name, peer)
            for number, peer in self._core.definitions.peers.peers.items()
            if number in by_number
        ]
        return [
            abc.KnownPeer(name=name, connector=peer.connector, left=peer.left)
            for name, peer in known
            if name.startswith(prefix)
        ]

    def met(self, link: abc.StoreAndForwardQueue, connector: str) -> None:
        """Note the URL of a peer."""
        self._core.definitions.peers.met(link.number, connector)


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

    def consumers(self, queue: str) -> int:
        """Consumers of a queue here."""
        found = self._core.router.queues.get(queue)
        return len(found.roster.consumers) if found is not None else 0


class LocalRemoteBindings(abc.RemoteBindings):
    """The remote bindings of a node's links."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def replace(
        self, link: abc.StoreAndForwardQueue, mode: str, queues: Sequence[abc.RemoteQueue], store: bytes = b""
    ) -> None:
        """Replace all bindings of a peer."""
        if store:
            self._begun(link, queues, store)
        self._core.router.replace(_key(link), [self._binding(link, mode, queue) for queue in queues])
        self._core.definitions.peers.replace(
            link.number, {queue.number: _kept(queue) for queue in queues if queue.durable}
        )

    def _begun(self, link: abc.StoreAndForwardQueue, queues: Sequence[abc.RemoteQueue], store: bytes) -> None:
        """Compare the store of a peer with the known store: messages for an old one go to queues of the same names."""
        core = self._core
        forward = core.router.by_number[link.number]
        told = {binding.number: (binding.name, binding.address) for binding in core.router.remote(_key(link))}
        there = {(queue.name, queue.address): queue.number for queue in queues}
        placed = [view for queue, view in core.release_queue.pending() if queue is forward]
        core.definitions.peers.begun(link.number, store, told, there, (forward.last, [*forward.runs(), *placed]))

    def describe(self, link: abc.StoreAndForwardQueue, mode: str, queue: abc.RemoteQueue) -> None:
        """One queue of a peer."""
        self._core.router.bind(_key(link), self._binding(link, mode, queue))
        if queue.durable:
            self._core.definitions.peers.put(link.number, queue.number, _kept(queue))

    def mark(self, link: abc.StoreAndForwardQueue, gone: str) -> None:
        """Set the state of a peer: lost in one of the ways, or linked again."""
        self._core.router.mark_gone(_key(link), gone)
        known = self._core.definitions.peers.peers.get(link.number)
        if known is not None:
            known.gone = gone
            self._core.definitions.peers.met(link.number, known.connector, left=gone == "left")

    def take_up(self, link: abc.StoreAndForwardQueue, mode: str) -> None:
        """Restore the bindings of a peer known before the restart, or forget a peer that left with all its messages."""
        peers = self._core.definitions.peers
        known = peers.peers.get(link.number)
        if known is None:
            return
        if known.left and not link.waiting:
            peers.forget(link.number)
            return
        queues = [abc.RemoteQueue(number=number, consumers=0, **one.kept) for number, one in known.queues.items()]
        self._core.router.replace(_key(link), [self._binding(link, mode, queue) for queue in queues])
        self._core.router.mark_gone(_key(link), "left" if known.left else "away")

    def withdraw(self, link: abc.StoreAndForwardQueue) -> None:
        """Remove the bindings of a peer."""
        self._core.router.replace(_key(link), [])
        known = self._core.definitions.peers.peers.get(link.number)
        if known is not None:
            known.gone = "down"

    def remove(self, link: abc.StoreAndForwardQueue, number: int) -> None:
        """Remove one queue of a peer."""
        self._core.router.unbind(_key(link), number)
        self._core.definitions.peers.drop(link.number, number)

    def _binding(self, link: abc.StoreAndForwardQueue, mode: str, queue: abc.RemoteQueue) -> RemoteBinding:
        own = next(iter(_filters((queue.filter,))), None) if queue.filter else None
        return RemoteBinding(
            forward=self._core.router.by_number[link.number],
            mode=mode,
            number=queue.number,
            name=queue.name,
            address=queue.address,
            routing=queue.routing,
            consumers=queue.consumers,
            filters=_filters(queue.filters),
            # One that is not understood here is applied there.
            filter=own,
            features=queue.features,
            understood=own is not None or not queue.filter,
            durable=queue.durable,
        )


def _kept(queue: abc.RemoteQueue) -> dict[str, str]:
    """Return the fields of a queue that are kept over restarts, without its consumers."""
    return {"name": queue.name, "address": queue.address, "routing": queue.routing, "filter": queue.filter}


def _key(link: abc.StoreAndForwardQueue) -> bytes:
    return link.number.to_bytes(8, "big")


def _filters(texts: Sequence[str]) -> tuple[Filter, ...]:
    try:
        return tuple(map(parse_filter, texts))
    except SettingsError:
        # The other node's language has grown: whatever comes may be wanted there.
        return ()
