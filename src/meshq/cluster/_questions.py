"""The questions of a cluster connection: which nodes there are, and the way over links to ask one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from meshq.abc import QUESTION_HOPS_MAX, ClusterMember, LocalBroker, NodeQuestions
from meshq.client import ClusterQueue, cluster_queue
from meshq.cluster._peer import Peer
from meshq.cluster._settings import ClusterSettings
from meshq.cluster._stuck_plan import Cause
from meshq.cluster._stuck_watch import StuckWatch
from meshq.cluster._topology import ClusterTopology
from meshq.cluster.grouping import Grouping
from meshq.errors import BrokenError, BusyError, CallTimeoutError, MeshqError, NotActiveError, NotFoundError, caused
from meshq.statistics import StuckMessages
from meshq.wire import encode_map

#: Seconds after which a node that has not answered is said not to answer.
PATIENCE_S: Final = 5.0
#: Questions that are under way at once; further ones are refused.
QUESTIONS_MAX: Final = 64


class Questions(NodeQuestions):
    """The nodes of a cluster connection, and the questions to these that are under way."""

    def __init__(
        self,
        settings: ClusterSettings,
        peers: Callable[[], Sequence[Peer]],
        topology: ClusterTopology,
        *,
        warn: Callable[[str, str, str], None],
    ) -> None:
        self._settings = settings
        self._peers = peers
        self._topology = topology
        self._warn = warn
        #: Decides about the pins of message groups; None: nobody does.
        self.grouping: Grouping | None = None
        #: Looks for stuck messages; None: nothing does.
        self.watch: StuckWatch | None = None
        # By the id of a node the state in which it was last seen, and since when it is so.
        self._since: dict[bytes, tuple[str, float]] = {}
        self._nursery: trio.Nursery | None = None
        self._open = 0

    def begin(self, nursery: trio.Nursery, broker: LocalBroker) -> None:
        """Ask from now on, and look for stuck messages, in tasks of a nursery."""
        self._nursery = nursery
        broker.answers.add(self._settings.name, self)
        if self._settings.stuck_timeout < math.inf:
            self.watch = watch = StuckWatch(
                self._settings.stuck_timeout,
                broker.held,
                self,
                takes=self._settings.takes,
                keeps_group=self._keeps_group,
                notifications=broker.notifications,
                warn=self._warn,
            )
            nursery.start_soon(watch.run)

    def _keeps_group(self, queue: str, group: str, node: str) -> Cause | None:
        return self.grouping.keeps(queue, group, node) if self.grouping is not None else None

    def end(self, broker: LocalBroker) -> None:
        """Ask nothing more."""
        broker.answers.drop(self._settings.name)
        self._nursery = self.watch = None

    def stuck(self) -> Sequence[Mapping[str, Any]]:
        return [one.row() for one in self.found()]

    def found(self) -> tuple[StuckMessages, ...]:
        """Return the messages that were stuck at the last look."""
        return tuple(self.watch.stuck()) if self.watch is not None else ()

    async def queue(self, broker: LocalBroker, name: str) -> ClusterQueue:
        """Return the queue of a name on all nodes of the broker's clusters.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: no queue can have that name.
        """
        return await cluster_queue(broker.answers.ask, name)

    def note(self) -> None:
        """Compare the states of the nodes with the states seen last."""
        now = trio.current_time()
        for peer in self._peers():
            if peer.node_id and peer.state != "spare" and self._since.get(peer.node_id, ("", 0.0))[0] != peer.state:
                self._since[peer.node_id] = peer.state, now

    def nodes(self) -> int:
        """The number of nodes that messages may go to, and this node."""
        found = {peer.node_id for peer in self._peers() if peer.connected}
        if self._settings.max_hops > 1:
            found |= self._behind().keys()
        return len(found) + 1

    def members(self) -> Sequence[ClusterMember]:
        self.note()
        found: dict[bytes, ClusterMember] = {}
        for peer in self._peers():
            if peer.node_id and peer.state != "spare" and peer.node_id != self._topology.own.node_id:
                found[peer.node_id] = self._linked(peer)
        for node_id, (name, distance) in self._behind().items():
            known = found.get(node_id)
            if known is None or known.state != "linked":
                found[node_id] = _behind(node_id, name, distance)
        for told in self._topology.nodes()[1:]:
            about = told.about
            found.setdefault(about.node_id, self._told(about.node_id, about.name))
        return list(found.values())

    def _linked(self, peer: Peer) -> ClusterMember:
        now = trio.current_time()
        state, since = self._since[peer.node_id]
        heard = peer.link.heard_at if peer.link is not None and state == "linked" else since
        distance = 1 if state == "linked" else 0
        return ClusterMember(
            node_id=peer.node_id, name=peer.name, state=state, distance=distance, age=max(0.0, now - heard)
        )

    def _told(self, node_id: bytes, name: str) -> ClusterMember:
        """A node of which others tell: it will be dialed, unless the settings forbid that."""
        state = "behind" if self._settings.allow_direct_connections_only else "connecting"
        return attrs.evolve(_behind(node_id, name, 0), state=state)

    def _behind(self) -> dict[bytes, tuple[str, int]]:
        """The nodes to which messages go through others: the name of each, and the links to there."""
        found: dict[bytes, tuple[str, int]] = {}
        for peer in self._peers():
            if peer.connected:
                for queue in peer.queues():
                    node_id = bytes.fromhex(queue.node_id)
                    known = found.get(node_id)
                    if queue.distance > 1 and (known is None or queue.distance < known[1]):
                        found[node_id] = queue.node_name, queue.distance
        return found

    def pin_groups(self, letter: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.grouping is None or not self.grouping.serves:
            # It is set up so for all of its life: whoever waits for it would wait in vain.
            return {"alone": True}
        return self.grouping.hear(letter)

    # -- asking

    def ask(
        self,
        node_id: bytes,
        operation: str,
        arguments: Mapping[str, Any],
        done: Callable[[Mapping[str, Any]], None],
        failed: Callable[[MeshqError], None],
        hops: int = QUESTION_HOPS_MAX,
    ) -> None:
        nursery = self._nursery
        if nursery is None:
            failed(NotActiveError("the cluster connection is not served"))
            return
        if self._open >= QUESTIONS_MAX:
            failed(BusyError(f"{QUESTIONS_MAX} questions to other nodes are under way"))
            return
        way = self._way(node_id)
        if way is None or (way.node_id != node_id and hops <= 1):
            failed(NotFoundError("no link of this node that is up leads there"))
            return
        if way.node_id != node_id:
            inner = encode_map(dict(arguments))
            about = {"node_id": node_id.hex(), "question": operation, "arguments": inner, "hops": hops - 1}
            operation, arguments = "ask_node", about
        self._open += 1
        nursery.start_soon(self._ask, way, (operation, arguments), done, failed)

    def _way(self, node_id: bytes) -> Peer | None:
        """The linked node that is asked, or that asks the next one on the way."""
        linked = {peer.node_id: peer for peer in self._peers() if peer.connected}
        if node_id in linked:
            return linked[node_id]
        shortest, found = math.inf, None
        for peer in linked.values():
            for queue in peer.queues():
                if queue.node_id == node_id.hex() and queue.distance < shortest:
                    shortest, found = queue.distance, peer
        if found is None:
            found = self._told_way(node_id, linked)
        return found

    def _told_way(self, node_id: bytes, linked: Mapping[bytes, Peer]) -> Peer | None:
        """The linked node that is linked with another one, or that has told of it."""
        told = {one.about.node_id: one for one in self._topology.nodes()}
        seen: dict[bytes, None] = {}
        while node_id in told and node_id not in seen:
            seen[node_id] = None
            node_id = told[node_id].witness
            if node_id in linked:
                return linked[node_id]
        return None

    async def _ask(
        self,
        peer: Peer,
        question: tuple[str, Mapping[str, Any]],
        done: Callable[[Mapping[str, Any]], None],
        failed: Callable[[MeshqError], None],
    ) -> None:
        error: MeshqError = NotActiveError("the node stops")
        values: Mapping[str, Any] | None = None
        try:
            with trio.move_on_after(PATIENCE_S) as scope:
                link = peer.link
                if link is None:
                    error = caused(BrokenError(f"{peer.label} is not linked"), peer.error)
                else:
                    values = await link.ask(*question)
            if scope.cancelled_caught:
                late = TimeoutError(f"waited {PATIENCE_S:g} s for {peer.label}")
                error = caused(CallTimeoutError(f"there is no answer after {PATIENCE_S:g} s"), late)
        except MeshqError as found:
            error = found
        finally:
            self._open -= 1
            if values is not None:
                done(values)
            else:
                failed(error)


def _behind(node_id: bytes, name: str, distance: int) -> ClusterMember:
    return ClusterMember(node_id=node_id, name=name, state="behind", distance=distance, age=math.inf)
