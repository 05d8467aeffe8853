"""A peer: one other node of a cluster, its queues, and the messages that wait here for it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import trio

from meshq import abc, limits
from meshq.abc import ForwardRun, KnownPeer, LocalBroker, StoreAndForwardQueue, ToldNode
from meshq.client import PeerLink
from meshq.cluster._described_queues import DescribedQueues
from meshq.cluster._forwarded_run import forwarded_runs
from meshq.cluster._peer_errors import CopiedStoreError, OlderNodeError, RedundantLinkError, UnreadyPeerError
from meshq.cluster._peer_life import new_life
from meshq.cluster._readiness import Readiness
from meshq.cluster._remote_queue import RemoteQueue, described_queue, remote_queue, understood
from meshq.cluster._settings import ClusterSettings
from meshq.cluster._succession import Succession
from meshq.cluster._topology import PeerTopology
from meshq.errors import MeshqError, invariant
from meshq.ids import IDENTITY_BYTES
from meshq.logs import logger
from meshq.notifications import NodeJoined, NodeLeft
from meshq.statistics import BridgeStatistics
from meshq.wire import Binding, LinkOpening, NodeNews, node_news

_log: Final = logger("cluster")

#: How a log says of a node in what way it is gone.
_GONE: Final = {"left": "has left", "away": "is away"}
#: The events of its life cycle.
_EVENTS: Final = {"left": "leave", "away": "lose"}


class Peer:
    """The owner of a link: takes the other node's bindings, and sends the messages of its store-and-forward queue."""

    def __init__(
        self,
        settings: ClusterSettings,
        broker: LocalBroker,
        url: str,
        changed: Callable[[], None],
        claims: dict[bytes, Peer],
        *,
        topology: PeerTopology,
        warn: Callable[[str, str, str], None],
    ) -> None:
        self._settings = settings
        self._broker = broker
        self.url: str = url
        self._changed = changed
        # Which of a connection's peers reads the queue for a node: two that read it would make gaps in its numbers.
        self._claims = claims
        self._topology = topology
        # Event, text and cause.
        self._warn = warn
        #: The link, set once after both are made.
        self.link: PeerLink | None = None
        #: The other node; empty before the first link.
        self.node_id = b""
        #: What it had stored of the link when this session began, what it calls its store, and its features; None: it
        #: has not said so.  Another object in each session.
        self.session: tuple[int, bytes, tuple[str, ...]] | None = None
        self._life = new_life()
        #: The last error; None: no error so far.
        self.error: MeshqError | None = None
        self._name = ""
        # So far in this life: messages that the node has stored, and links that were not used because it is older.
        self._counts: Counter[str] = Counter()
        self._called = trio.Event()
        self._forwarding: StoreAndForwardQueue | None = None
        self._queues = DescribedQueues()
        # Runs given to the link: the last link number of each, and its tags.
        self._under_way: deque[tuple[int, int, int]] = deque()
        self._readiness = Readiness()
        self._succession = Succession(broker.peers, changed, warn)

    @property
    def state(self) -> str:
        """``connecting``, ``linked``, ``spare``, ``left``, ``away`` or ``down``."""
        return self._life.state

    @property
    def known(self) -> bool:
        """Whether the node's queues are known, and how far it has stored the link."""
        return self._queues.complete and self.session is not None and self._forwarding is not None

    @property
    def connected(self) -> bool:
        """Whether the node is connected and its queues are known."""
        return self.known and self.link is not None and self.link.connected

    @property
    def waiting(self) -> int:
        """The number of messages that wait here for the node."""
        return self._forwarding.waiting if self._forwarding is not None else 0

    def count(self, what: str) -> int:
        """Return a counter of this life: ``announced``, or ``large``, the messages whose bodies go in blocks."""
        return self._counts[what]

    def statistics(self) -> BridgeStatistics:
        """Return the link as the bridge that it is."""
        place = self.url.partition("?")[0]
        return BridgeStatistics(
            name=f"{self._settings.name} to {self.name or place}",
            queue=f"{self._settings.prefix}{self.node_id.hex()}" if self._forwarding is not None else "",
            target=place,
            forwarding_address=None,
            state=self._bridge_state,
            carried=self._counts["carried"],
            refused=self._counts["refused"],
            failed=0,
            ended=0,
            rejected=0,
            last_error=str(self.error) if self.error is not None else None,
        )

    @property
    def _bridge_state(self) -> str:
        if self.state != "linked" and isinstance(self.error, OlderNodeError):
            return "waiting"
        return {"linked": "carrying", "down": "waiting"}.get(self.state, "connecting")

    @property
    def needed(self) -> bool:
        """Whether the connector is needed, also when no announcement names it any more.

        It is needed while the node is linked there, while messages wait here for the node, and while a durable queue of
        the node is known.
        """
        durable = self._queues.durable if self.known else self._queues.had_durable
        links = self._claims.get(self.node_id) is self and not self.absent
        return links or (self._forwarding is not None and (durable or self.waiting > 0))

    def queues(self, queue: str | None = None, address: str | None = None) -> list[RemoteQueue]:
        """Return the known queues of the node and behind it, all or of a name or an address, in the order of their
        numbers; none of a node that is gone."""
        return [
            remote_queue(one)
            for one in sorted(self._queues, key=attrgetter("number"))
            if not one.gone and queue in (None, one.name) and address in (None, one.address)
        ]

    # -- what comes over the link

    def opening(self, node_id: bytes) -> LinkOpening:
        """Open the link in a new session with a node.

        Raises:
            RedundantLinkError: the node is linked by another connector.
        """
        control, topology = self._broker.control, self._topology
        own = topology.described_to(node_id)
        self._let_go()
        self._forget_session()
        self._life.on("open")
        # Another life says it anew.
        self._topology.forget_word(self.url)
        self._queues.clear()
        if self._forwarding is None or self._claims.get(node_id) is not self:
            self._lead_to(node_id)
        # Of a link to oneself, which is refused, the name does not matter.
        link = self._forwarding.link if self._forwarding is not None else control.instance
        return LinkOpening(
            link=link,
            node_id=control.node_id,
            instance=control.instance,
            node_name=control.name,
            connector=topology.connector_to(node_id),
            cluster=topology.cluster,
            version=own.version,
            backup=own.backup,
            hops=self._settings.max_hops,
            bounded=True,
        )

    def _lead_to(self, node_id: bytes) -> None:
        """Switch to another node at the same URL, or back to a node that was given up."""
        self._yield()
        self._topology.parted(self.url, "away")
        # What is known of the old node says nothing about this one.
        self._queues.had_durable = self._succession.over = False
        if self._forwarding is not None:
            self._broker.peers.met(self._forwarding, "")
            # The place of the old node is unknown: its messages wait, and no more are dealt to it.
            self._broker.routes.withdraw(self._forwarding)
        self.node_id, self._forwarding = node_id, None
        if node_id == self._broker.control.node_id:
            return
        holder = self._claims.get(node_id)
        if holder is not None and holder.absent:
            holder.move_out()
        if (reached := self._claims.setdefault(node_id, self)) is not self:
            text = f"the connector {self.url} is used when the other one of {reached.label} fails"
            self._warn("peer_twice", text, node_id.hex())
            self._life.on("spare")
            self.error = RedundantLinkError(text)
            raise self.error
        self._forwarding = self._broker.peers.forwarding(f"{self._settings.prefix}{node_id.hex()}")

    @property
    def absent(self) -> bool:
        """Whether the node does not answer at its URL, and may be elsewhere by now."""
        return self.state != "linked" and (self.link is None or not self.link.connected)

    @property
    def spare(self) -> bool:
        """Whether another connector that has not failed links the same node."""
        holder = self._claims.get(self.node_id)
        return holder is not None and not holder.absent

    def move_out(self) -> None:
        """Its node has answered at another URL, and is reached there from here on."""
        self._yield()
        self.node_id, self._forwarding = b"", None

    def was(self, former: KnownPeer) -> None:
        """Restore a node that was linked before the restart."""
        self._lead_to(bytes.fromhex(former.name.removeprefix(self._settings.prefix)))
        self._queues.had_durable = True
        if former.left:
            self._life.on("leave")
        self._succession.over = former.over

    def retire(self) -> None:
        """End the use of the connector for good; another one may lead to its node."""
        self.end()
        self.move_out()

    def _yield(self) -> None:
        if self._claims.get(self.node_id) is self:
            del self._claims[self.node_id]

    def described(self, binding: Binding) -> None:
        """A queue of the other node."""
        forwarding = self._forwarding
        if forwarding is None:
            return
        path = (*binding.path, self.node_id.hex())
        if binding.gone or not self._is_way(path):
            self._queues.drop(binding.queue)
            if self.known:
                self._broker.routes.remove(forwarding, binding.queue)
        elif self._settings.takes(binding.address):
            queue = described_queue(binding, path, self.name)
            if self.session is not None:
                queue = understood(queue, self.session[2])
            refused = self._queues.put(queue)
            if refused:
                text = f"{self.label} has {refused}: no messages are sent to the others"
                self._warn("peer_queues", text, self.node_id.hex())
            if self.known and refused:
                self._broker.routes.remove(forwarding, queue.number)
            elif self.known:
                self._broker.routes.describe(forwarding, self._settings.load_balancing, queue)
        self._changed()

    def _is_way(self, path: tuple[str, ...]) -> bool:
        """Whether messages may pass these nodes on the way to a queue: no node twice, not this node, and no more than
        ``max_hops`` in all."""
        own = self._broker.control.node_id.hex()
        return own not in path and len(set(path)) == len(path) <= self._settings.max_hops

    def snapshot(self) -> None:
        """Handle the end of a snapshot: the described queues replace the known ones.

        Raises:
            UnreadyPeerError: those behind the node are missing.
        """
        self._queues.complete = True
        self._begin()

    def opened(self, number: int, store: bytes, features: Sequence[str]) -> None:
        """Handle that the other node has accepted the link and has stored everything up to ``number``.

        Raises:
            CopiedStoreError: this node has not sent so many messages; the link has another name when it is next opened.
            OlderNodeError: the other node does not understand what waits for it.
            UnreadyPeerError: the queues behind the node are missing.
        """
        forwarding = self._forwarding
        token = self._broker.control.env.entropy.token(IDENTITY_BYTES)
        highest = max([number, *self.link.credits.marks.values()]) if self.link is not None else number
        if forwarding is not None and forwarding.overtaken(highest, token):
            text = f"{self.label} has stored messages of this node up to number {highest}, which it has not sent"
            text = f"{text}: the store here is a copy, or an older one; what waits may be there twice"
            self._warn("store_is_a_copy", text, self.node_id.hex())
            self.error = CopiedStoreError(text)
            raise self.error
        lacking = forwarding.lacking(features) if forwarding is not None else ()
        if lacking:
            self._counts["refused"] += 1
            text = f"{self.label} is older, and does not understand what waits for it ({', '.join(lacking)})"
            text = f"{text}: all of that stays here until it is newer, or until give_back routes it anew"
            self._warn("peer_too_old", text, self.node_id.hex())
            self.error = OlderNodeError(text)
            raise self.error
        self.session = number, store, tuple(features)
        self._begin()

    def told(self, nodes: Sequence[ToldNode]) -> None:
        """Note all nodes that the other node knows now."""
        before = self.word
        self._topology.told(self.url, nodes)
        if self.word != before:
            self._changed()

    def _begin(self) -> None:
        """Start to send waiting messages, once the other node's queues and its stored position are known."""
        forwarding, link = self._forwarding, self.link
        if forwarding is None or link is None or self.session is None or not self._queues.complete:
            return
        number, store, features = self.session
        # Described before the answer to the link, so without its node's features.
        for one in list(self._queues):
            self._queues.put(understood(one, features))
        queues = list(self._queues)
        if self._readiness.lacks(self._broker.routes, forwarding, queues, store):
            self.error = UnreadyPeerError(f"{self.label} has begun anew, and does not know the nodes behind it yet")
            raise self.error
        self._broker.routes.replace(forwarding, self._settings.load_balancing, queues, store, features)
        self._broker.peers.met(forwarding, self.url)
        self._broker.routes.mark(forwarding, "")
        forwarding.attach(self._take, number, self._large_from, link.credits)
        _log.info("the queues of %s are known", self.label, extra={"event": "peer_known"})
        self._topology.met(self.url, self.node_id, self.name)
        self._become("begin")

    def stored(self, number: int) -> None:
        """Acknowledge the messages that were sent up to the run that ends with ``number``: the other node has them."""
        under_way, forwarding, stored = self._under_way, self._forwarding, 0
        while under_way and stored != number and forwarding is not None:
            stored, first, last = under_way.popleft()
            self._counts["carried"] += last - first + 1
            forwarding.done(first, last)

    def announcement(self) -> NodeNews | None:
        """Return how this node describes itself now; None: the other node is older, and takes no announcements."""
        if self.session is None or "announced" not in self.session[2]:
            return None
        self._counts["announced"] += 1
        return node_news(ToldNode(about=self._topology.described_to(self.node_id)))

    def announce(self) -> None:
        """Have the other node hear how this node describes itself now, if it is linked."""
        if self.link is not None:
            self.link.announce()

    def late(self, error: MeshqError) -> None:
        """Give up a session in which the other node leaves a call unanswered."""
        if self.link is not None:
            self.link.give_up(error)

    def refused(self, error: MeshqError) -> None:
        """Handle that the other node refuses the link."""
        self.error = error
        self._topology.parted(self.url, "away")
        self._warn("peer_refused", f"the link to {self.label} is refused: {error}", self.node_id.hex())

    def parted(self, how: str, error: MeshqError) -> None:
        """Handle that the node has left or is away: messages that other nodes can take are no longer sent to it."""
        self._topology.parted(self.url, how)
        self.end()
        if how == "away" and self.state in ("left", "down"):
            # It is no less gone for not being there.
            return
        self.error = error
        if how != self.state:
            _log.info("%s %s: %s", self.label, _GONE[how], error, extra={"event": f"peer_{how}"})
        if self._forwarding is not None:
            self._broker.routes.mark(self._forwarding, how)
        self._become(_EVENTS[how])

    def _become(self, event: str) -> None:
        before, state = self.state, self._life.on(event)
        # What a spare meets says nothing of the node.
        if before != state and self._claims.get(self.node_id) is self:
            about = {"node_id": self.node_id.hex(), "node_name": self.name}
            if state == "linked":
                self._succession.over = False
                self._broker.notifications.emit(NodeJoined, **about)
            elif state == "left" and (word := self.word) is not None and word.successor:
                successor = word.successor.hex()
                self._broker.notifications.emit(NodeLeft, reason="scaled_down", successor=successor, **about)
                self._succession.begin(self._forwarding)
                self.pass_on()
            else:
                self._broker.notifications.emit(NodeLeft, reason=state, successor="", **about)
        self._changed()

    @property
    def word(self) -> abc.NodeDescription | None:
        """The node's last word about itself; None: it has said nothing in its session yet."""
        word = self._topology.word(self.url)
        return word if word is not None and word.node_id == self.node_id else None

    def pass_on(self) -> bool:
        """Route the messages anew that wait here for the node, if it has left and had handed over all; return whether
        to call again after a pause instead.  Given up since, it is no less gone."""
        return self.state in ("left", "down") and self._succession.pass_on(self._forwarding, self.label)

    @property
    def forwarding(self) -> StoreAndForwardQueue | None:
        """The queue of the messages that wait here for the node; None before the first link."""
        return self._forwarding

    @property
    def name(self) -> str:
        """The other node's name; empty before the first link."""
        if self.link is not None and self.link.node_name:
            self._name = self.link.node_name
        return self._name

    @property
    def label(self) -> str:
        """The other node in logs: its name, once known, and its URL."""
        return f"node {self.name} at {self.url}" if self.name else f"the node at {self.url}"

    def _take(self, held: ForwardRun) -> None:
        link = self.link
        invariant(link is not None, "a link that reads a queue exists")
        assert link is not None
        for run in forwarded_runs(held, self._origin_for(held), self._large_from):
            first = held.tag + (run.number - held.number) // held.step
            self._counts["large"] += run.large is not None
            self._under_way.append((run.last, first, first + run.content.rows - 1))
            link.send(run)

    @property
    def _large_from(self) -> int:
        """The bytes of a body above which it goes in blocks; to an older node it goes with its message."""
        taken = self.session is not None and "large" in self.session[2]
        return self._settings.min_large_message_size if taken else limits.MESSAGE_BYTES_MAX

    def unreadable(self, number: int, error: MeshqError) -> None:
        """Give up a message whose body can't be read."""
        for run in self._under_way:
            if run[0] == number and self._forwarding is not None:
                self._under_way.remove(run)
                self._warn("body_unreadable", f"a message for {self.label} stays: {error}", self.node_id.hex())
                self._forwarding.unreadable(run[1])
                return

    def _origin_for(self, held: ForwardRun) -> tuple[str, ...]:
        """Return the origin of a run, if the other node understands origins.

        It may be older by now than when the run was moved here, and no header goes out that it has not asked for.
        """
        features = self.session[2] if self.session is not None else ()
        if not held.origin or "origin" in features:
            return held.origin
        text = f"{self.label} is older, and understands no origins: moved messages lose theirs on the way there"
        self._warn("peer_without_origins", text, self.node_id.hex())
        return ()

    def _let_go(self) -> None:
        """Detach from the queue; unconfirmed messages are sent again in the next session."""
        self._under_way.clear()
        if self._forwarding is not None:
            self._forwarding.detach()

    def call(self) -> None:
        """Try to connect now, because the other node has linked to this node."""
        called, self._called = self._called, trio.Event()
        called.set()
        if self.link is not None:
            self.link.connect_now()

    async def wait_for_call(self, patience_s: float) -> None:
        """Wait until the other node links to this node, at most ``patience_s`` seconds.

        Checkpoint: always.
        Cancellation: nothing has changed.
        """
        with trio.move_on_after(patience_s):
            await self._called.wait()

    def end(self) -> None:
        """End the use of the link; the messages that wait for the other node stay."""
        self._topology.parted(self.url, "away")
        self._let_go()
        self._forget_session()

    def _forget_session(self) -> None:
        if self.known:
            self._queues.had_durable = self._queues.durable
        self._queues.complete, self.session = False, None

    def forget(self, error: MeshqError) -> None:
        """Give the node up after all attempts: no new messages are sent to it before it comes back."""
        self.error = error
        if self._forwarding is not None:
            self._broker.routes.withdraw(self._forwarding)
        self._become("give_up")
