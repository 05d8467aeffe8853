"""The brokers of the network: which there are, who dials whom, and each as a process."""

from __future__ import annotations

from typing import Any, Final

from meshq.demo._parent import Parent
from meshq.demo._report_format import Ready
from meshq.network import NetworkConnector, Queues
from meshq.node import Broker

HUB_EAST: Final = "hub-east"
HUB_WEST: Final = "hub-west"
#: By spoke the hub that it dials.
SPOKES: Final = {
    "east-1": HUB_EAST,
    "east-2": HUB_EAST,
    "west-1": HUB_WEST,
    "west-2": HUB_WEST,
    "west-3": HUB_WEST,
}
#: From spoke to hub, to hub, to spoke.
HOPS_MAX: Final = 3
PREFIX: Final = "DEPARTURES"
LINK: Final[dict[str, Any]] = {"retry_interval": 0.1, "max_retry_interval": 0.25}


def queue_of(origin: str) -> str:
    """Return the queue for the departures of an airport."""
    return f"{PREFIX}.{origin}"


async def run_network_broker(parent: Parent, data_dir: str, name: str, port: str, other: str) -> None:
    """Be a broker of the network until the parent says nothing more; ``other``: the URL that it dials, or nothing."""
    wanted = [Queues(f"{PREFIX}.>")]
    connectors = [
        NetworkConnector(
            "onward",
            f"static:({url})",
            duplex=True,
            network_ttl=HOPS_MAX,
            dynamically_included=wanted,
            **LINK,
        )
        for url in (other,)
        if url
    ]
    broker = Broker(name, data_dir=data_dir, acceptors=[f"tcp://127.0.0.1:{port}"], services=connectors)
    async with broker:
        await parent.say(Ready(url=broker.urls[0]))
        while await parent.hear() is not None:
            pass
