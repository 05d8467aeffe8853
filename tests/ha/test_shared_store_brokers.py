"""Two brokers and one store: takeover, hand-over, failback, and clients that go on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import (
    Broker,
    BrokerStateChanged,
    BusyError,
    Client,
    ClusterConnection,
    LiveOnly,
    Message,
    NotActiveError,
    RefusedError,
    RoleChanged,
    SettingsError,
    SharedStoreBackup,
    SharedStorePrimary,
    StoreDirectories,
    abc,
    connect,
)
from meshq.broker.core import _recovery
from meshq.broker.core._recovery import Recovery
from meshq.env import real_env
from meshq.errors import CallTimeoutError, ConnectionBrokenError, UnblockedError
from meshq.testing import InlineThreads, MemoryNetwork, SimDisk
from meshq.testing._network_stream import MemoryStream
from meshq.testing.disk._mount import SimFile

SLOW: dict[str, Any] = {"retry_interval": 0.05, "reconnect_attempts": float("inf"), "initial_connect_attempts": 200}


class Pair:
    """A network of three hosts, and a disk that they share."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(random.Random(1))
        self.disk = SimDisk()
        self.scopes: dict[str, trio.CancelScope] = {}

    def env(self) -> abc.Env:
        parts: dict[str, Any] = {
            "network": self.network.host("node"),
            "disk": self.disk.mount(),
            "threads": InlineThreads(),
        }
        return attrs.evolve(real_env(), local={}, host="node", pid=1, **parts)

    def broker(self, name: str, ha: abc.HAPolicy | None, **settings: Any) -> Broker:
        given: dict[str, Any] = {
            "data_dir": "/data",
            "acceptors": [f"tcp://127.0.0.1:{ {'a': 7001, 'b': 7002, 'c': 7003}[name] }"],
            "services": [ClusterConnection("c", password="p")],
            "ha": ha,
            "env": self.env(),
            **settings,
        }
        return Broker(name, **given)

    def client(self, **settings: Any) -> Client:
        return connect("(tcp://127.0.0.1:7001,tcp://127.0.0.1:7002)", env=self.env(), **SLOW, **settings)


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    ground = Pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        yield ground
        nursery.cancel_scope.cancel()


async def crash(ground: Pair, broker: Broker) -> None:
    """Cancel the task of a broker, which is how a test without processes lets one die."""
    ground.scopes[broker.name].cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert broker.state == "stopped"


async def start(ground: Pair, nursery: trio.Nursery, broker: Broker) -> Broker:
    """Start a broker that may be cancelled alone."""

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as scope:
            ground.scopes[broker.name] = scope
            await broker.run(task_status=task_status)

    await nursery.start(run)
    return broker


async def test_a_backup_takes_over_after_a_crash_with_the_durable_messages_and_the_same_client_goes_on() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        first = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        second = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        changes = second.events()
        assert (first.state, second.state) == ("active", "waiting")
        assert (first.ha.role, first.ha.phase) == ("primary", "active")
        assert (second.ha.role, second.ha.phase) == ("backup", "waiting")
        async with ground.client() as client:
            for durable in (True, False):
                for number in range(5):
                    await client.send("q", Message(str(number).encode(), durable=durable))
            node_id = first.node_id
            await crash(ground, first)
            with pytest.raises(UnblockedError):
                await client.queue("q")
            assert (await client.queue("q")).ready == 5
            assert (second.state, second.node_id) == ("active", node_id)
            assert second.ha.epoch == 2
            assert second.ha.acting == abc.RoleMember(name="b", url="tcp://127.0.0.1:7002", epoch=2)
            async with client.consumer("q") as consumer:
                bodies = [one.body for one in await consumer.receive_many(5, timeout=5)]
                assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        seen = [one async for one in _until_role(changes)]
        assert [one.state for one in seen if isinstance(one, BrokerStateChanged)] == ["starting", "active"]
        (role,) = [one for one in seen if isinstance(one, RoleChanged)]
        assert (role.role, role.previous, role.epoch, role.reason) == ("primary", "backup", 2, "crash")
        assert 0 < role.without_service < 1
        nursery.cancel_scope.cancel()


async def test_a_takeover_reads_the_more_the_more_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """F62: the store is read when a backup takes over, and not before; nothing of it goes over the network."""
    read = told = 0
    inner, transmit = SimFile.read_at, MemoryStream._transmit

    def transmitted(stream: MemoryStream, data: bytes) -> None:
        nonlocal told
        told += len(data)
        transmit(stream, data)

    monkeypatch.setattr(MemoryStream, "_transmit", transmitted)

    def counted(file: SimFile, offset: int, size: int) -> bytes:
        nonlocal read
        data = inner(file, offset, size)
        read += len(data)
        return data

    monkeypatch.setattr(SimFile, "read_at", counted)
    taken = []
    for count in (10, 200):
        async with pair() as ground, trio.open_nursery() as nursery:
            first = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
            second = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
            async with ground.client() as client, client.producer("q") as producer:
                told = 0
                for _ in range(count):
                    await producer.send(b"x" * 1_000)
                await producer.flush()
            # From the client to the node that serves, once.
            assert count * 1_000 < told < count * 1_200 + 20_000
            read = 0
            await crash(ground, first)
            await second.ha.wait_for(phase="active", timeout=60)
            taken.append(read)
            nursery.cancel_scope.cancel()
    few, many = taken
    assert many - few > 190 * 1_000, taken


async def test_a_shared_store_costs_no_write_more_while_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """F62: while a node serves, it writes and syncs what a node alone does: the lease aside, which is no message's."""
    calls: list[tuple[str, str, int]] = []
    write, sync = SimFile.write_at, SimFile.sync

    def written(file: SimFile, offset: int, buffers: Any) -> None:
        calls.append(("write", file.path.rsplit("/", 1)[-1], sum(map(len, buffers))))
        write(file, offset, buffers)

    def synced(file: SimFile) -> Any:
        calls.append(("sync", file.path.rsplit("/", 1)[-1], 0))
        return sync(file)

    monkeypatch.setattr(SimFile, "write_at", written)
    monkeypatch.setattr(SimFile, "sync", synced)
    seen = []
    for policy in (None, SharedStorePrimary()):
        async with pair() as ground, trio.open_nursery() as nursery:
            await start(ground, nursery, ground.broker("a", policy))
            if policy is not None:
                await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
            async with ground.client() as client, client.producer("q") as producer:
                await producer.send(b"the queue is made")
                calls.clear()
                for _ in range(20):
                    await producer.send(b"x" * 1_000)
                await producer.flush()
                seen.append([call for call in calls if call[1].endswith(".seg")])
            nursery.cancel_scope.cancel()
    alone, shared = seen
    assert shared == alone
    assert sum(size for kind, _, size in alone if kind == "write") > 20_000


async def _until_role(changes: Any) -> AsyncIterator[Any]:
    async for one in changes:
        if isinstance(one, BrokerStateChanged | RoleChanged):
            yield one
        if isinstance(one, RoleChanged):
            return


async def test_two_brokers_that_start_together_are_never_active_together_and_the_first_one_comes_first() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        a = ground.broker("a", SharedStorePrimary(wait_for_activation=False))
        await start(ground, nursery, a)
        for _ in range(100):
            await trio.sleep(0.01)
            assert [a.state, b.state].count("active") <= 1
        assert sorted([a.state, b.state]) == ["active", "waiting"]
        nursery.cancel_scope.cancel()


async def test_a_backup_that_is_alone_serves_and_one_that_waits_refuses_clients_and_says_who_serves() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await b.ha.wait_for(phase="active", timeout=1)
        c = await start(ground, nursery, ground.broker("c", SharedStoreBackup()))
        await c.ha.wait_for(epoch=1, timeout=1)
        with pytest.raises(ConnectionBrokenError) as caught:
            async with connect("tcp://127.0.0.1:7003", env=ground.env()):
                raise AssertionError("a backup has let a client in")
        assert isinstance(caught.value.__cause__, NotActiveError)
        assert "'b' is active at tcp://127.0.0.1:7002" in str(caught.value.__cause__)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("failover", [False, True])
@pytest.mark.slow
async def test_a_clean_stop_leaves_backups_waiting_unless_it_hands_over(failover: bool) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup(wait_for_activation=False)))
        async with ground.broker("c", SharedStorePrimary(wait_for_activation=False)) as c:
            await b.ha.wait_for(phase="active", timeout=1)
            await c.ha.wait_for(phase="waiting", timeout=1)
            with pytest.raises(CallTimeoutError, match="phase active"):
                await c.ha.wait_for(phase="active", timeout=10)
            await b.stop(failover=failover)
            # A primary that waits does not mind how the node before has ended.
            await c.ha.wait_for(phase="active", timeout=1)
            d = await start(ground, nursery, ground.broker("a", SharedStoreBackup()))
            await c.stop(failover=failover)
        await trio.sleep(10)
        assert (d.state == "active") == failover
        if not failover:
            await d.ha.fail_over()
            assert d.state == "active"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_fail_over_hands_over_to_the_node_that_waits_and_fail_back_returns() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        with pytest.raises(RefusedError, match="no other node waits"):
            await a.ha.fail_over(force=True)
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await a.ha.wait_for(phase="active")
        await trio.sleep(1)
        async with ground.client() as client:
            await client.send("q", b"1")
            await a.ha.fail_over()
            await b.ha.wait_for(phase="active", timeout=5)
            assert (a.state, b.state) == ("waiting", "active")
            await client.send("q", b"2")
            with pytest.raises(NotActiveError, match="'b' at"):
                await a.ha.fail_over()
            # Without allow_failback it stays so, until somebody asks.
            await trio.sleep(10)
            assert b.state == "active"
            await b.ha.fail_back()
            await a.ha.wait_for(phase="active", timeout=5)
            assert b.state == "waiting"
            assert (await client.queue("q")).ready == 2
        nursery.cancel_scope.cancel()


async def test_a_backup_that_has_not_looked_yet_does_not_take_an_order_against_the_node_that_serves() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        with pytest.raises(NotActiveError, match="'a' at"):
            await b.ha.fail_over(timeout=1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("restart", [False, True])
async def test_an_acting_backup_gives_back_to_a_primary_that_returns_and_waits_or_ends(restart: bool) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        policy = SharedStoreBackup(allow_failback=True, restart_backup=restart)
        b = await start(ground, nursery, ground.broker("b", policy))
        async with ground.client() as client:
            await client.send("q", b"1")
            await crash(ground, a)
            await client.send("q", b"2")
            assert b.state == "active"
            a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
            assert a.ha.epoch == 3
            assert b.state == ("waiting" if restart else "stopped")
            assert (await client.queue("q")).ready == 2
        nursery.cancel_scope.cancel()


async def test_a_store_that_takes_longer_than_a_lease_to_be_read_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary(lease=1.0)))
        async with ground.client() as client:
            for number in range(150):
                await client.send("q", b"%d" % number)
        await crash(ground, a)
        take, clock = Recovery._run, trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)

        def slowly(recovery: Recovery, *given: Any) -> None:
            # The loop stands still meanwhile.
            clock.jump(0.01)
            take(recovery, *given)

        monkeypatch.setattr(Recovery, "_run", slowly)
        monkeypatch.setattr(_recovery, "STEP", 8)
        begun = trio.current_time()
        with trio.fail_after(20):
            a = await start(ground, nursery, ground.broker("a", SharedStorePrimary(lease=1.0)))
        assert trio.current_time() - begun > 1.5
        assert (a.ha.epoch, a.ha.phase) == (2, "active")
        async with ground.client() as client:
            assert (await client.queue("q")).ready == 150
        nursery.cancel_scope.cancel()


async def test_a_node_whose_store_another_one_has_got_steps_back_and_confirms_nothing_more() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        answers: list[bool] = []
        with pytest.raises(ConnectionBrokenError):
            async with connect("tcp://127.0.0.1:7001", env=ground.env(), reconnect_attempts=0) as client:
                await client.send("q", b"1")
                # A file system has given the lock away, and a successor begins.
                ground.disk.move_directory("/data/epoch-1", "/data/epoch-2")
                await client.send("q", b"2")
                answers.append(True)
        assert not answers
        await a.ha.wait_for(phase="active", epoch=3, timeout=5)
        assert a.state == "active"
        nursery.cancel_scope.cancel()


async def test_a_node_that_gets_its_own_store_again_says_why_and_how_long_nobody_served() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary(lease=2.0)))
        changes = a.events()
        ground.disk.faults.inject("open", error=5, times=float("inf"))
        await a.ha.wait_for(role="backup", timeout=5)
        await trio.sleep(3)
        ground.disk.faults.clear()
        await a.ha.wait_for(phase="active", epoch=2, timeout=5)
        roles = [one async for one in _roles(changes, 2)]
        assert [(one.role, one.reason) for one in roles] == [("backup", "lease_lost"), ("primary", "lease_lost")]
        assert 3 <= roles[1].without_service < 6
        nursery.cancel_scope.cancel()


async def _roles(changes: Any, count: int) -> AsyncIterator[RoleChanged]:
    async for one in changes:
        if isinstance(one, RoleChanged):
            yield one
            count -= 1
        if not count:
            return


@pytest.mark.slow
async def test_a_client_that_was_given_one_node_finds_the_backup_by_the_topology_and_is_told_of_the_next_one() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await a.ha.wait_for(phase="active")
        async with connect("tcp://127.0.0.1:7001", env=ground.env(), **SLOW) as client:
            await trio.sleep(1)
            (node,) = client.topology()
            assert (node.primary, node.backup) == ("tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002")
            await client.send("q", b"1")
            await crash(ground, a)
            await client.send("q", b"2")
            assert b.state == "active"
            c = await start(ground, nursery, ground.broker("c", SharedStoreBackup()))
            await trio.sleep(1)
            (node,) = client.topology()
            assert node.node_id == str(b.node_id)
            assert (node.primary, node.backup) == ("tcp://127.0.0.1:7002", "tcp://127.0.0.1:7003")
            # After two failures the second backup serves.
            await crash(ground, b)
            await client.send("q", b"3")
            assert c.state == "active"
            assert (await client.queue("q")).ready == 3
            # The one that was first comes first when it is back.
            await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
            a = ground.broker("a", SharedStorePrimary(wait_for_activation=False))
            await start(ground, nursery, a)
            await trio.sleep(1)
            assert client.topology()[0].backup == "tcp://127.0.0.1:7001"
            await crash(ground, c)
            await client.send("q", b"4")
            assert a.state == "active"
        nursery.cancel_scope.cancel()


async def test_an_original_that_waits_serves_when_the_acting_node_is_killed() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        async with ground.client() as client:
            await client.send("q", b"1")
            a = await start(ground, nursery, ground.broker("a", SharedStorePrimary(wait_for_activation=False)))
            await trio.sleep(5)
            assert (a.state, b.state) == ("waiting", "active")
            await crash(ground, b)
            await client.send("q", b"2")
            assert a.state == "active"
            assert (await client.queue("q")).ready == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("wait", [None, False, True])
async def test_a_start_waits_for_the_store_unless_the_policy_says_otherwise(wait: bool | None) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await b.ha.wait_for(phase="active")
        policy = SharedStorePrimary() if wait is None else SharedStorePrimary(wait_for_activation=wait)
        a = ground.broker("a", policy)
        with trio.move_on_after(5) as scope:
            async with a:
                assert (a.state, wait) == ("waiting", False)
                await crash(ground, b)
                await a.ha.wait_for(phase="active", timeout=5)
        assert scope.cancelled_caught == (wait is not False)
        nursery.cancel_scope.cancel()


async def test_what_a_pair_has_shared_a_broker_without_a_pair_reads_alone() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        async with ground.broker("a", SharedStorePrimary()) as a:
            async with a.client() as client:
                await client.send("q", b"1")
            with pytest.raises(BusyError, match="is open already"):
                async with ground.broker("c", LiveOnly()):
                    raise AssertionError("two brokers have one store")
        for ha in (None, LiveOnly()):
            async with ground.broker("c", ha) as c, c.client() as client:
                assert (await client.queue("q")).ready == 1
                assert (c.ha.policy, c.ha.role) == ("live_only", "live_only")
        assert [name for name in ground.disk.names("/data") if name.startswith("epoch")] == ["epoch-3"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("policy", [SharedStorePrimary(), SharedStoreBackup()])
def test_what_does_not_go_together_is_refused_when_the_broker_is_built(policy: abc.HAPolicy) -> None:
    cluster = [ClusterConnection("c", password="p")]
    given: dict[str, Any] = {"data_dir": "/data", "acceptors": ["tcp://127.0.0.1:7001"], "ha": policy}
    for setting, changed in (
        ("ha", {"services": []}),
        ("ha", {"services": cluster, "data_dir": None}),
        ("directories", {"services": cluster, "directories": StoreDirectories(journal="/fast")}),
    ):
        with pytest.raises(SettingsError) as caught:
            Broker("a", **{**given, **changed})
        assert caught.value.setting == setting
