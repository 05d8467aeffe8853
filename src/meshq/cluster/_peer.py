"""A peer: one other node of a cluster, its queues, and the messages that wait here for it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from meshq.abc import ForwardRun, KnownPeer, LocalBroker, RemoteQueue, StoreAndForwardQueue
from meshq.client import ForwardedRun, PeerLink
from meshq.cluster._settings import ClusterSettings
from meshq.errors import MeshqError, RefusedError, invariant
from meshq.logs import logger
from meshq.notifications import NodeJoined, NodeLeft
from meshq.wire import Binding, LinkOpening, RunBytes

_log: Final = logger("cluster")

#: Queues of one node that are known at most.
BINDINGS_MAX: Final = 2**17
#: How a log says of a node in what way it is gone.
_GONE: Final = {"left": "has left", "away": "is away"}


class RedundantLinkError(RefusedError):
    """The node is already linked by another connector; this connector is used when the other one fails."""


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
        warn: Callable[[str, str, str], None],
    ) -> None:
        self._settings = settings
        self._broker = broker
        self.url: str = url
        self._changed = changed
        # Which of a connection's peers reads the queue for a node: two that read it would make gaps in its numbers.
        self._claims = claims
        # Event, text and cause.
        self._warn = warn
        #: The link, set once after both are made.
        self.link: PeerLink | None = None
        #: The other node; empty before the first link.
        self.node_id = b""
        #: Whether the node's queues are known.
        self.known = False
        # Whether all queues were described in this session.
        self._described = False
        # What it had stored of the link when this session began, what it calls its store, and its features; None: it
        # has not said so.
        self._opened: tuple[int, bytes, tuple[str, ...]] | None = None
        #: ``connecting``, ``linked``, ``spare``, ``left``, ``away`` or ``down``.
        self.state = "connecting"
        #: The last error; None: no error so far.
        self.error: MeshqError | None = None
        self._name = ""
        # Whether a durable queue of the node was known when the last session ended, or before the restart.
        self._had_durable = False
        self._called = trio.Event()
        self._forwarding: StoreAndForwardQueue | None = None
        self._queues: dict[int, RemoteQueue] = {}
        # Runs given to the link: the last link number of each, and its tags.
        self._under_way: deque[tuple[int, int, int]] = deque()

    @property
    def connected(self) -> bool:
        """Whether the node is connected and its queues are known."""
        return self.known and self.link is not None and self.link.connected

    @property
    def waiting(self) -> int:
        """The number of messages that wait here for the node."""
        return self._forwarding.waiting if self._forwarding is not None else 0

    @property
    def needed(self) -> bool:
        """Whether the connector is needed, also when no announcement names it any more.

        It is needed while the node is connected there, while messages wait here for the node, and while a durable queue
        of the node is known.
        """
        durable = self._has_durable() if self.known else self._had_durable
        return self.connected or (self._forwarding is not None and (durable or self.waiting > 0))

    def _has_durable(self) -> bool:
        return any(queue.durable for queue in self._queues.values())

    def consumers(self, queue: str) -> int:
        """Return the number of known consumers of a queue on the node."""
        return sum(remote.consumers for remote in self._queues.values() if remote.name == queue)

    # -- what comes over the link

    def opening(self, node_id: bytes) -> LinkOpening:
        """Open the link in a new session with a node.

        Raises:
            RedundantLinkError: the node is linked by another connector.
        """
        control = self._broker.control
        self._let_go()
        self._forget_session()
        if self.state == "linked":
            # Another life of it, perhaps: what it has is known with its snapshot.
            self.state = "connecting"
        self._queues.clear()
        if self._forwarding is None or self._claims.get(node_id) is not self:
            self._lead_to(node_id)
        number = self._forwarding.number if self._forwarding is not None else 0
        return LinkOpening(
            link=hashlib.sha256(control.store + number.to_bytes(8, "big")).digest()[:16],
            node_id=control.node_id,
            instance=control.instance,
            node_name=control.name,
            connector=control.connectors.get(self._settings.connector, ""),
        )

    def _lead_to(self, node_id: bytes) -> None:
        """Switch to another node at the same URL, or back to a node that was given up."""
        self._yield()
        self._had_durable = False
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
            self.error, self.state = RedundantLinkError(text), "spare"
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
        self._had_durable = True
        if former.left:
            self.state = "left"

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
        if binding.gone:
            self._queues.pop(binding.queue, None)
            if self.known:
                self._broker.routes.remove(forwarding, binding.queue)
        elif self._settings.takes(binding.address):
            if binding.queue not in self._queues and len(self._queues) >= BINDINGS_MAX:
                text = f"{self.label} has more than {BINDINGS_MAX:,} queues: no messages are sent to the others"
                self._warn("peer_queues", text, self.node_id.hex())
                return
            queue = RemoteQueue(
                number=binding.queue,
                name=binding.name,
                address=binding.address,
                routing=binding.routing,
                consumers=binding.consumers,
                filters=binding.filters,
                filter=binding.filter,
                durable=binding.durable,
                features=self._opened[2] if self._opened is not None else (),
            )
            self._queues[queue.number] = queue
            if self.known:
                self._broker.routes.describe(forwarding, self._settings.load_balancing, queue)
        self._changed()

    def snapshot(self) -> None:
        """Handle the end of a snapshot: the described queues replace the known ones."""
        self._described = True
        self._begin()

    def opened(self, number: int, store: bytes, features: Sequence[str]) -> None:
        """Handle that the other node has accepted the link and has stored everything up to ``number``."""
        self._opened = number, store, tuple(features)
        self._begin()

    def _begin(self) -> None:
        """Start to send waiting messages, once the other node's queues and its stored position are known."""
        forwarding = self._forwarding
        if forwarding is None or self._opened is None or not self._described:
            return
        number, store, features = self._opened
        self.known = True
        self._queues = {one.number: attrs.evolve(one, features=features) for one in self._queues.values()}
        self._broker.routes.replace(forwarding, self._settings.load_balancing, list(self._queues.values()), store)
        self._broker.peers.met(forwarding, self.url)
        self._broker.routes.mark(forwarding, "")
        forwarding.attach(self._take, number)
        _log.info("the queues of %s are known", self.label, extra={"event": "peer_known"})
        self._become("linked")

    def stored(self, number: int) -> None:
        """Acknowledge the messages up to ``number``, which the other node has stored."""
        under_way, forwarding = self._under_way, self._forwarding
        while under_way and under_way[0][0] <= number and forwarding is not None:
            _, first, last = under_way.popleft()
            forwarding.done(first, last)

    def refused(self, error: MeshqError) -> None:
        """Handle that the other node refuses the link."""
        self.error = error
        self._warn("peer_refused", f"the link to {self.label} is refused: {error}", self.node_id.hex())

    def parted(self, how: str, error: MeshqError) -> None:
        """Handle that the node has left or is away: messages that other nodes can take are no longer sent to it."""
        self.end()
        if how == "away" and self.state in ("left", "down"):
            # It is no less gone for not being there.
            return
        self.error = error
        if how != self.state:
            _log.info("%s %s: %s", self.label, _GONE[how], error, extra={"event": f"peer_{how}"})
        if self._forwarding is not None:
            self._broker.routes.mark(self._forwarding, how)
        self._become(how)

    def _become(self, state: str) -> None:
        before, self.state = self.state, state
        # What a spare meets says nothing of the node.
        if before != state and self._claims.get(self.node_id) is self:
            about = {"node_id": self.node_id.hex(), "node_name": self.name}
            if state == "linked":
                self._broker.notifications.emit(NodeJoined, **about)
            else:
                self._broker.notifications.emit(NodeLeft, reason=state, successor="", **about)
        self._changed()

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
        run = ForwardedRun(
            number=held.number,
            step=held.step,
            stride=held.stride,
            content=RunBytes(held.rows, held.table, 0, held.body),  # type: ignore[arg-type]
            address=held.address,
            producer=held.producer,
            message=held.message,
            stamp=held.stamp,
            durable=held.durable,
            queues=held.queues,
            topic=held.topic,
            arrival=held.arrival,
            waited=held.waited,
            origin=held.origin,
        )
        self._under_way.append((run.last, held.tag, held.tag + held.rows - 1))
        link.send(run)

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
        self._let_go()
        self._forget_session()

    def _forget_session(self) -> None:
        if self.known:
            self._had_durable = self._has_durable()
        self.known, self._described, self._opened = False, False, None

    def forget(self, error: MeshqError) -> None:
        """Give the node up after all attempts: no new messages are sent to it before it comes back."""
        self.error = error
        if self._forwarding is not None:
            self._broker.routes.withdraw(self._forwarding)
        self._become("down")
