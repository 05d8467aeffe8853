"""The broker process of the demo, which is killed: a node, alone or in a cluster."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from multiprocessing import connection

import trio

from meshq.abc import Service
from meshq.client import Client
from meshq.cluster import ClusterConnection
from meshq.demo._discovery import discovering
from meshq.demo._parent import Parent
from meshq.demo._report_format import (
    AskNumbers,
    AwaitMesh,
    Freeze,
    Frozen,
    LeaveForGood,
    Left,
    MeshReady,
    Numbers,
    PortTaken,
    Ready,
)
from meshq.demo._settings import CLUSTER, CONNECTOR, LINKS, QUEUE, node_name
from meshq.errors import ConnectionBrokenError
from meshq.node import Broker
from meshq.settings import AddressSettings

STANDARD_INPUT = 0


def make_broker(data_dir: str, number: int, ports: list[str]) -> Broker:
    """The node of this number; ``ports`` are those of all nodes in their order."""
    urls = [f"tcp://127.0.0.1:{port}" for port in ports]
    own = urls.pop(number - 1)
    services = [ClusterConnection(CLUSTER, connector=CONNECTOR, static_connectors=urls, **LINKS)] if urls else []
    return _broker(data_dir, number, [own], services)


def make_finder(data_dir: str, number: int, place: str, ports: list[str]) -> Broker:
    """The node of this number, which looks for the others at a place.

    ``ports``: where its clients find it, and where other nodes do.
    """
    own, for_nodes = [f"tcp://127.0.0.1:{port}" for port in ports]
    settings = {QUEUE: AddressSettings(redistribution_delay=0)}
    return _broker(data_dir, number, [own, for_nodes], discovering(place), settings)


def _broker(
    data_dir: str,
    number: int,
    acceptors: list[str],
    services: Sequence[Service],
    address_settings: dict[str, AddressSettings] | None = None,
) -> Broker:
    """Make a broker; other nodes reach it by the last acceptor."""
    return Broker(
        node_name(number),
        data_dir=data_dir,
        acceptors=acceptors,
        connectors={CONNECTOR: acceptors[-1]},
        queues=[QUEUE],
        services=services,
        address_settings=address_settings,
    )


def port_is_taken(error: ConnectionBrokenError) -> bool:
    """Whether another process has the port."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


async def numbers(broker: Broker, client: Client, clustered: bool) -> Numbers:
    """Count the messages that the node holds."""
    queue, node = await client.queue(QUEUE), broker.statistics()
    peers = broker.cluster(CLUSTER).peers() if clustered else []
    waiting = {peer.node_name: peer.waiting for peer in peers}
    return Numbers(queue.ready, queue.delivering, node.ready + node.delivering, waiting, queue.redistributed)


def freeze() -> None:
    """Stand still, with the event loop and all, until the parent says something or is gone.

    A stopped process (SIGSTOP) would do as well, but would stay if the parent were killed.
    """
    connection.wait([STANDARD_INPUT])


async def leave(broker: Broker) -> Left:
    """Hand everything over to another node; return the counts and the target."""
    mesh = broker.cluster(CLUSTER)
    large_before = {peer.node_id: peer.large for peer in mesh.peers()}
    async with broker.drain(dry_run=True) as look:
        pass
    async with broker.drain() as drain:
        pass
    end = drain.progress
    (target,) = [peer for peer in mesh.peers() if peer.node_id == end.target]
    return Left(
        target=target.node_name,
        held=look.progress.left,
        moved=end.moved,
        prepared=look.progress.prepared - end.prepared,
        large=sum(peer.large - large_before.get(peer.node_id, 0) for peer in mesh.peers()),
        left=end.left,
    )


async def run_broker(parent: Parent, data_dir: str, number: str, *ports: str) -> None:
    """Serve until the parent has had enough, then stop in peace."""
    await _serve(parent, make_broker(data_dir, int(number), list(ports)), clustered=len(ports) > 1)


async def run_finder(parent: Parent, data_dir: str, number: str, place: str, *ports: str) -> None:
    """Serve likewise, found at a place; ``ports``: for clients, and for other nodes."""
    await _serve(parent, make_finder(data_dir, int(number), place, list(ports)), clustered=True)


async def _serve(parent: Parent, made: Broker, *, clustered: bool) -> None:
    try:
        async with made as broker:
            await parent.say(Ready(broker.urls[0], broker.urls[-1]))
            # The client of a node that leaves has nowhere to go: it ends before.
            async with broker.client() as client:
                leaves = await _obey(parent, broker, client, clustered)
            if leaves:
                await parent.say(await leave(broker))
    except ConnectionBrokenError as error:
        if not port_is_taken(error):
            raise
        await parent.say(PortTaken())


async def _obey(parent: Parent, broker: Broker, client: Client, clustered: bool) -> bool:
    """Obey commands until the last one; return whether the node has to leave for good."""
    leaves = False
    async with trio.open_nursery() as nursery:

        async def meet(nodes: int, consumers: int) -> None:
            await broker.cluster(CLUSTER).wait_for(nodes=nodes, queue=QUEUE, consumers=consumers)
            await parent.say(MeshReady())

        while not leaves and (command := await parent.hear()) is not None:
            if isinstance(command, AwaitMesh):
                nursery.start_soon(meet, command.nodes, command.consumers)
            elif isinstance(command, AskNumbers):
                await parent.say(await numbers(broker, client, clustered))
            elif isinstance(command, Freeze):
                await parent.say(Frozen())
                freeze()
            leaves = isinstance(command, LeaveForGood)
        nursery.cancel_scope.cancel()
    return leaves
