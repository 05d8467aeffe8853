"""Clients of every face that know only a multicast group on the loopback interface, over real TCP."""

from __future__ import annotations

import asyncio

import pytest
import trio

from meshq import BroadcastGroup, UDPMulticast, aio, blocking, connect
from tests.cluster.kit import free_ports
from tests.discovery import test_endpoints as endpoints

PATIENCE_S = 60.0


def broker(name: str, lan: UDPMulticast) -> blocking.Broker:
    (port,) = free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    announcing = BroadcastGroup("lan", lan, connectors=["me"], broadcast_period=0.2)
    return blocking.Broker(name, data_dir=None, acceptors=[url], connectors={"me": url}, services=[announcing])


@pytest.mark.real
def test_a_client_of_every_face_finds_a_broker_and_sessions_are_spread_over_two() -> None:
    (port,) = endpoints.free_ports(1)
    lan = UDPMulticast("231.7.7.7", port, bind_address="127.0.0.1")
    url = f"discovery:(udp://231.7.7.7:{port}?bind_address=127.0.0.1)?initial_wait_for=1&refresh_timeout=2"

    async def by_trio() -> str:
        with trio.fail_after(PATIENCE_S):
            async with connect(url) as client:
                return client.statistics().node_name

    async def by_two() -> set[str]:
        with trio.fail_after(PATIENCE_S):
            async with connect(url.replace("for=1", "for=2")) as client, client.session() as other:
                return {client.statistics().node_name, other.statistics().node_name}

    async def by_asyncio() -> str:
        async with asyncio.timeout(PATIENCE_S), aio.connect(url) as client:
            return client.statistics().node_name

    with broker("a", lan), blocking.connect(url) as client:
        assert client.statistics().node_name == trio.run(by_trio) == asyncio.run(by_asyncio()) == "a"
        # Each client of threads has a loop of its own, and both listen.
        with client.session() as other, broker("b", lan):
            assert other.statistics().node_name == "a"
            assert trio.run(by_two) == {"a", "b"}
