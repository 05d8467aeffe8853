"""The settings of the demo's processes: one shared queue, a cluster of nodes, clients that wait for a killed node."""

from __future__ import annotations

from typing import Any, Final

from meshq.demo._page_format import LARGE_BYTES

QUEUE: Final = "flights"
#: A broker that was killed is back within a second or so: ask often.  Nobody gives up before the demo does.
CLIENT: Final[dict[str, Any]] = {
    "retry_interval": 0.05,
    "retry_interval_multiplier": 1.5,
    "max_retry_interval": 0.25,
    "initial_connect_attempts": 20,
    "call_failover_timeout": 120,
    # Each worker belongs to one node, and waits for it, unless it roams.
    "use_topology": False,
    "min_large_message_size": LARGE_BYTES,
}
#: The last argument of a consumer that goes on at another node when its own one is gone, and of one that waits for it.
ROAMS: Final = "roams"
STAYS: Final = "stays"
#: The cluster connection of each node, and the name by which a node calls its own address in it.
CLUSTER: Final = "mesh"
CONNECTOR: Final = "here"
#: The links' own: they know each other by more than what everybody knows, and look often for a node that was killed.
LINKS: Final[dict[str, Any]] = {
    "load_balancing": "on_demand",
    "user": "demo",
    "password": "flights",
    "retry_interval": 0.05,
    "retry_interval_multiplier": 1.5,
    "max_retry_interval": 0.25,
}


def node_name(number: int) -> str:
    """Return the name of a node; the numbers begin at 1."""
    return f"node-{number}"
