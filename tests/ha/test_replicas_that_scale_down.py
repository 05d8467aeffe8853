"""A backup by replication that scales down: it takes over only to hand its copy over, and serves no client."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from meshq import (
    BroadcastGroup,
    Broker,
    ClusterConnection,
    DiscoveryGroup,
    LiveOnly,
    Message,
    NotActiveError,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
    SettingsError,
    connect,
)
from meshq.errors import ConnectionBrokenError
from meshq.node.terms import _broker_run
from tests.cluster.machines import LAN
from tests.ha.provided import SESSION_S, pairs
from tests.ha.replicated import Machines, machines, url_of

DURABLE = [b"0", b"2", b"4", b"6", b"8"]
CLUSTER: dict[str, Any] = {"connection_ttl": 2.0, "call_timeout": 1.5, "retry_interval": 0.5}
QUICK: dict[str, Any] = {"retry_interval": 0.1, "max_retry_interval": 0.5}


def broker(ground: Machines, name: str, *, alone: bool = False, **policy: Any) -> Broker:
    """One of the nodes: ``b`` follows ``a``, and ``c`` is the target; ``alone``: the cluster of the pair is a pair."""
    linked = {"static_connectors": [url_of({"a": "b", "b": "a"}[name])]} if alone else {}
    ha = {
        "a": lambda: ReplicationPrimary(check_for_live_server=True, wait_for_activation=False, **QUICK),
        "b": lambda: ReplicationBackup(**{"scale_down": ScaleDown(), **QUICK, **policy}),
        "c": lambda: None,
    }[name]()
    return ground.broker(name, ha, cluster={**CLUSTER, **linked})


async def start_pair(
    ground: Machines, nursery: trio.Nursery, *, alone: bool = False, **policy: Any
) -> tuple[Broker, Broker]:
    a = await ground.start(nursery, broker(ground, "a", alone=alone))
    b = await ground.start(nursery, broker(ground, "b", alone=alone, **policy))
    await b.ha.wait_for(phase="in_sync", timeout=60)
    async with ground.client_of("a") as client:
        for number in range(10):
            await client.send("q", Message(b"%d" % number, durable=number % 2 == 0))
    return a, b


async def bodies_at(ground: Machines, name: str, count: int) -> list[bytes]:
    async with ground.client_of(name) as client, client.consumer("q") as consumer:
        found: list[bytes] = []
        while len(found) < count and (batch := await consumer.receive_many(count, timeout=20)):
            await consumer.ack(*batch)
            found += [one.body for one in batch]
        return found


async def refused(ground: Machines, name: str) -> None:
    """Check that a node lets no client in."""
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(url_of(name), env=ground.env(), initial_connect_attempts=1):
            raise AssertionError(f"{name} has let a client in")
    assert isinstance(caught.value.__cause__, NotActiveError), caught.value.__cause__


async def emptied(b: Broker) -> None:
    """Wait until a backup has handed everything over, and waits."""
    with trio.fail_after(60):
        while not (b._run.board.report.reason == "scaled_down" and b.ha.role == "backup"):
            assert b.state == "waiting"
            await trio.sleep(0.05)


async def test_after_a_crash_it_empties_itself_into_another_node_and_its_primary_comes_back_to_an_empty_store() -> None:
    async with machines() as (ground, nursery):
        c = await ground.start(nursery, broker(ground, "c"))
        a, b = await start_pair(ground, nursery)
        await refused(ground, "b")
        await ground.crash(a)
        await b.ha.wait_for(phase="scaling_down", timeout=60)
        await refused(ground, "b")
        await emptied(b)
        assert await bodies_at(ground, "c", 5) == DURABLE
        # Nobody needs an empty store: it takes the role no more, alone.
        await trio.sleep(4)
        assert (b.state, b.ha.role, b.ha.epoch, c.state) == ("waiting", "backup", 2, "active")
        # The primary does not serve what was handed over: it copies the empty store, and has its role back.
        a = await ground.start(nursery, broker(ground, "a"))
        await a.ha.wait_for(phase="active", in_sync=True, timeout=60)
        await b.ha.wait_for(phase="in_sync", timeout=60)
        assert (a.ha.role, b.ha.role) == ("primary", "backup")
        async with ground.client_of("a") as client:
            assert (await client.queue("q")).ready == 0
            await client.send("q", b"new")
        assert await bodies_at(ground, "a", 1) == [b"new"]


async def test_it_stops_once_it_is_empty_and_a_group_and_discovery_say_where_everything_goes() -> None:
    async with machines() as (ground, nursery):
        group: dict[str, Any] = {"services": [ClusterConnection("c", password="p", group_name="boo!", **CLUSTER)]}
        group["services"].append(BroadcastGroup("lan", LAN, connectors=["me"]))
        await ground.start(nursery, ground.broker("c", None, connectors={"me": url_of("c")}, **group))
        order = ScaleDown(group_name="boo!", discovery=DiscoveryGroup("wahey", LAN))
        a, b = await start_pair(ground, nursery, alone=True, scale_down=order, restart_backup=False)
        await ground.crash(a)
        with trio.fail_after(60):
            while b.state != "stopped":  # noqa: ASYNC110 - it ends by itself
                await trio.sleep(0.1)
        assert await bodies_at(ground, "c", 5) == DURABLE


async def test_without_a_target_a_primary_that_comes_back_gets_all_of_it() -> None:
    async with machines() as (ground, nursery):
        a, b = await start_pair(ground, nursery, alone=True, scale_down=ScaleDown(connectors=[url_of("c")]))
        await ground.crash(a)
        await b.ha.wait_for(phase="scaling_down", timeout=60)
        await trio.sleep(1)
        assert b.state == "waiting"
        await refused(ground, "b")
        a = await ground.start(nursery, broker(ground, "a"))
        await a.ha.wait_for(phase="active", in_sync=True, timeout=60)
        assert await bodies_at(ground, "a", 5) == DURABLE


async def test_with_a_quorum_provider_an_empty_store_takes_no_lock_before_a_primary_is_back() -> None:
    async with pairs() as pair:
        await pair.start("c", LiveOnly(), cluster=CLUSTER)
        first, second = await pair.both(scale_down=ScaleDown(), **QUICK)
        async with pair.ground.client_of("a") as client:
            await client.send("q", b"kept")
        await pair.kill(first)
        await emptied(second)
        assert await bodies_at(pair.ground, "c", 1) == [b"kept"]
        await trio.sleep(SESSION_S)
        assert pair.figures == (2, ("b",)) and second.ha.role == "backup"
        first = await pair.start("a", pair.first(**QUICK))
        await first.ha.wait_for(phase="active", in_sync=True, timeout=60)
        async with pair.ground.client_of("a") as client:
            assert (await client.queue("q")).ready == 0


def test_what_does_not_go_together_is_refused_as_for_a_shared_store() -> None:
    with pytest.raises(SettingsError, match="it never serves"):
        ReplicationBackup(scale_down=ScaleDown(), wait_for_activation=True)
    with pytest.raises(SettingsError, match="a ScaleDown, or None"):
        ReplicationBackup(scale_down=True)  # type: ignore[arg-type]
    ground = Machines()
    for order, named in ((ScaleDown(connectors=["gone"]), "gone"), (ScaleDown(cluster_name="other"), "other")):
        with pytest.raises(SettingsError, match=named):
            broker(ground, "b", scale_down=order)
    ordinary = broker(ground, "b", scale_down=ScaleDown(enabled=False))
    assert ordinary._settings.takeover is None


async def test_a_primary_that_waited_before_it_served_is_not_waited_for_as_its_store_is_handed_over() -> None:
    async with machines() as (ground, nursery):
        await ground.start(nursery, broker(ground, "c"))
        a = await ground.start(nursery, broker(ground, "a"))
        b = await ground.start(nursery, broker(ground, "b", max_retry_interval=20.0))
        await b.ha.wait_for(phase="in_sync", timeout=60)
        await ground.crash(a)
        await b.ha.wait_for(phase="scaling_down", timeout=60)
        before = trio.current_time()
        await emptied(b)
        assert trio.current_time() - before < 20


async def test_a_primary_that_comes_back_meanwhile_has_the_empty_store_before_the_backup_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drain, drained, again = _broker_run.take_over_and_hand_over, trio.Event(), list[Broker]()

    async def slowly(*about: Any) -> None:
        await drain(*about)
        again.append(await ground.start(nursery, broker(ground, "a")))
        await again[0].ha.wait_for(phase="syncing", timeout=30)
        drained.set()

    monkeypatch.setattr(_broker_run, "take_over_and_hand_over", slowly)
    async with machines() as (ground, nursery):
        await ground.start(nursery, broker(ground, "c"))
        a, b = await start_pair(ground, nursery, restart_backup=False)
        # The copy can't begin.
        gate = ground.threads["b"].close("names")
        await ground.crash(a)
        await drained.wait()
        await trio.sleep(5)
        assert b.ha.phase == "scaling_down"
        gate.set()
        await again[0].ha.wait_for(phase="active", timeout=60)
        async with ground.client_of("a") as client:
            assert ((await client.queue("q")).ready, b.state) == (0, "stopped")
