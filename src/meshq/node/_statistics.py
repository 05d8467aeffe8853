"""What a broker says of itself."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from meshq.logs import logger

_log = logger("node")
#: How often the loop's lag is looked at, and from which lag on somebody should know.
LAG_INTERVAL_S = 1.0
LAG_WARNING_S = 1.0
#: A warning that repeats is given so often at most.
_REPEAT_S = 60.0


@attrs.frozen(kw_only=True)
class BrokerStatistics:
    """A broker at one moment; times in seconds, sizes in bytes."""

    name: str
    state: str
    #: Whether anything survives the process.
    durable: bool
    addresses: int
    queues: int
    consumers: int
    sessions: int
    connections: int
    #: Messages that wait, and messages that are with consumers.
    ready: int
    delivering: int
    #: Repeats of known duplicate ids; messages sent where no queue listened.
    duplicates: int
    unrouted: int
    #: Messages that were dropped because their address was full; producers that wait for room at theirs.
    dropped: int
    blocked_producers: int
    #: Messages whose content is on the disk only, and the bytes of that; bytes that were paged and read back so far.
    paged: int
    paged_bytes: int
    page_writes: int
    page_reads: int
    memory_used: int
    memory_limit: int
    #: Sessions that wait for memory before they may send.
    blocked_sessions: int
    sessions_resumed: int
    sessions_expired: int
    connections_accepted: int
    #: Connections that were closed because they broke the protocol.
    violations: int
    connections_denied: int
    connections_turned_away: int
    #: Requests of users who lacked a permission.
    requests_forbidden: int
    #: Notifications that a subscription to them did not get, because it had too many.
    notifications_dropped: int
    #: How much later than it should the loop came back to us, at the last look.
    loop_lag: float
    #: The journal's own statistics; None in memory only.
    journal: Any


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
