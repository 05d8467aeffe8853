"""The broker as its services see it: remote bindings in, held messages out."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from meshq import abc, limits
from meshq.broker import (
    AnyConsumer,
    BindingNews,
    Core,
    Dispatch,
    FormerCount,
    Hop,
    Queue,
    QueueConsumer,
    QueueRun,
    RemoteBinding,
    StoredRun,
    dispatched_run,
    give_back,
    needed_features,
    picked,
    read_whole,
)
from meshq.errors import ClosedError, JournalBrokenError, MeshqError, SettingsError
from meshq.ids import IDENTITY_BYTES
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
        self._large_from = limits.MESSAGE_BYTES_MAX
        # Dispatches that wait for their large body, or for the large body of a dispatch before them.
        self._line: deque[_Waiting] = deque()
        # What was given and is not known to be stored there, by rising tag.
        self._given: deque[tuple[int, Hop]] = deque()

    @property
    def waiting(self) -> int:
        """Messages held, given or not."""
        return self.queue.counts.ready + self.queue.counts.unacked

    @property
    def blocked(self) -> int:
        """Messages whose address is full there."""
        return self.queue.branch().blocked

    @property
    def link(self) -> bytes:
        """The name of the numbers: another one for another queue, another store, and numbers that begin anew."""
        known = self._core.definitions.peers.peers.get(self.number)
        token = known.link if known is not None else b""
        return hashlib.sha256(self._core.identity.store + _key(self) + token).digest()[:IDENTITY_BYTES]

    def overtaken(self, stored: int, token: bytes) -> bool:
        """Whether the other node has stored more than was ever given; then the numbers begin under another name."""
        if stored <= self.queue.last:
            return False
        self._core.definitions.peers.link_anew(self.number, token)
        return True

    def lacking(self, features: Sequence[str]) -> tuple[str, ...]:
        """The features that waiting messages need beside these."""
        placed = [view for queue, view in self._core.release_queue.pending() if queue is self.queue]
        return tuple(sorted(needed_features([*self.queue.runs(), *placed]).difference(features)))

    def attach(
        self,
        take: Callable[[abc.ForwardRun], None],
        stored: int,
        large_from: int = limits.MESSAGE_BYTES_MAX,
        credits: abc.AddressCredits | None = None,
    ) -> None:
        """Begin to give."""
        self.detach()
        self._take, self._large_from = take, large_from
        if credits is not None:
            self.queue.branch().attach(credits.marks)
            credits.watch(self._granted)
        self._core.times.expiry.answered(self.queue, stored)
        window = max(1, min(FORWARD_WINDOW_BYTES, self._core.memory.limit_bytes // FORWARD_SHARE))
        self._consumer = QueueConsumer(self.queue, self, 1, FORWARD_WINDOW, window)
        self.queue.add_consumer(self._consumer)
        self._core.router.mobility_changed(_key(self))
        self._core.pending.schedule_dispatch(self.queue)
        self._core.pending.run()

    def _granted(self, number: int, address: str, until: int) -> int:
        """Take the credit of an address, and return up to how many messages are sent; waiting ones go on."""
        kept = self.queue.branch().granted(number, address, until)
        if self._consumer is not None:
            self._core.mover.redistribution.freed(self.queue)
            self._core.pending.schedule_dispatch(self.queue)
            self._core.pending.run()
        return kept

    def deliver(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Forward messages that the queue has dispatched.

        A body of up to ``large_from`` bytes travels as that of an ordinary message; a larger one is read by the link.
        """
        body = dispatch.view.run.body
        if body is not None and body.size_bytes > self._large_from:
            body = None
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
            self.unreadable(waiting.dispatch.tag)
        else:
            waiting.content, waiting.whole = with_body(waiting.content, found), True
        while self._line and self._line[0].whole:
            first = self._line.popleft()
            self._give(first.dispatch, first.content)

    def unreadable(self, tag: int) -> None:
        """Reject a message whose body can't be read; a human decides about the message."""
        if self._consumer is not None:
            self.queue.branch().unsent(self._consumer.dispatches, tag)
            self._core.redelivery.reject(self._consumer, [(tag, tag)])
            self._core.pending.schedule_dispatch(self.queue)
            self._core.pending.run()

    def _large(self, run: StoredRun) -> abc.BodyReader | None:
        """Return the body of a run that the link reads; None: it has none, or one that goes with it."""
        body = run.body
        if body is None or body.size_bytes <= self._large_from:
            return None
        return abc.BodyReader(size_bytes=body.size_bytes, read=partial(self._core.bodies.read, body))

    def _give(self, dispatch: Dispatch, content: RunBytes) -> None:
        view = dispatch.view
        run = view.run
        self._given.append((dispatch.tag, self._hop(dispatch)))
        large = self._large(run)
        make = partial(abc.LargeForwardRun, large=large) if large is not None else abc.ForwardRun
        self._take(
            make(
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
                **self._said_before(dispatch),
            )
        )

    def _way(self, dispatch: Dispatch) -> abc.ForwardWay:
        branches = self.queue.branch()
        return abc.ForwardWay(branches.take_changes(), branches.is_branch(dispatch.view), dispatch.credit)

    def _hop(self, dispatch: Dispatch) -> Hop:
        view, run = dispatch.view, dispatch.view.run
        there = run.options.there if run.options is not None else None
        return Hop(
            producer=run.producer,
            first=run.number + dispatch.start * run.number_step,
            step=dispatch.step * run.number_step,
            rows=dispatch.rows,
            to=True,
            node_id=self.queue.name.rpartition(".")[2],
            forward=self.queue.number,
            numbers=view.remote,
            name=there.name if there is not None else "",
        )

    def _said_before(self, dispatch: Dispatch) -> dict[str, Any]:
        """Return the history of the messages of a dispatch."""
        options = dispatch.view.run.options
        if options is None:
            return {"former": partial(self._former, {}), "entry": abc.ForwardEntry(way=self._way(dispatch))}
        former = picked(options.former, range(dispatch.start, dispatch.stop, dispatch.step)) or {}
        origin, there = (tuple(one) if one is not None else () for one in (options.origin, options.there))
        entry = abc.ForwardEntry(options.entry, options.held, options.target, self._way(dispatch))
        return {"origin": origin, "former": partial(self._former, former), "queue": there, "entry": entry}

    def _former(self, former: Mapping[int, FormerCount]) -> dict[int, tuple[int, int, int]]:
        """By row the deliveries, the returns, and the ms for which a message still waits."""
        left = self._core.timers.left_ms
        return {
            row: (one.deliveries, one.returns, left(one.due) if one.due is not None else 0)
            for row, one in former.items()
        }

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
            while self._given and self._given[0][0] <= last_tag:
                self._core.router.demand.hops.add(self._given.popleft()[1])
            self._core.mover.redistribution.freed(self.queue)
            self._core.pending.schedule_dispatch(self.queue)
            self._core.pending.run()

    def detach(self) -> None:
        """Detach the lost link."""
        self._line.clear()
        self._given.clear()
        self.queue.branch().detach()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._core.redelivery.abandon(consumer, None)
            self.queue.remove_consumer(consumer)
            self._core.router.mobility_changed(_key(self))


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
            abc.KnownPeer(name=name, connector=peer.connector, left=peer.left, over=peer.over)
            for name, peer in known
            if name.startswith(prefix)
        ]

    def met(self, link: abc.StoreAndForwardQueue, connector: str) -> None:
        """Note the URL of a peer."""
        self._core.definitions.peers.met(link.number, connector)

    def handed_over(self, link: abc.StoreAndForwardQueue) -> None:
        """Note that a node which has left had handed over all."""
        self._core.definitions.peers.handed_over(link.number)

    def give_back(
        self, link: abc.StoreAndForwardQueue, done: Callable[[int], None], failed: Callable[[MeshqError], None]
    ) -> None:
        """Route messages anew that wait for a node which is gone."""
        give_back(self._core, self._core.router.by_number[link.number], done, failed)


class LocalRemoteBindings(abc.RemoteBindings):
    """The remote bindings of a node's links."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._news = BindingNews(core.settings.event_bus)

    def replace(
        self,
        link: abc.StoreAndForwardQueue,
        mode: str,
        queues: Sequence[abc.RemoteQueue],
        store: bytes = b"",
        features: Sequence[str] = (),
    ) -> None:
        """Replace all bindings of a peer."""
        if store:
            self._begun(link, queues, store)
        self._core.router.relays.retain(link.number, {queue.number for queue in queues})
        self._core.router.replace(_key(link), [self._binding(link, mode, queue) for queue in queues], features)
        kept = {queue.number: _kept(queue) for queue in queues if self._is_kept(link, queue)}
        self._core.definitions.peers.replace(link.number, kept)
        self._news.all(link.number, self._core.router.remote(_key(link)))
        self._tell()

    def _is_kept(self, link: abc.StoreAndForwardQueue, queue: abc.RemoteQueue) -> bool:
        """Whether a queue is kept over restarts: its messages may wait here, or come from a further node."""
        return queue.durable or self._core.router.relays.number_of(link.number, queue.number) > 0

    def _tell(self) -> None:
        """Tell further nodes, which may have asked for the queues of this node's peers."""
        self._core.pending.run()

    def _begun(self, link: abc.StoreAndForwardQueue, queues: Sequence[abc.RemoteQueue], store: bytes) -> None:
        """Compare the store of a peer with the known store: messages for an old one go to queues of the same names."""
        last = self._core.router.by_number[link.number].last
        there = {(queue.name, queue.address, _way(queue.path)): queue.number for queue in queues}
        self._core.definitions.peers.begun(link.number, store, self._told(link), there, (last, self._waiting(link)))

    def _told(self, link: abc.StoreAndForwardQueue) -> dict[int, tuple[str, str, str]]:
        """The queues that a peer has described in this life, by their numbers there."""
        return {one.number: (one.name, one.address, _way(one.path)) for one in self._core.router.remote(_key(link))}

    def _waiting(self, link: abc.StoreAndForwardQueue) -> list[QueueRun]:
        forward = self._core.router.by_number[link.number]
        return [*forward.runs(), *(view for queue, view in self._core.release_queue.pending() if queue is forward)]

    def lacks(self, link: abc.StoreAndForwardQueue, queues: Sequence[abc.RemoteQueue], store: bytes) -> bool:
        """Whether the store of a peer is another one than before, and lacks queues of further nodes that messages wait
        for."""
        there = {(queue.name, queue.address, _way(queue.path)) for queue in queues}
        return self._core.definitions.peers.lacks(link.number, store, self._told(link), there, self._waiting(link))

    def describe(self, link: abc.StoreAndForwardQueue, mode: str, queue: abc.RemoteQueue) -> None:
        """A queue of a peer."""
        binding = self._binding(link, mode, queue)
        self._core.router.bind(_key(link), binding)
        self._news.one(link.number, queue.number, binding)
        if self._is_kept(link, queue):
            self._core.definitions.peers.put(link.number, queue.number, _kept(queue))
        self._tell()

    def mark(self, link: abc.StoreAndForwardQueue, gone: str) -> None:
        """Set the state of a peer: lost in one of the ways, or linked again."""
        self._core.router.mark_gone(_key(link), gone)
        known = self._core.definitions.peers.peers.get(link.number)
        if known is not None:
            known.gone = gone
            self._core.definitions.peers.met(link.number, known.connector, left=gone == "left")
        self._tell()

    def take_up(self, link: abc.StoreAndForwardQueue, mode: str) -> None:
        """Restore the bindings of a peer known before the restart, or forget a peer that left with all its messages.

        A peer whose queues further nodes know is not forgotten: messages for these may wait there.
        """
        peers = self._core.definitions.peers
        known = peers.peers.get(link.number)
        if known is None:
            return
        if known.left and not link.waiting and not self._core.router.relays.leads(link.number):
            peers.forget(link.number)
            return
        node = self._core.router.by_number[link.number].name.rpartition(".")[2]
        queues = [_queue_of(number, one.kept, node) for number, one in known.queues.items() if one.kept["durable"]]
        self._core.router.replace(_key(link), [self._binding(link, mode, queue) for queue in queues])
        self._core.router.mark_gone(_key(link), "left" if known.left else "away")

    def withdraw(self, link: abc.StoreAndForwardQueue) -> None:
        """Remove the bindings of a peer."""
        self._core.router.replace(_key(link), [])
        self._news.all(link.number, ())
        known = self._core.definitions.peers.peers.get(link.number)
        if known is not None:
            known.gone = "down"
        self._tell()

    def remove(self, link: abc.StoreAndForwardQueue, number: int) -> None:
        """Remove one queue of a peer."""
        self._core.router.unbind(_key(link), number)
        self._news.one(link.number, number, None)
        self._core.definitions.peers.drop(link.number, number)
        self._tell()

    def _binding(self, link: abc.StoreAndForwardQueue, mode: str, queue: abc.RemoteQueue) -> RemoteBinding:
        own = next(iter(_filters((queue.filter,))), None) if queue.filter else None
        filters = _filters(queue.filters)
        return RemoteBinding(
            forward=self._core.router.by_number[link.number],
            mode=mode,
            number=queue.number,
            name=queue.name,
            address=queue.address,
            routing=queue.routing,
            consumers=queue.consumers,
            filters=filters,
            # One that is not understood here is applied there.
            filter=own,
            features=queue.features,
            understood=own is not None or not queue.filter,
            durable=queue.durable,
            precise=queue.precise and (bool(filters) or not queue.filters),
            path=queue.path or (self._core.router.by_number[link.number].name.rpartition(".")[2],),
            node_name=queue.node_name,
            gone=queue.gone,
            told=queue.gone,
        )


def _kept(queue: abc.RemoteQueue) -> dict[str, Any]:
    """Return the fields of a queue that are kept over restarts, without its consumers."""
    kept = {"name": queue.name, "address": queue.address, "routing": queue.routing, "filter": queue.filter}
    far = len(queue.path) > 1
    return {**kept, "path": _way(queue.path), "node_name": queue.node_name if far else "", "durable": queue.durable}


def _queue_of(number: int, kept: Mapping[str, Any], node: str) -> abc.RemoteQueue:
    """Return a queue of the peer ``node``, or of a further node behind that, as it was kept over a restart."""
    about = {key: kept[key] for key in ("name", "address", "routing", "filter", "node_name")}
    return abc.RemoteQueue(number=number, consumers=0, path=(*kept["path"].split(), node), **about)


def _way(path: Sequence[str]) -> str:
    """The way from a queue of a further node to the peer, as it is kept; empty: the queue is the peer's own."""
    return " ".join(path[:-1])


def _key(link: abc.StoreAndForwardQueue) -> bytes:
    return link.number.to_bytes(8, "big")


def _filters(texts: Sequence[str]) -> tuple[Filter, ...]:
    try:
        return tuple(map(parse_filter, texts))
    except SettingsError:
        # The other node's language has grown: whatever comes may be wanted there.
        return ()
