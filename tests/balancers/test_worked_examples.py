"""The examples of the ActiveMQ documentation, with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest

from meshq import (
    BroadcastGroup,
    BrokerBalancer,
    ClusterPool,
    DiscoveryGroup,
    DiscoveryPool,
    Security,
    SharedDirectory,
    UseAnotherServerError,
    connect,
)
from tests.balancers.kit import FAST, Machines, machines, node_of, place, places, pool_of, url_of
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import until
from tests.cluster.test_client_topology import LINKS

LAN = SharedDirectory("/announced", "lan")
USERS = [f"u{number}" for number in range(60)]


def spread(balancer: BrokerBalancer, keys: Sequence[str], *, homes: int, each: int) -> list[str]:
    """The first keys for each home of a policy that goes by random ids: chance leaves no home out."""
    found: dict[str, list[str]] = {}
    for key in keys:
        route = balancer.explain_route(key)
        found.setdefault(route.url or route.outcome, []).append(key)
    assert len(found) == homes and all(len(of_home) >= each for of_home in found.values())
    return [key for of_home in found.values() for key in of_home[:each]]


async def announced(made: Machines, names: str, **settings: Any) -> None:
    """Start brokers that announce themselves."""
    for name in names:
        group = BroadcastGroup("lan", LAN, connectors=["me"], broadcast_period=0.5)
        await made.start(name, group, connectors={"me": f"{url_of(name)}?insecure=true"}, **settings)


async def test_local_partition_accepts_foo_and_refuses_bar() -> None:
    async with machines() as made:
        balancer = BrokerBalancer(
            "local-partition", target_key="client_id", target_key_filter="^.{3}", local_target_filter="^FOO.*"
        )
        await made.start("front", balancer, redirect_to="local-partition")
        assert await place(made, "FOO123") == "front"
        with pytest.raises(UseAnotherServerError):
            await place(made, "BAR1")


async def test_simple_balancer_has_all_at_the_first_connector_and_at_the_second_once_that_stops() -> None:
    async with machines() as made:
        for name in "abc":
            await made.start(name)
        balancer = BrokerBalancer("simple-balancer", policy="first_element", pool=pool_of("abc"))
        await made.start("front", balancer, redirect_to="simple-balancer")
        await made.ready(*"abc", name="simple-balancer")
        assert await places(made, 6) == {"a": 6}
        await made.stop("a")
        assert await places(made, 6, initial_connect_attempts=20) == {"b": 6}


@pytest.mark.slow
async def test_consistent_hash_balancer_has_admin_here_and_the_others_hashed_over_the_group_and_this_broker() -> None:
    security = Security(users={name: f"canary-{name}" for name in ("admin", *USERS)})
    async with machines() as made:
        await announced(made, "ab", security=security)
        pool = DiscoveryPool(
            DiscoveryGroup("dg1", LAN), check_period=1.0, insecure=True, local_target_enabled=True,
            user="admin", password="canary-admin",
        )  # fmt: skip
        balancer = BrokerBalancer(
            "lb", target_key="user_name", local_target_filter="admin", policy="consistent_hash", pool=pool
        )
        await made.start("front", balancer, redirect_to="lb", security=security)
        await made.ready("a", "b", "front")

        async def home(user: str) -> str:
            return await place(made, "x", user=user, password=f"canary-{user}")

        assert await home("admin") == "front"
        found = {user: await home(user) for user in spread(made.balancer(), USERS, homes=3, each=6)}
        assert set(found.values()) == {"a", "b", "front"}
        assert {user: await home(user) for user in found} == found


@pytest.mark.slow
async def test_evenly_balancer_spreads_thirty_prefixes_ten_each_and_a_prefix_stays() -> None:
    security = Security(users={"guest": "guest"})
    async with machines() as made:
        await announced(made, "abc", security=security)
        group = DiscoveryGroup("dg2", LAN)
        pool = DiscoveryPool(group, user="guest", password="guest", insecure=True, check_period=1.0)
        balancer = BrokerBalancer(
            "lb", target_key="client_id", target_key_filter="^.{3}", policy="least_connections", pool=pool
        )
        await made.start("front", balancer, redirect_to="lb", security=security)
        await made.ready(*"abc")
        guest = {"user": "guest", "password": "guest"}
        async with AsyncExitStack() as stack:
            homes = {}
            for number in range(30):
                client = made.dial(client_id=f"{number:03d}-1", **guest)
                homes[f"{number:03d}"] = node_of(await stack.enter_async_context(client))
            assert Counter(homes.values()) == dict.fromkeys("abc", 10)
            assert {key: await place(made, f"{key}-2", **guest) for key in homes} == homes


async def test_with_data_gravity_nothing_moves_between_brokers() -> None:
    def services() -> list[BrokerBalancer]:
        pool = ClusterPool("mesh", check_period=1.0, local_target_enabled=True)
        keys = {"target_key": "client_id", "target_key_filter": "^[^.]+"}
        return [BrokerBalancer("lb", policy="consistent_hash", pool=pool, **keys)]

    own = {
        name: {"acceptors": [f"tcp://{name}:5000?insecure=true", f"tcp://{name}:5001?insecure=true&redirect_to=lb"]}
        for name in "abc"
    }
    async with hosts("abc", cluster=LINKS, services=services, own=own) as nodes:  # type: ignore[arg-type]
        await nodes.joined()
        await _all_ready(nodes)
        homes = set()
        tenants = [f"t{number}" for number in range(60)]
        for tenant in spread(nodes.brokers["a"].balancer("lb"), tenants, homes=3, each=4):
            queue = f"orders.{tenant}"
            async with (
                _dial(nodes, f"{tenant}.sender") as sender,
                _dial(nodes, f"{tenant}.receiver") as receiver,
                receiver.consumer(queue) as consumer,
            ):
                homes.add(sender.statistics().node_name)
                assert receiver.statistics().node_name == sender.statistics().node_name
                for number in range(10):
                    await sender.send(queue, b"%d" % number)
                for number in range(10):
                    message = await consumer.receive(timeout=5)
                    assert message is not None and message.body == b"%d" % number
                    await message.ack()
        assert homes == set("abc")
        for name in "abc":
            async with nodes.client(name) as client:
                for other in set("abc") - {name}:
                    about = await client.queue(nodes.forward(other))
                    assert (about.acknowledged, about.ready, about.delivering) == (0, 0, 0)


def _dial(nodes: Hosts, client_id: str) -> Any:
    env = attrs.evolve(nodes.env, network=nodes.network.host("shop"), local={})
    urls = ",".join(f"tcp://{name}:5001" for name in "abc")
    return connect(f"({urls})", env=env, client_id=client_id, **FAST)


async def _all_ready(nodes: Hosts) -> None:
    def ready() -> bool:
        return all(nodes.brokers[name].balancer("lb").statistics().ready == 3 for name in "abc")

    await until(ready)
