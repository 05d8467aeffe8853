"""Messages that wait for a node which has left and had handed over all that it held: they are routed anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio

from meshq.abc import PeerQueues, StoreAndForwardQueue
from meshq.concurrency import Wakeup
from meshq.errors import MeshqError

#: Seconds before messages are routed anew again that had found no room.
PAUSE_S: Final = 1.0


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
        # Whether messages are being routed anew, whether others have come meanwhile, and whether some found no room.
        self._giving = self._again = self._failed = False

    def begin(self, forwarding: StoreAndForwardQueue | None) -> None:
        """Note, also for later lives, that the node has handed over all."""
        self.over = True
        if forwarding is not None:
            self._queues.handed_over(forwarding)

    def pass_on(self, forwarding: StoreAndForwardQueue | None, label: str) -> bool:
        """Route the messages anew that wait for the node, which has stored none of them; return whether to call again
        after a pause instead, since there was no room for them.

        They may come at any time, from nodes that do not know it yet.
        """
        if forwarding is None or not self.over or not forwarding.waiting:
            return False
        if self._giving:
            self._again = True
            return False
        if self._failed:
            self._failed = False
            return True

        def failed(error: MeshqError) -> None:
            text = f"what waits for {label}, which has handed all over, stays: {error}"
            self._warn("peer_not_given_back", text, label)
            self._giving, self._failed = False, True
            self._changed()

        def done(moved: int) -> None:
            self._giving = False
            if self._again:
                self._changed()

        self._giving, self._again = True, False
        self._queues.give_back(forwarding, done, failed)
        return False


class SucceededPeer(Protocol):
    """A peer, as far as its node may be gone with a successor."""

    def pass_on(self) -> bool:
        """Route the messages anew that wait for the node, if it has a successor; return whether to call again after a
        pause instead."""


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
            later = [peer.pass_on() for peer in self._peers()]
            with trio.move_on_after(PAUSE_S if any(later) else math.inf):
                await self.look.wait()
