"""A backup that hands everything over to another node, and the primary that comes back meanwhile or later."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from meshq.concurrency import ChangeSignal
from meshq.ha.replication.meeting._standpoints import CLAIMED, PRIMARY
from meshq.wire import Log


class HandingOn:
    """The knowledge of a node about a store that it hands on, beyond one term.

    ``followed``: whether a primary follows.  ``patience_s``: seconds in which a primary that waits for this node
    begins to follow it.
    """

    def __init__(self, followed: Callable[[], bool], changed: ChangeSignal, patience_s: float) -> None:
        self._followed = followed
        self._changed = changed
        self._patience_s = patience_s
        #: Whether the store was handed over, and nothing has come in since.
        self.emptied: bool = False
        #: Whether a primary has said, as the nodes met last, that it waits.
        self.awaited: bool = False

    @property
    def nobody_needs_it(self) -> bool:
        """Whether the store is empty, and no primary waits for a node that serves."""
        return self.emptied and not self.awaited

    def hear(self, waiting: Iterable[Log]) -> None:
        """Note the answers of the other nodes that wait, as the nodes have met."""
        self.awaited = any(one.flags & PRIMARY and one.epoch < CLAIMED for one in waiting)

    async def keep(self) -> None:
        """Wait while a primary follows, or may begin to: it gets the store, so nothing is handed over.

        Checkpoint: always.
        Cancellation: nothing changes.
        """
        await trio.lowlevel.checkpoint()
        if not self.awaited:
            return
        until = trio.current_time() + self._patience_s
        while self._followed() or trio.current_time() < until:
            with trio.move_on_at(max(until, trio.current_time() + self._patience_s)):
                await self._changed.wait()
        self.awaited = False
