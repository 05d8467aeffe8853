"""The lag of a broker's event loop."""

from __future__ import annotations

import trio

from meshq.logs import logger

_log = logger("node")
#: The period of the lag's measurement, and the lag that is logged as a warning.
LAG_INTERVAL_S = 1.0
LAG_WARNING_S = 1.0
#: A warning that repeats is given so often at most.
_REPEAT_S = 60.0


class LoopLag:
    """Looks how late the event loop comes back: a host that blocks it blocks its broker."""

    def __init__(self) -> None:
        #: At the last look, in seconds.
        self.last = 0.0

    async def watch(self) -> None:
        """Look for ever.

        Checkpoint: always.
        Cancellation: ends it.
        """
        warned, suppressed = -_REPEAT_S, 0
        while True:
            due = trio.current_time() + LAG_INTERVAL_S
            await trio.sleep_until(due)
            self.last = max(0.0, trio.current_time() - due)
            if self.last < LAG_WARNING_S:
                continue
            if due - warned < _REPEAT_S:
                suppressed += 1
                continue
            _log.warning(
                "the event loop was blocked for %.1f s (and %d times more since the last warning)",
                self.last,
                suppressed,
                extra={"event": "loop_lag"},
            )
            warned, suppressed = due, 0
