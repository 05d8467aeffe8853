"""A backup that scales down: it takes a store over only to hand it over to another node, and serves no client."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from meshq import (
    Broker,
    BrokerStateChanged,
    ClusterConnection,
    Message,
    NotActiveError,
    ScaleDown,
    SettingsError,
    SharedStoreBackup,
    SharedStorePrimary,
    abc,
    connect,
)
from meshq.errors import ConnectionBrokenError
from tests.ha.test_shared_store_brokers import SLOW, Pair, crash, pair, start

PORTS = {"a": 7001, "b": 7002, "c": 7003}
URLS = {name: f"tcp://127.0.0.1:{port}" for name, port in PORTS.items()}


def broker(ground: Pair, name: str, ha: abc.HAPolicy | None, **settings: Any) -> Broker:
    """One of the nodes: ``a`` and ``b`` share a store, and ``c`` has one of its own."""
    others = [other for other in URLS if other != name]
    cluster = ClusterConnection(
        "c", connector="me", password="p", static_connectors=others, retry_interval=0.1, max_retry_interval=0.2
    )
    given: dict[str, Any] = {"services": [cluster], "connectors": {"me": URLS[name], **URLS}}
    return ground.broker(name, ha, **{**given, "data_dir": "/other" if name == "c" else "/data", **settings})


#: Few looks at the store in a simulated second.
CALM: dict[str, Any] = {"lease": 2.0, "lock_check_period": 0.5}


def scales_down(**settings: Any) -> SharedStoreBackup:
    return SharedStoreBackup(scale_down=ScaleDown(), **CALM, **settings)


def primary(**settings: Any) -> SharedStorePrimary:
    return SharedStorePrimary(**CALM, **settings)


async def send_ten(ground: Pair) -> None:
    """Five durable messages and five others at ``a``, one after the other."""
    async with connect(URLS["a"], env=ground.env(), **SLOW) as client:
        for number in range(10):
            await client.send("q", Message(b"%d" % number, durable=number % 2 == 0))


async def bodies_at(ground: Pair, name: str, count: int) -> list[bytes]:
    async with connect(URLS[name], env=ground.env(), **SLOW) as client, client.consumer("q") as consumer:
        found: list[bytes] = []
        while len(found) < count and (batch := await consumer.receive_many(count, timeout=20)):
            await consumer.ack(*batch)
            found += [one.body for one in batch]
        return found


async def refused(ground: Pair, name: str) -> None:
    """Check that a node lets no client in."""
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(URLS[name], env=ground.env(), initial_connect_attempts=1):
            raise AssertionError(f"{name} has let a client in")
    assert isinstance(caught.value.__cause__, NotActiveError), caught.value.__cause__


async def test_after_a_crash_its_backup_serves_nobody_and_what_is_durable_appears_at_another_node() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, broker(ground, "a", primary()))
        b = await start(ground, nursery, broker(ground, "b", scales_down(failover_on_shutdown=True)))
        c = await start(ground, nursery, broker(ground, "c", None))
        changes, phases = b.events(), set[str]()
        await send_ten(ground)
        await refused(ground, "b")
        await crash(ground, a)
        with trio.fail_after(60):
            while b.ha.phase != "scaling_down":  # noqa: ASYNC110 - each phase is looked at
                await trio.sleep(0.05)
            while b.ha.phase != "waiting":
                phases.add(b.ha.phase)
                assert b.state == "waiting" and b.urls == [URLS["b"]]
                await refused(ground, "b")
                await trio.sleep(0.05)
        assert phases == {"scaling_down"}
        assert await bodies_at(ground, "c", 5) == [b"0", b"2", b"4", b"6", b"8"]
        # The store is empty: the backup leaves it to the primary, which begins the next epoch.
        await trio.sleep(12)
        assert (b.state, b.ha.role, b.ha.epoch, c.state) == ("waiting", "backup", 2, "active")
        a = await start(ground, nursery, broker(ground, "a", primary()))
        assert (a.state, a.ha.epoch) == ("active", 3)
        async with connect(URLS["a"], env=ground.env(), **SLOW) as client:
            assert (await client.queue("q")).ready == 0
        while True:
            with trio.move_on_after(0.1) as late:
                one = await anext(changes)
            if late.cancelled_caught:
                break
            assert not isinstance(one, BrokerStateChanged), one
        nursery.cancel_scope.cancel()


async def test_without_a_target_the_messages_stay_and_go_to_one_that_comes(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, broker(ground, "a", primary()))
        b = await start(ground, nursery, broker(ground, "b", scales_down(restart_backup=False)))
        await send_ten(ground)
        with caplog.at_level(logging.WARNING):
            await crash(ground, a)
            await trio.sleep(10)
        assert "can't hand over what it holds" in caplog.text
        # K57: it tries every five seconds, and warns once a minute.
        assert [getattr(one, "event", "") for one in caplog.records].count("last_of_group") == 1
        assert (b.state, b.ha.phase) == ("waiting", "scaling_down")
        await refused(ground, "b")
        await start(ground, nursery, broker(ground, "c", None))
        assert await bodies_at(ground, "c", 5) == [b"0", b"2", b"4", b"6", b"8"]
        with trio.fail_after(30):
            while b.state != "stopped":  # noqa: ASYNC110 - it ends by itself
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_primary_that_comes_back_before_there_is_a_target_gets_the_store(allowed: bool) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, broker(ground, "a", primary()))
        b = await start(ground, nursery, broker(ground, "b", scales_down(allow_failback=allowed)))
        await send_ten(ground)
        await crash(ground, a)
        await trio.sleep(4)
        a = await start(ground, nursery, broker(ground, "a", primary(wait_for_activation=False)))
        await trio.sleep(8)
        assert (a.state, b.ha.phase) == ("active", "waiting")
        assert await bodies_at(ground, "a", 5) == [b"0", b"2", b"4", b"6", b"8"]
        nursery.cancel_scope.cancel()


async def test_it_stops_in_the_middle_and_what_it_holds_is_there_for_the_next_one() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, broker(ground, "a", primary()))
        b = await start(ground, nursery, broker(ground, "b", scales_down()))
        await send_ten(ground)
        await crash(ground, a)
        await trio.sleep(4)
        assert b.ha.phase == "scaling_down"
        with trio.fail_after(10):
            await b.stop()
        assert b.state == "stopped"
        await start(ground, nursery, broker(ground, "a", primary()))
        assert await bodies_at(ground, "a", 5) == [b"0", b"2", b"4", b"6", b"8"]
        nursery.cancel_scope.cancel()


async def test_an_order_that_is_not_enabled_leaves_an_ordinary_backup() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        policy = SharedStoreBackup(scale_down=ScaleDown(enabled=False), wait_for_activation=False)
        a = await start(ground, nursery, broker(ground, "a", primary()))
        b = await start(ground, nursery, broker(ground, "b", policy))
        await send_ten(ground)
        await crash(ground, a)
        assert await bodies_at(ground, "b", 5) == [b"0", b"2", b"4", b"6", b"8"]
        assert b.ha.phase == "active"
        nursery.cancel_scope.cancel()


def test_a_backup_that_never_serves_is_not_waited_for_and_its_targets_are_checked() -> None:
    with pytest.raises(SettingsError, match="it never serves"):
        scales_down(wait_for_activation=True)
    with pytest.raises(SettingsError, match="a ScaleDown, or None"):
        SharedStoreBackup(scale_down=True)  # type: ignore[arg-type]
    ground = Pair()
    for order, named in ((ScaleDown(connectors=["gone"]), "gone"), (ScaleDown(cluster_name="other"), "other")):
        with pytest.raises(SettingsError, match=named):
            broker(ground, "b", SharedStoreBackup(scale_down=order))


@pytest.mark.parametrize("at", ["a", "b"])
async def test_an_operator_who_orders_a_takeover_is_told_that_it_was_done(at: str) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, broker(ground, "a", primary(wait_for_activation=False)))
        await a.ha.wait_for(phase="active")
        b = await start(ground, nursery, broker(ground, "b", scales_down()))
        await start(ground, nursery, broker(ground, "c", None))
        await send_ten(ground)
        await trio.sleep(2)
        with trio.fail_after(30):
            if at == "a":
                await a.ha.fail_over()
            else:
                await a.stop()
                await b.ha.fail_over()
        assert await bodies_at(ground, "c", 5) == [b"0", b"2", b"4", b"6", b"8"]
        await b.ha.wait_for(phase="waiting", timeout=30)
        nursery.cancel_scope.cancel()
