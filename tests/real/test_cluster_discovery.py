"""Nodes that are told nothing but a multicast group on the loopback interface, over real TCP."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from meshq import BroadcastGroup, Broker, ClusterConnection, DiscoveryGroup, UDPMulticast
from tests.cluster.kit import free_ports
from tests.discovery import test_endpoints as endpoints

PATIENCE_S = 60.0


def node(name: str, data_dir: Path, lan: UDPMulticast, secret: str) -> Broker:
    (port,) = free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    group = DiscoveryGroup("lan", lan, secret=secret, refresh_timeout=5.0)
    mesh = ClusterConnection("mesh", connector="me", discovery=group, user="u", password="p", retry_interval=0.05)
    announcing = BroadcastGroup("lan", lan, connectors=["me"], broadcast_period=0.2, secret=secret)
    return Broker(
        name, data_dir=str(data_dir / name), acceptors=[url], connectors={"me": url}, services=[announcing, mesh]
    )


@pytest.mark.real
async def test_three_nodes_find_each_other_over_real_multicast_and_one_is_found_again_at_another_port(
    tmp_path: Path,
) -> None:
    (port,) = endpoints.free_ports(1)
    lan = UDPMulticast("231.7.7.7", port, bind_address="127.0.0.1")
    with trio.fail_after(PATIENCE_S):
        async with node("a", tmp_path, lan, "ours") as a, node("b", tmp_path, lan, "ours") as b:
            # It knows another secret, so nobody hears it.
            async with node("x", tmp_path, lan, "theirs") as x:
                async with node("c", tmp_path, lan, "ours") as c:
                    for broker in (a, b, c):
                        await broker.cluster("mesh").wait_for(nodes=3)
                    old = c.urls[0]
                await trio.sleep(0.5)
                assert x.cluster("mesh").nodes() == 1
            async with node("c", tmp_path, lan, "ours") as c:
                assert c.urls[0] != old
                for broker in (a, b, c):
                    await broker.cluster("mesh").wait_for(nodes=3)
                async with (
                    a.client() as client,
                    client.producer("q") as producer,
                    c.client() as there,
                    there.consumer("q") as consumer,
                ):
                    await a.cluster("mesh").wait_for(queue="q", consumers=1)
                    await producer.send(b"hello")
                    delivery = await consumer.receive(timeout=10)
                    assert delivery is not None and delivery.body == b"hello"
                    await delivery.ack()
