"""Brokers that run the backups of each other: they ask, host, take over, and stop."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import trio

from meshq import AddressSettings, ColocatedBackupStarted, Message, ScaleDown, Security, connect
from meshq.errors import ConnectionBrokenError
from tests.ha.colocated import PORTS, URLS, broker, shared, started, until
from tests.ha.test_shared_store_brokers import SLOW, Pair, crash, pair, start


def requesters(*nodes: Any) -> list[list[str]]:
    return [[one.requester for one in node.ha.hosted] for node in nodes]


async def send_five(ground: Pair, name: str) -> None:
    async with connect(URLS[name], env=ground.env(), **SLOW) as client:
        for number in range(5):
            await client.send("q", Message(b"%d" % number, durable=True))


async def five_at(ground: Pair, url: str) -> None:
    """Take the five messages at one node."""
    found: list[bytes] = []
    async with connect(url, env=ground.env(), use_topology=False, **SLOW) as client, client.consumer("q") as consumer:
        with trio.fail_after(60):
            while len(found) < 5:
                batch = await consumer.receive_many(5, timeout=30)
                await consumer.ack(*batch)
                found += [one.body for one in batch]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
async def test_each_of_two_runs_the_backup_of_the_other_which_serves_after_a_crash() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        settings = {"address_settings": {"q": AddressSettings(max_size_messages=7, page_size_bytes=131_072)}}
        own: dict[str, Any] = {"memory_limit": 50_000_000, "stop_timeout": 3.0, "transaction_timeout": 77.0}
        a = await start(ground, nursery, broker(ground, "a", shared(), **settings, **own))
        b = await start(ground, nursery, broker(ground, "b", shared()))
        events = b.events()
        await until(lambda: requesters(a, b) == [["b"], ["a"]] and a.ha.hosted[0].phase == "waiting")
        (hosted,) = b.ha.hosted
        assert (hosted.name, hosted.node_id) == ("colocated_backup_1", str(a.node_id))
        assert (hosted.state, hosted.role, hosted.urls) == ("waiting", "backup", (f"tcp://127.0.0.1:{7002 + 100}",))
        async for event in events:
            if isinstance(event, ColocatedBackupStarted):
                break
        assert (event.name, event.requester) == ("colocated_backup_1", "a")
        # Everything else is as it is at its node.
        assert b._run.hosting is not None
        backup: Any = b._run.hosting._hosted[str(a.node_id)].broker
        theirs, mine = backup._settings, a._settings
        for name in ("address_settings", "max_session_ttl", "max_sessions_per_user", *own):
            assert getattr(theirs, name) == getattr(mine, name)
        assert (theirs.data_dir, theirs.journal, theirs.security) == ("/a", mine.journal, None)
        await send_five(ground, "a")
        await crash(ground, a)
        await until(lambda: b.ha.hosted[0].state == "active")
        assert (b.state, b.ha.hosted[0].role) == ("active", "primary")
        # Within the process it has a name of its own.
        local = connect("inproc://b.colocated_backup_1", env=b._environment())
        async with local as client:
            assert (await client.queue("q")).ready == 5
            assert (await client.address_settings("q")).max_size_messages == 7
        await five_at(ground, "tcp://127.0.0.1:7102")
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_four_nodes_have_a_backup_each_and_none_runs_two() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        nodes = await started(ground, nursery, "abcd", shared())
        assert sorted(requesters(*nodes)) == [["a"], ["b"], ["c"], ["d"]]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_that_is_refused_asks_another_one() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        idle = shared(request_backup=False)
        # In the circle it is the first one after a.
        b = await start(ground, nursery, broker(ground, "b", idle, security=Security(users={"u": "p"})))
        c = await start(ground, nursery, broker(ground, "c", idle))
        a = await start(ground, nursery, broker(ground, "a", shared(backup_request_retry_interval=1.0)))
        await until(lambda: requesters(a, b, c) == [[], [], ["a"]], 60)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_who_does_not_ask_has_no_backup_and_who_is_refused_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, broker(ground, "a", shared(request_backup=False)))
        b = await start(ground, nursery, broker(ground, "b", shared(request_backup=False, max_backups=2)))
        await trio.sleep(8)
        assert requesters(a, b) == [[], []]
        full = shared(backup_request_retries=2, backup_request_retry_interval=1.0, max_backups=0)
        asked = broker(ground, "c", full, security=Security(users={"u": "p"}))
        with caplog.at_level(logging.WARNING):
            c = await start(ground, nursery, asked)
            await trio.sleep(8)
        assert requesters(a, b, c) == [[], [], []]
        assert "security= of both nodes names different users" in caplog.text
        assert "no node runs a backup of 'c': it asks no more" in caplog.text
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_that_stops_hands_its_messages_on_by_itself() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        policy = shared(primary={"failover_on_shutdown": True}, backup={"scale_down": ScaleDown()})
        a, b = await started(ground, nursery, "ab", policy)
        await send_five(ground, "b")
        await b.stop()
        # The node where it is taken is the host itself.
        await five_at(ground, URLS["a"])
        await until(lambda: a.ha.hosted[0].phase == "waiting")
        # A new node gets a backup by itself, and runs one.
        c = await start(ground, nursery, broker(ground, "c", policy))
        await until(lambda: requesters(c) == [["a"]])
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_backup_that_fails_leaves_its_host_alone_and_is_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        # Somebody has the port of the first one.
        taken = await ground.network.host("node").listen("127.0.0.1", PORTS["b"] + 100)
        with caplog.at_level(logging.WARNING):
            a = await start(ground, nursery, broker(ground, "a", shared()))
            b = await start(ground, nursery, broker(ground, "b", shared()))
            await until(lambda: requesters(b) == [["a"]] and b.ha.hosted[0].state == "waiting")
        assert "colocated_backup_1, the backup of a, has ended" in caplog.text
        assert (a.state, b.state, b.ha.hosted[0].name) == ("active", "active", "colocated_backup_2")
        assert b.ha.hosted[0].urls == (f"tcp://127.0.0.1:{PORTS['b'] + 200}",)
        taken.close()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_backups_stop_with_their_host_and_are_run_anew_by_another_one() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a, b = await started(ground, nursery, "ab", shared())
        c = await start(ground, nursery, broker(ground, "c", shared()))
        assert b._run.hosting is not None
        backup = b._run.hosting._hosted[str(a.node_id)].broker
        await b.stop()
        assert (b.state, backup.state, b.ha.hosted) == ("stopped", "stopped", ())
        await until(lambda: requesters(c) == [["a"]])
        with pytest.raises(ConnectionBrokenError):
            async with connect("inproc://b.colocated_backup_1", env=b._environment(), initial_connect_attempts=1):
                pass
        # The one of a dies at once with its process, and is no task of anybody.
        await crash(ground, c)
        assert c.ha.hosted == ()
        nursery.cancel_scope.cancel()


async def test_operators_see_what_a_node_runs_for_others() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a, b = await started(ground, nursery, "ab", shared())
        told = {"operation": "hosted_backups"}
        async with connect(URLS["b"], env=ground.env(), **SLOW) as client:
            answer = await client.request("activemq.management", b"{}", properties=told, timeout=10)
        found = json.loads(answer.body)
        assert (found["backups"], found["max_backups"], found["mine"], found["more"]) == (1, 1, "", False)
        row = {"backup_name": "colocated_backup_1", "requester": "a", "node_id": str(a.node_id)}
        assert found["hosted"] == [{**row, "state": "waiting", "role": "backup", "phase": "waiting"}]
        assert (b.ha.policy, b.ha.role) == ("colocated", "primary")
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_brokers_and_backups_of_one_process_share_nothing_and_leave_no_task(order: str) -> None:
    async with pair() as ground:
        before, env = trio.lowlevel.current_statistics().tasks_living, ground.env()
        async with trio.open_nursery() as nursery:
            nodes = {one.name: one for one in await started(ground, nursery, "ab", shared(), env=env)}
            names = {"a", "b", "a.colocated_backup_1", "b.colocated_backup_1"}
            assert set(env.local) == names
            for name in order:
                await nodes[name].stop()
                names = {one for one in names if one[0] != name}
                assert set(env.local) == names
                assert nodes[name].ha.hosted == ()
        assert trio.lowlevel.current_statistics().tasks_living == before
