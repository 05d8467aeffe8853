"""One node of the simulated mesh: a broker with links to the others."""

from __future__ import annotations

from typing import Final

from meshq.client import Client, connect
from meshq.cluster import ClusterConnection
from meshq.node import Broker
from meshq.settings import JournalSettings
from meshq.testing._history import History
from meshq.testing._node import SimNode
from meshq.testing._scenario_broker import DIRECTORY, MEMORY_BYTES, SEGMENT_BYTES, STOP_S, BrokerNode
from meshq.testing._swarm import Swarm
from meshq.testing._workload import ADDRESSES, SETTINGS

NODES: Final = ("a", "b", "c")
URLS: Final = {name: f"tcp://{name}:5000?insecure=true" for name in NODES}
#: The mode of a seed's links is one of these.
MODES: Final = ("on_demand", "on_demand", "strict")


class MeshNode(BrokerNode):
    """A broker of the mesh over all its lives."""

    def __init__(self, node: SimNode, history: History, swarm: Swarm, mode: str) -> None:
        super().__init__(node, history, swarm)
        self.rng = swarm.rng(f"broker process/{node.name}")
        self.mode = mode

    @property
    def place(self) -> str:
        """The node's name."""
        return self.node.name

    def make(self) -> Broker:
        """The broker of this life."""
        name = self.place
        links = {key: value for key, value in SETTINGS.items() if key != "insecure"}
        mesh = ClusterConnection(
            "mesh",
            connector=name,
            static_connectors=[other for other in NODES if other != name],
            load_balancing=self.mode,
            user="mesh",
            password="the mesh's own",
            **links,
        )
        return Broker(
            name,
            data_dir=DIRECTORY,
            journal=JournalSettings(segment_bytes=SEGMENT_BYTES),
            acceptors=[f"tcp://{name}:5000?insecure=true"],
            connectors=URLS,
            services=[mesh],
            queues=[address for address, queues in ADDRESSES.items() if len(queues) == 1],
            memory_limit=MEMORY_BYTES,
            stop_timeout=STOP_S,
            env=self.node.env,
        )

    def dial(self, machine: SimNode) -> Client:
        """A client of this node, on another machine."""
        return connect(f"tcp://{self.place}:5000", env=machine.env, client_id=machine.name, **SETTINGS)
