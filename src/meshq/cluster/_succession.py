"""Messages that wait for a node which has left and had handed over all that it held: they are routed anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from meshq.abc import PeerQueues, StoreAndForwardQueue
from meshq.concurrency import Wakeup
from meshq.errors import MeshqError


class Succession:
    """The state of a node that another one has succeeded, for the peer of that node.

    ``warn``: event, text and cause.
    """

    def __init__(self, queues: PeerQueues, changed: Callable[[], None], warn: Callable[[str, str, str], None]) -> None:
        self._queues = queues
        self._changed = changed
        self._warn = warn
        #: Whether the node has handed over all, so that it stores nothing that waits for it.
        self.over: bool = False
        # Whether messages are being routed anew, and whether others have come meanwhile.
        self._giving = self._again = False

    def begin(self, forwarding: StoreAndForwardQueue | None) -> None:
        """Note, also for later lives, that the node has handed over all."""
        self.over = True
        if forwarding is not None:
            self._queues.handed_over(forwarding)

    def pass_on(self, forwarding: StoreAndForwardQueue | None, label: str) -> None:
        """Route the messages anew that wait for the node, which has stored none of them.

        They may come at any time, from nodes that do not know it yet.
        """
        if forwarding is None or not self.over or not forwarding.waiting:
            return
        if self._giving:
            self._again = True
            return

        def failed(error: MeshqError) -> None:
            text = f"what waits for {label}, which has handed all over, stays: {error}"
            self._warn("peer_not_given_back", text, label)
            self._giving = False

        def done(moved: int) -> None:
            self._giving = False
            if self._again:
                self._changed()

        self._giving, self._again = True, False
        self._queues.give_back(forwarding, done, failed)


class SucceededPeer(Protocol):
    """A peer, as far as its node may be gone with a successor."""

    def pass_on(self) -> None:
        """Route the messages anew that wait for the node, if it has a successor."""


class Successions:
    """The task that looks after all peers whenever messages wait for one of them.

    ``prefix``: how the names of their store-and-forward queues begin.
    """

    def __init__(self, prefix: str, peers: Callable[[], Iterable[SucceededPeer]]) -> None:
        self._prefix = prefix
        self._peers = peers
        #: The wakeup of the task.
        self.look: Wakeup = Wakeup()

    def has_more(self, queue: str) -> None:
        """Note that messages wait in a queue."""
        if queue.startswith(self._prefix):
            self.look.wake()

    async def run(self) -> None:
        """Look whenever something has changed.

        Checkpoint: always.
        Cancellation: what was begun goes on.
        """
        while True:
            self.look.clear()
            for peer in self._peers():
                peer.pass_on()
            await self.look.wait()
