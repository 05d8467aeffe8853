"""A node of the mesh that the query reads."""

from __future__ import annotations

from meshq.cluster import ClusterConnection
from meshq.demo._parent import Parent
from meshq.demo._report_format import Ready
from meshq.demo._settings import CLUSTER, CONNECTOR, LINKS, node_name
from meshq.demo._sparked._settings import QUEUES
from meshq.node import Broker


async def run_mesh_node(parent: Parent, data_dir: str, number: str, *ports: str) -> None:
    """Serve until the parent has had enough; ``ports``: those of all nodes."""
    urls = [f"tcp://127.0.0.1:{port}" for port in ports]
    own = urls.pop(int(number) - 1)
    mesh = ClusterConnection(CLUSTER, connector=CONNECTOR, static_connectors=urls, **LINKS)
    broker = Broker(
        node_name(int(number)),
        data_dir=data_dir,
        acceptors=[own],
        connectors={CONNECTOR: own},
        queues=list(QUEUES),
        services=[mesh],
    )
    async with broker:
        await broker.cluster(CLUSTER).wait_for(nodes=len(ports))
        await parent.say(Ready(broker.urls[0]))
        while await parent.hear() is not None:
            pass
