"""Pools of balancers at brokers: what they probe, when, as whom, and what becomes of a target that is lost."""

from __future__ import annotations

import logging
import math

import attrs
import pytest
import trio

from meshq import (
    BalancerQuorumLost,
    BalancerQuorumReached,
    BalancerTargetLost,
    BalancerTargetReady,
    BroadcastGroup,
    Broker,
    BrokerBalancer,
    ClusterConnection,
    ClusterPool,
    DiscoveryGroup,
    DiscoveryPool,
    Permissions,
    Security,
    SharedDirectory,
    StaticPool,
    UseAnotherServerError,
    abc,
)
from tests.balancers.kit import balanced, machines, node_of, place, places, pool_of, so_far, url_of
from tests.cluster.hosts import hosts
from tests.cluster.kit import until
from tests.cluster.test_client_topology import LINKS

KINDS = (BalancerTargetReady, BalancerTargetLost, BalancerQuorumReached, BalancerQuorumLost)


async def test_each_target_is_probed_at_0_5_and_10_seconds_and_a_dead_one_leaves_at_the_next() -> None:
    async with machines() as made:
        for name in "ab":
            await made.start(name)
        pool = pool_of("ab", check_period=5.0)
        assert StaticPool(["tcp://a:1"]).check_period == 5.0
        await made.start("front", BrokerBalancer("lb", pool=pool), redirect_to="lb")
        began = trio.current_time()
        await made.ready("a", "b")
        assert trio.current_time() - began < 0.1
        await trio.sleep_until(began + 4.9)
        await made.crash("a")
        assert set(made.ready_now()) == {"a", "b"}
        await trio.sleep_until(began + 5.1)
        assert made.ready_now() == ["b"]
        (row,) = [row for row in made.balancer().statistics().targets if row.url == url_of("a")]
        assert row.state == "not_ready" and row.error == "a:5000 can't be reached: refused"
        await trio.sleep_until(began + 5.5)
        await made.start("a")
        await trio.sleep_until(began + 9.9)
        assert made.ready_now() == ["b"]
        await trio.sleep_until(began + 10.1)
        assert made.ready_now() == ["a", "b"]


async def test_a_target_that_hangs_is_not_ready_before_the_next_probe() -> None:
    async with balanced("ab") as made:
        made.network.cut("front", "a")
        began = trio.current_time()
        await made.ready("b")
        assert trio.current_time() - began <= 2.0
        made.network.heal("front", "a")
        await made.ready("a", "b")


async def test_probes_leave_no_trace_at_the_target_and_are_never_redirected() -> None:
    async with machines() as made:
        for name, other in ("ab", "ba"):
            balancer = BrokerBalancer("lb", pool=pool_of(other), policy="first_element")
            await made.start(name, balancer, acceptors=[f"{url_of(name)}?insecure=true&redirect_to=lb"])
        await made.ready("b", broker="a")
        before = [made.brokers[name].statistics() for name in "ab"]
        await trio.sleep(10)
        after = [made.brokers[name].statistics() for name in "ab"]
        for one, other in zip(before, after, strict=True):
            assert (other.sessions, other.connections) == (0, 0)
            values = {"loop_lag"}
            assert {k: v for k, v in attrs.asdict(one).items() if k not in values and "journal" not in k} == {
                k: v for k, v in attrs.asdict(other).items() if k not in values and "journal" not in k
            }
        assert made.balancer(broker="a").statistics().redirected == 0


async def test_a_pool_below_its_quorum_offers_nothing_and_says_when_it_gets_there_and_falls_below() -> None:
    async with machines() as made:
        await made.start("a")
        pool = pool_of("ab", quorum_size=2, quorum_timeout=0.2)
        await made.start("front", BrokerBalancer("lb", pool=pool, cache_timeout=0.0), redirect_to="lb")
        events = made.brokers["front"].events()
        await made.ready("a")
        assert not made.balancer().statistics().active
        with pytest.raises(UseAnotherServerError, match="no quorum: 1 targets are ready"):
            await place(made, "x")
        await made.start("b")
        await made.ready("a", "b")
        assert await places(made, 4) == {"a": 2, "b": 2}
        await made.crash("a")
        await made.ready("b")
        with pytest.raises(UseAnotherServerError):
            await place(made, "x")
        told = [event for event in await so_far(events) if isinstance(event, KINDS)]
        assert [(type(one), getattr(one, "url", "")) for one in told[-4:]] == [
            (BalancerTargetReady, url_of("b")),
            (BalancerQuorumReached, ""),
            (BalancerTargetLost, url_of("a")),
            (BalancerQuorumLost, ""),
        ]
        assert told[-1].balancer == "lb" and (told[-1].ready, told[-1].needed) == (1, 2)  # type: ignore[union-attr]


async def test_a_subscription_is_told_of_the_pool_at_once_though_nothing_else_happens_at_the_broker() -> None:
    async with balanced("a", pool={"check_period": 1.0}) as made, made.brokers["front"].client() as watcher:
        wanted = "notification LIKE 'balancer_%'"
        async with watcher.subscribe("activemq.notifications", filter=wanted) as subscription:
            await made.crash("a")
            for kind in ("balancer_target_lost", "balancer_quorum_lost"):
                told = await subscription.receive(timeout=2)
                assert told is not None and told.properties["notification"] == kind
                await told.ack()


async def test_the_last_lines_of_the_log_say_what_is_so_though_a_pool_comes_and_goes_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines() -> list[str]:
        return [getattr(one, "event", "").removeprefix("balancer_") for one in caplog.records if one.name == "meshq.lb"]

    with caplog.at_level(logging.INFO, "meshq.lb"):
        async with balanced("a", pool={"check_period": 1.0}) as made:
            for _ in range(3):
                await made.crash("a")
                await made.ready()
                await made.start("a")
                await made.ready("a")
            up, down = ["target_ready", "quorum_reached"], ["target_lost", "quorum_lost"]
            assert lines() == [*up, *down]
            await trio.sleep(120)
            assert lines() == [*up, *down, *up]
            await made.crash("a")
            await trio.sleep(120)
            assert lines() == [*up, *down, *up, *down]


async def test_unless_given_one_ready_target_is_enough_and_the_broker_itself_is_none() -> None:
    pool = StaticPool(["tcp://a:1"])
    assert (pool.quorum_size, pool.quorum_timeout, pool.local_target_enabled) == (1, 3.0, False)
    async with machines() as made:
        await made.start("a")
        own = pool_of(("a", "front"))
        await made.start("front", BrokerBalancer("lb", pool=own, cache_timeout=0.0), redirect_to="lb")
        await made.ready("a")
        await trio.sleep(2)
        assert await places(made, 6) == {"a": 6}
        (row,) = [row for row in made.balancer().statistics().targets if row.url == url_of("front")]
        assert "it is this broker itself" in row.error


async def test_with_a_wrong_password_a_target_is_never_ready() -> None:
    security = Security(users={"guest": "guest", "app": "secret"})
    async with machines() as made:
        for name in "ab":
            await made.start(name, security=security)
        for password, ready in (("guest", "ab"), ("wrong", "")):
            pool = pool_of("ab", user="guest", password=password)
            await made.start(f"front{password}", BrokerBalancer("lb", pool=pool), redirect_to="lb")
            await trio.sleep(3)
            assert set(made.ready_now(broker=f"front{password}")) == set(ready)
        errors = [row.error for row in made.balancer(broker="frontwrong").statistics().targets]
        assert all("authentication failed" in error for error in errors)


async def test_roles_and_users_are_keys_after_the_login() -> None:
    security = Security(
        users={"admin": "a", "bob": "b", "eve": "e"},
        roles={"admin": {"operators"}, "bob": {"tenant-1"}, "eve": {"readers", "tenant-2"}},
        permissions={"#": Permissions(consume={"tenant-1", "tenant-2", "readers", "operators"})},
    )
    async with machines() as made:
        for name in "ab":
            await made.start(name, security=security)
        pool = pool_of("ab", user="admin", password="a")
        by_user = BrokerBalancer("lb", target_key="user_name", local_target_filter="admin", pool=pool)
        by_role = BrokerBalancer("roles", target_key="role_name", target_key_filter="tenant-.", pool=pool)
        urls = [f"{url_of('front', port)}?insecure=true&redirect_to={name}" for port, name in ((1, "lb"), (2, "roles"))]
        await made.start("front", by_user, by_role, security=security, acceptors=urls)
        await made.ready(*"ab")
        await made.ready(*"ab", name="roles")
        async with made.dial(url_of("front", 1), user="admin", password="a") as client:
            assert node_of(client) == "front"
        async with made.dial(url_of("front", 1), user="bob", password="b") as client:
            assert node_of(client) in "ab"
        for user, key in (("bob", "tenant-1"), ("eve", "tenant-2"), ("admin", "operators")):
            async with made.dial(url_of("front", 2), user=user, password=user[0]) as client:
                there = node_of(client)
            explained = made.balancer("roles").explain_route(key)
            assert explained.steps[-1] == f"the cache has {url_of(there)}, which is ready"


async def test_a_cluster_pool_has_the_nodes_as_they_come_and_go_with_the_cluster_s_login() -> None:
    def balancer() -> list[BrokerBalancer]:
        pool = ClusterPool("mesh", check_period=1.0)
        return [BrokerBalancer("lb", target_key="client_id", pool=pool, policy="consistent_hash")]

    async with hosts("abc", cluster=LINKS, services=balancer) as nodes:  # type: ignore[arg-type]
        await nodes.joined()
        front = nodes.brokers["a"].service("lb")
        assert isinstance(front, BrokerBalancer)

        def ready() -> set[str]:
            return {row.node_name for row in front.statistics().targets if row.state == "ready"}

        await until(lambda: ready() == {"b", "c"})
        before = {f"k{number}": front.explain_route(f"k{number}").node_id for number in range(100)}
        nodes.urls["d"] = "tcp://d:5000?insecure=true"
        nodes.others["d"] = ["a"]
        await nodes.start("d")
        await until(lambda: ready() == {"b", "c", "d"})
        new = bytes(nodes.brokers["d"].node_id or b"").hex()
        after = {key: front.explain_route(key).node_id for key in before}
        assert {after[key] for key in before if after[key] != before[key]} == {new}
        await nodes.stop("d")
        await until(lambda: ready() == {"b", "c"})
        await until(lambda: len(front.statistics().targets) == 2)
        assert {key: front.explain_route(key).node_id for key in before} == before


async def test_a_discovery_pool_has_the_brokers_that_announce_themselves() -> None:
    async with machines() as made:
        announced = SharedDirectory("/announced", "lan")
        for name in "ab":
            announcer = BroadcastGroup("lan", announced, connectors=["me"], broadcast_period=0.5)
            await made.start(name, announcer, connectors={"me": f"{url_of(name)}?insecure=true"})
        pool = DiscoveryPool(
            DiscoveryGroup("dg1", announced, refresh_timeout=3.0),
            check_period=1.0,
            insecure=True,
            local_target_enabled=True,
        )
        balancer = BrokerBalancer("lb", pool=pool, policy="round_robin", cache_timeout=0.0)
        await made.start("front", balancer, redirect_to="lb")
        await made.ready("a", "b", "front")
        assert await places(made, 9) == {"a": 3, "b": 3, "front": 3}
        await made.crash("a")
        await made.ready("b", "front")
        await until(lambda: len(made.balancer().statistics().targets) == 2)


async def test_the_group_of_a_pool_may_stand_behind_the_balancer_among_the_services() -> None:
    async with machines() as made:
        announced = SharedDirectory("/announced", "lan")
        announcer = BroadcastGroup("lan", announced, connectors=["me"], broadcast_period=0.5)
        await made.start("a", announcer, connectors={"me": f"{url_of('a')}?insecure=true"})
        group = DiscoveryGroup("dg1", announced)
        pool = DiscoveryPool(group, check_period=1.0, insecure=True)
        # It listens only after the balancer has listed its targets for the first time.
        await made.start("front", BrokerBalancer("lb", pool=pool), group, redirect_to="lb")
        await made.ready("a")
        assert await place(made, "x") == "a"


async def test_a_static_pool_has_its_connectors_in_their_order() -> None:
    async with machines() as made:
        for name in "abc":
            await made.start(name)
        connectors = {f"connector{number}": f"{url_of(name)}?insecure=true" for number, name in enumerate("abc", 1)}
        pool = StaticPool(["connector3", "connector1", "connector2"], check_period=1.0)
        balancer = BrokerBalancer("lb", pool=pool, policy="first_element", cache_timeout=0.0)
        await made.start("front", balancer, redirect_to="lb", connectors=connectors)
        await made.ready(*"abc")
        assert [row.url for row in made.balancer().statistics().targets] == [url_of(name) for name in "cab"]
        assert await place(made, "x") == "c"
        await made.crash("c")
        await made.ready(*"ab")
        assert await place(made, "x") == "a"


@pytest.mark.slow
async def test_only_the_clients_of_a_dead_target_land_elsewhere() -> None:
    async with balanced("abcd", target_key="client_id", policy="consistent_hash", cache_timeout=0.0) as made:
        before = {f"c{number}": await place(made, f"c{number}") for number in range(40)}
        await made.crash("b")
        await made.ready(*"acd")
        after = {key: await place(made, key) for key in before}
        assert {key for key in before if after[key] != before[key]} == {key for key in before if before[key] == "b"}
        await made.start("b")
        await made.ready(*"abcd")
        # It is another broker in its place, with another id: it takes keys, and no other key moves.
        again = {key: await place(made, key) for key in before}
        assert {again[key] for key in before if again[key] != after[key]} <= {"b"}


async def test_least_connections_counts_those_that_are_there_and_those_under_way() -> None:
    async with balanced(target_key="client_id", target_key_filter="^.{3}", policy="least_connections") as made:
        assert await places(made, 30) == dict.fromkeys("abc", 10)
        # What sits at a target of its own accord counts as well, from the next probe on.
        async with trio.open_nursery() as nursery:
            for number in range(6):
                await nursery.start(_stay, made.dial(url_of("a"), client_id=f"own{number}"))
            await trio.sleep(2.5)
            rows = {row.node_name: row.connections for row in made.balancer().statistics().targets}
            assert rows == {"a": 6, "b": 0, "c": 0}
            found = [await place(made, f"z{number:02d}") for number in range(6)]
            assert "a" not in found
            nursery.cancel_scope.cancel()


async def _stay(client: object, *, task_status: trio.TaskStatus[None]) -> None:
    async with client:  # type: ignore[attr-defined]
        task_status.started()
        await trio.sleep(math.inf)


async def test_a_node_that_is_reached_in_its_process_only_is_no_target() -> None:
    def links() -> ClusterConnection:
        return ClusterConnection("mesh", connector="me", static_connectors=["other"], password="canary-" * 3)

    balancer = BrokerBalancer("lb", pool=ClusterPool("mesh", check_period=0.3, local_target_enabled=True))
    async with machines() as made:
        env = made.machine("here")
        given: dict[str, list[abc.Service]] = {"a": [links()], "front": [links(), balancer]}
        for name, services in given.items():
            connectors = {"me": f"inproc://{name}", "other": "inproc://a" if name == "front" else "inproc://front"}
            url = f"tcp://here:{5_000 + len(made.brokers)}?insecure=true"
            broker = Broker(name, data_dir=None, acceptors=[url], services=services, connectors=connectors, env=env)
            made.brokers[name] = broker
            await made.nursery.start(broker.run)
        await made.ready("front")
        await until(lambda: len(made.brokers["front"].service("mesh").topology()) == 2)  # type: ignore[attr-defined]
        await trio.sleep(2)
        assert [row.node_name for row in made.balancer().statistics().targets] == ["front"]
