"""What clients see of a pair: one node that serves, one that is announced, and their consumers that go on."""

from __future__ import annotations

import pytest
import trio

from meshq import (
    BackupChanged,
    BroadcastGroup,
    Broker,
    ClusterConnection,
    ConnectionBrokenError,
    LiveOnly,
    MeshqError,
    NotActiveError,
    ScaleDown,
    SharedStoreBackup,
    SharedStorePrimary,
    TopologyChanged,
    connect,
)
from meshq.abc import RoleMember, RoleReport
from meshq.discovery import Announcement, ConnectorPair
from meshq.discovery._announcement_sender import AnnouncementSender
from meshq.discovery._datagram_format import decode_announcement
from meshq.env import real_env
from meshq.testing import MemoryBroadcast
from tests.discovery.test_groups import heard
from tests.ha.stores import Store
from tests.ha.test_shared_store_brokers import crash, pair, start


async def test_of_two_backups_one_is_announced_and_neither_serves_anybody() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        events = a.events()
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        await start(ground, nursery, ground.broker("c", SharedStoreBackup()))
        await trio.sleep(1)
        for port in (7002, 7003):
            with pytest.raises(ConnectionBrokenError) as caught:
                async with connect(f"tcp://127.0.0.1:{port}", env=ground.env()):
                    raise AssertionError("a backup has let a client in")
            assert isinstance(caught.value.__cause__, NotActiveError)
        async with ground.client() as client:
            (node,) = client.topology()
            heard = client.events()
            assert (node.primary, node.backup) == ("tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002")
            assert [name for name, _ in (await client.ha()).waiting] == ["b", "c"]
            # The one that was announced is gone: the other one becomes that.
            await crash(ground, b)
            await trio.sleep(2)
            assert client.topology()[0].backup == "tcp://127.0.0.1:7003"
        # K56: each change is an event, at the broker and at the client.
        await a.stop()
        told = [(one.node_name, one.backup) async for one in events if isinstance(one, BackupChanged)]
        assert told[:1] == [("a", "tcp://127.0.0.1:7002")] and told[-1] == ("a", "tcp://127.0.0.1:7003")
        changed = [one.changed[0].backup async for one in heard if isinstance(one, TopologyChanged)]
        assert changed[-1] == "tcp://127.0.0.1:7003" and len(told) <= 3
        nursery.cancel_scope.cancel()


async def test_the_node_that_would_take_over_is_announced_with_the_node_that_serves() -> None:
    lan = MemoryBroadcast()
    channel = await lan.open(real_env())
    brokers: list[Broker] = []

    async def announced() -> tuple[ConnectorPair, ...]:
        return [announcement for _, announcement in await heard(channel, 2.1)][-1].connectors

    async with pair() as ground, trio.open_nursery() as nursery:
        for name, policy, port in (("a", SharedStorePrimary(), 7001), ("b", SharedStoreBackup(), 7002)):
            group = BroadcastGroup("lan", lan, connectors=["me"])
            connectors = {"me": f"tcp://127.0.0.1:{port}"}
            brokers.append(
                ground.broker(
                    name, policy, services=[ClusterConnection("c", password="p"), group], connectors=connectors
                )
            )
            await start(ground, nursery, brokers[-1])
            backup = "" if name == "a" else "tcp://127.0.0.1:7002"
            # Who waits is not announced itself.
            assert await announced() == (ConnectorPair("tcp://127.0.0.1:7001", backup),)
        await crash(ground, brokers[0])
        assert await announced() == (ConnectorPair("tcp://127.0.0.1:7002"),)
        nursery.cancel_scope.cancel()


async def test_a_consumer_and_a_session_are_made_again_at_the_backup() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        async with (
            ground.client() as client,
            client.consumer("q") as consumer,
            client.consumer("r", window=1) as other,
            client.producer("q") as producer,
        ):
            await producer.send(b"1")
            await producer.flush()
            first = await consumer.receive(timeout=5)
            assert first is not None
            await consumer.ack(first, confirm=True)
            await crash(ground, a)
            await producer.send(b"2")
            await producer.flush()
            await client.send("r", b"3")
            second, third = await consumer.receive(timeout=5), await other.receive(timeout=5)
            assert second is not None and third is not None
            assert (second.body, third.body) == (b"2", b"3")
            await consumer.ack(second, confirm=True)
            await other.ack(third, confirm=True)
            assert (b.state, (await client.queue("q")).ready, (await client.queue("q")).delivering) == ("active", 0, 0)
        nursery.cancel_scope.cancel()


async def test_nodes_on_different_directories_are_no_pair() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        c = await start(ground, nursery, ground.broker("c", SharedStoreBackup(), data_dir="/other"))
        await c.ha.wait_for(phase="active", timeout=5)
        assert (a.state, b.state, c.state) == ("active", "waiting", "active")
        assert c.node_id != a.node_id
        async with ground.client() as client:
            await client.send("q", b"1")
            await crash(ground, a)
            await client.send("q", b"2")
            assert (await client.queue("q")).ready == 2
            assert (b.state, b.node_id) == ("active", a.node_id)
        async with connect("tcp://127.0.0.1:7003", env=ground.env()) as client:
            assert "q" not in await client.queues()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ha", [None, LiveOnly(), LiveOnly(scale_down=ScaleDown(enabled=False))])
async def test_a_node_without_a_pair_has_no_backup(ha: LiveOnly | None) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", ha, services=[ClusterConnection("c", password="p")]))
        assert (a.ha.policy, a.ha.role, a.ha.acting, a.ha.waiting) == ("live_only", "live_only", None, ())
        async with connect("tcp://127.0.0.1:7001", env=ground.env()) as client:
            await trio.sleep(30)
            (node,) = client.topology()
            assert node.backup in (None, "")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("over_a_connection", [False, True])
async def test_an_operator_makes_the_backup_take_over_although_a_stop_would_not(over_a_connection: bool) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        policy = SharedStorePrimary(failover_on_shutdown=False)
        a = await start(ground, nursery, ground.broker("a", policy))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        async with ground.client() as client:
            await client.send("q", b"1")
            if over_a_connection:
                await client.fail_over()
                assert a.state == "waiting"
            else:
                await a.stop(failover=True)
                assert a.state == "stopped"
            await b.ha.wait_for(phase="active", timeout=5)
            assert (await client.queue("q")).ready == 1
        nursery.cancel_scope.cancel()


async def test_another_node_tells_of_the_backup_and_links_to_it_under_the_same_id_after_a_failover(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def mesh(*others: str) -> list[ClusterConnection]:
        return [ClusterConnection("c", static_connectors=others, password="p", retry_interval=0.1)]

    pair_urls = ("tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002")
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        c = await start(ground, nursery, ground.broker("c", None, data_dir="/other", services=mesh(*pair_urls)))
        node_id, other_id = str(a.node_id), str(c.node_id)
        events = c.events()
        await c.cluster("c").wait_for(nodes=2, timeout=10)
        await trio.sleep(1)
        async with connect("tcp://127.0.0.1:7003", env=ground.env()) as client:
            told = {node.node_id: (node.primary, node.backup) for node in client.topology()}
            assert told == {other_id: ("tcp://127.0.0.1:7003", ""), node_id: pair_urls}
            await crash(ground, a)
            with trio.fail_after(30):
                while told.get(node_id) != (pair_urls[1], ""):
                    await trio.sleep(0.5)
                    told = {node.node_id: (node.primary, node.backup) for node in client.topology()}
            assert str(b.node_id) == node_id and set(told) == {other_id, node_id}
            await b.cluster("c").wait_for(nodes=2, timeout=10)
        errors = {getattr(record, "event", "") for record in caplog.records if record.levelname == "ERROR"}
        assert errors == set()
        # K56: another broker is told of the backup, and that there is none any more.
        await c.stop()
        changes = [event async for event in events if isinstance(event, BackupChanged)]
        assert {(one.node_id, one.cluster) for one in changes} == {(node_id, "c")}
        assert [one.backup for one in changes] == [pair_urls[1], ""]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("waiting", "announced"),
    [
        ("tcp://b:1?insecure=true", "tcp://b:1"),
        ("", ""),
        ("inproc://b", ""),
        ("tcp://0.0.0.0:1", ""),
        # With it the datagram would be larger than 8 KiB.
        (f"tcp://{'b' * 400}:1", ""),
    ],
)
def test_a_node_is_announced_as_it_is_where_its_backup_can_not_be(waiting: str, announced: str) -> None:
    control = Store().control("a")
    control.board.show(RoleReport(waiting=(RoleMember(name="b", url=waiting),)))
    sender = AnnouncementSender("lan", MemoryBroadcast(), period_s=2.0)
    urls = [f"tcp://{name * 980}:1" for name in "stuvwxyz"]
    found = decode_announcement(sender.datagram(control, urls), None)
    assert isinstance(found, Announcement)
    assert found.connectors == (ConnectorPair(urls[0], announced), *map(ConnectorPair, urls[1:]))


@pytest.mark.parametrize("flag", ["", "?ha=true", "?ha=false"])
async def test_a_client_with_ha_false_does_not_go_to_the_backup(flag: str) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        url = f"tcp://127.0.0.1:7001{flag}"
        async with connect(url, env=ground.env(), retry_interval=0.1, call_failover_timeout=10) as client:
            await client.create_queue("q")
            assert client.topology()[0].backup == "tcp://127.0.0.1:7002"
            await crash(ground, a)
            await b.ha.wait_for(phase="active", timeout=10)
            await trio.sleep(3)
            if flag == "?ha=false":
                with pytest.raises(MeshqError):
                    await client.queue("q")
            else:
                assert (await client.queue("q")).ready == 0
        nursery.cancel_scope.cancel()
