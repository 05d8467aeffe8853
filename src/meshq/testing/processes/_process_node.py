"""The process of a node of ``meshq_process_cluster``: a broker that says how it is, and ends with its test.

Its argument is a JSON object: the node's ``name``, the ``directory`` of its store, the ``urls`` of all nodes by their
names, the ``acceptor`` at which it listens itself, ``routes``, the ports at which a proxy stands for other ports, the
names of ``queues``, ``ha``, how nodes have backups, and the ``witnesses`` of a quorum.  It writes ``{}`` once it is
active or waits, and its view for each line that it reads; when nothing more can be read, the test is over, or has died,
and the node stops.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import attrs
import trio

from meshq.abc import Listener, Network, QuorumSession, Stream
from meshq.cluster import ClusterConnection
from meshq.env import real_env
from meshq.errors import MeshqError
from meshq.ha.quorum import node_id_of
from meshq.node import Broker
from meshq.settings import AddressSettings
from meshq.testing.kit._pairs import ha_settings, link_settings, standing_of, store_of
from meshq.testing.kit._views import view_of
from meshq.testing.processes._process_quorum import quorum_of

#: The name of the cluster connection, and its credentials.
CLUSTER = "cluster"


class RoutedNetwork(Network):
    """The real network, with the ports of a proxy in the place of others."""

    def __init__(self, network: Network, routes: Mapping[int, int]) -> None:
        self._network = network
        self._routes = routes

    async def connect(self, host: str, port: int) -> Stream:
        return await self._network.connect(host, self._routes.get(port, port))

    async def listen(self, host: str, port: int) -> Listener:
        return await self._network.listen(host, port)


def broker_of(settings: Mapping[str, Any]) -> Broker:
    """Make the broker of a node."""
    name, urls, ha = settings["name"], settings["urls"], settings["ha"]
    connection = ClusterConnection(
        CLUSTER,
        connector=name,
        static_connectors=[other for other in urls if other != name],
        user=CLUSTER,
        password=CLUSTER,
        **link_settings(ha),
    )
    quorum = quorum_of(settings["witnesses"]) if settings["witnesses"] else None
    env = real_env()
    routes = {int(port): proxy for port, proxy in settings["routes"].items()}
    return Broker(
        name,
        data_dir=settings["directory"],
        acceptors=[settings["acceptor"]],
        connectors=urls,
        services=[connection],
        queues=settings["queues"],
        address_settings={"#": AddressSettings(redistribution_delay=0.0)},
        env=attrs.evolve(env, network=RoutedNetwork(env.network, routes)),
        **ha_settings(name, ha, quorum),
    )


async def _standing(session: QuorumSession | None, name: str) -> str:
    """Return ``newest`` or ``older`` for the copy of a node, by the record of the quorum; nothing without one."""
    if session is None:
        return ""
    try:
        return standing_of(await session.read(), name)
    except MeshqError:
        # Without an answer nobody knows.
        return standing_of(None, name)


async def serve(settings: Mapping[str, Any]) -> None:
    """Run the node until its test is over.  Checkpoint: always.  Cancellation: ends the node.

    Raises:
        MeshqError: the broker has failed.
    """
    broker, name = broker_of(settings), settings["name"]
    names = {one: one for one in settings["urls"]}
    async with AsyncExitStack() as stack:
        session = None
        if settings["witnesses"]:
            quorum = quorum_of(settings["witnesses"])
            place = quorum.session(node_id_of(store_of(name)), os.urandom(16))
            session = await stack.enter_async_context(place)
        await stack.enter_async_context(broker)
        asked = await stack.enter_async_context(trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())))
        _say({})
        while question := await asked.receive_some():
            for _ in range(question.count(b"\n")):
                view = view_of(broker, name, broker.state, names)
                _say(attrs.asdict(attrs.evolve(view, copy=await _standing(session, name))))


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(serve, json.loads(sys.argv[1]))
