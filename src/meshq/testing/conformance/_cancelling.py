"""Cancel a call at each of its checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

#: Checkpoints of one call that are examined at most; a call that ends has fewer.
CHECKPOINTS_MAX: Final = 64


class _CancelAtCheckpoint(trio.abc.Instrument):
    def __init__(self, scope: trio.CancelScope, checkpoint: int) -> None:
        self._scope = scope
        self._task = trio.lowlevel.current_task()
        self._left = checkpoint

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if not self._left:
                self._scope.cancel()


async def is_cancelled(call: Callable[[], Awaitable[object]], *, checkpoint: int) -> bool:
    """Cancel a call at one of its checkpoints.  Return whether the call was cancelled; otherwise the call has ended.

    ``checkpoint``: the first one is 1; 0: the call is cancelled before it begins.

    The call is cancelled by an instrument, because the order of tasks is random: another task that cancels would reach
    a different checkpoint each time.

    Checkpoint: as the call.
    Cancellation: ends the call.
    """
    with trio.CancelScope() as scope:
        if not checkpoint:
            scope.cancel()
        instrument = _CancelAtCheckpoint(scope, checkpoint)
        trio.lowlevel.add_instrument(instrument)
        try:
            await call()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught
