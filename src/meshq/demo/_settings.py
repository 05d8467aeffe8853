"""How the processes of the demo come together: one queue, and clients that wait for a broker that was killed."""

from __future__ import annotations

from typing import Any, Final

QUEUE: Final = "flights"
#: A broker that was killed is back within a second or so: ask often.  Nobody gives up before the demo does.
CLIENT: Final[dict[str, Any]] = {
    "retry_interval": 0.05,
    "retry_interval_multiplier": 1.5,
    "max_retry_interval": 0.25,
    "initial_connect_attempts": 20,
    "call_failover_timeout": 120,
}
