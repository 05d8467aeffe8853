"""A cluster in a test: what a node keeps, what a fault does, and what a wrong call is told."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import meshq
from meshq.errors import CallTimeoutError, JournalBrokenError, MeshqError, SettingsError, UsageError
from meshq.testing import Cluster, OvertimeError
from meshq.testing.kit._cluster_settings import CLUSTER_KEYWORDS, ClusterPlan
from meshq.testing.kit._left_open import called
from meshq.testing.kit._world import SimulatedWorld
from tests.testing.kit.worlds import in_cluster, in_world


async def send(cluster: Cluster, node: str, *bodies: bytes) -> None:
    async with cluster.client(node) as client:
        for body in bodies:
            await client.send("orders", body)


async def receive(cluster: Cluster, node: str | None = None) -> list[bytes]:
    got = []
    async with cluster.client(node) as client, client.consumer("orders") as consumer:
        while (message := await consumer.receive(timeout=30)) is not None:
            got.append(message.body)
            await message.ack()
    return got


@pytest.mark.parametrize("fault", ["kill", "power_loss"])
def test_confirmed_messages_of_a_node_come_when_it_is_back(fault: str) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b")
        getattr(cluster, fault)("n0")
        assert cluster.alive == ["n1"]
        await cluster.settled()
        await cluster.restart("n0")
        await cluster.settled()
        assert await receive(cluster, "n1") == [b"a", b"b"]

    in_cluster(test, nodes=2)


@pytest.mark.parametrize("fault", ["kill", "power_loss", "pause"])
def test_a_client_of_no_node_finds_one_that_serves_at_once(fault: str) -> None:
    async def test(cluster: Cluster) -> None:
        getattr(cluster, fault)("n0")
        for number in range(5):
            begun = trio.current_time()
            async with cluster.client() as client:
                await client.send("orders", b"%d" % number)
            assert trio.current_time() - begun < 1
        assert len(await receive(cluster)) == 5

    in_cluster(test, nodes=2)


def test_a_program_connects_by_url_without_knowing_of_the_simulation() -> None:
    async def test(cluster: Cluster) -> None:
        async with meshq.connect(cluster.url("n0")) as client:
            await client.send("orders", b"a")
        assert await receive(cluster, "n0") == [b"a"]
        cluster.kill("n0")
        async with meshq.connect(cluster.url()) as client:
            assert (await client.queue("orders")).ready == 0

    in_cluster(test, nodes=2)


def test_a_killed_task_takes_no_other_step() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            while True:
                await trio.sleep(1)
                steps.append("step")
        finally:
            steps.append("finally")

    async def test(cluster: Cluster) -> None:
        task = cluster.spawn("n0", work)
        await trio.sleep(2.5)
        cluster.kill("n0")
        await trio.sleep(10)
        assert (steps, task.state) == (["step", "step"], "killed")
        with pytest.raises(meshq.ClosedError, match="work on n0 was killed"):
            await task.wait()

    in_cluster(test, nodes=1)


def test_a_dead_task_that_will_not_end_is_dropped_when_the_test_is_over() -> None:
    async def stay() -> None:
        while True:
            with suppress(trio.Cancelled):
                await trio.sleep_forever()

    async def test(cluster: Cluster) -> None:
        cluster.spawn("n0", stay)
        await trio.sleep(1)
        cluster.kill("n0")
        raise ZeroDivisionError("of the test")

    with pytest.raises(ZeroDivisionError, match="of the test"):
        in_cluster(test, nodes=1)


def test_a_client_of_a_spawned_task_dials_from_its_node() -> None:
    async def ask(cluster: Cluster) -> int:
        with trio.move_on_after(5):
            async with cluster.client("n1", initial_connect_attempts=1) as client:
                return (await client.queue("orders")).ready
        return -1

    async def test(cluster: Cluster) -> None:
        cluster.cut("n0", "n1")
        assert await cluster.spawn("n0", ask, cluster).wait() == -1
        assert await cluster.spawn(None, ask, cluster).wait() == 0

    in_cluster(test, nodes=2)


@pytest.mark.parametrize("node", ["n0", None])
def test_an_error_of_a_spawned_task_fails_the_test(node: str | None) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("in a task")

    async def test(cluster: Cluster) -> None:
        cluster.spawn(node, fail)
        await trio.sleep_forever()

    with pytest.raises(ZeroDivisionError, match="in a task"):
        in_cluster(test, nodes=1)


def test_a_paused_node_stands_still_until_it_is_resumed() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.pause("n0")
        with trio.move_on_after(5) as wait:
            await send(cluster, "n0", b"a")
        assert wait.cancelled_caught
        await cluster.settled()
        cluster.resume("n0")
        await send(cluster, "n0", b"b")
        assert b"b" in await receive(cluster, "n0")

    in_cluster(test, nodes=2)


def test_messages_wait_for_the_end_of_a_partition() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.partition(["n0"])
        await send(cluster, "n0", b"a")
        await cluster.settled()
        async with cluster.client("n1") as client, client.consumer("orders") as consumer:
            assert await consumer.receive(timeout=20) is None
            cluster.heal()
            message = await consumer.receive(timeout=120)
            assert message is not None and message.body == b"a"
            await message.ack()

    in_cluster(test, nodes=3)


def test_one_way_cuts_delays_and_losses_hit_the_links_that_they_name() -> None:
    async def test(cluster: Cluster) -> None:
        async def seconds() -> float:
            begun = trio.current_time()
            await send(cluster, "n0", b"a")
            return trio.current_time() - begun

        quick = await seconds()
        cluster.delay("test", "n0", 2.0, jitter=1.0)
        assert quick < 1 and await seconds() > 4
        cluster.heal()
        async with cluster.client("n0") as client:
            cluster.drop("test", "n0", 0.3)
            begun = trio.current_time()
            for _ in range(10):
                await client.send("orders", b"a")
            assert trio.current_time() - begun > 0.5
        cluster.heal()
        assert await seconds() < 1
        cluster.cut("n0", "test", one_way=True)
        assert "cut: n0 -> test" in cluster.report()

    in_cluster(test, nodes=1)


def test_an_error_of_the_disk_ends_its_node_and_nothing_confirmed_is_lost() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        cluster.disk("n0", "eio_once")
        with pytest.raises(MeshqError) as raised:
            await send(cluster, "n0", b"b")
        assert raised.value.outcome != "done"
        assert "n0        failed: " in cluster.report()
        assert cluster.alive == []
        await cluster.restart("n0")
        assert (await receive(cluster))[0] == b"a"

    in_cluster(test, nodes=1)


@pytest.mark.parametrize("kind", ["eio", "eio_once", "enospc", "torn"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_fault_of_the_disk_that_has_met_no_write_is_over_when_the_cluster_has_healed(kind: str, nodes: int) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        cluster.disk("n0", kind)
        await cluster.healed()
        await send(cluster, "n0", b"b")
        await trio.sleep(100)
        assert cluster.alive == cluster.nodes
        assert await receive(cluster) == [b"a", b"b"]

    in_cluster(test, nodes=nodes)


def test_a_torn_write_cuts_the_power_and_a_dead_disk_refuses_the_restart() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        cluster.disk("n0", "torn")
        with trio.move_on_after(5):
            await send(cluster, "n0", b"b")
        assert cluster.alive == []
        cluster.disk("n0", "eio")
        with pytest.raises(JournalBrokenError):
            await cluster.restart("n0")
        cluster.disk("n0", "ok")
        await cluster.restart("n0")
        assert (await receive(cluster))[0] == b"a"

    in_cluster(test, nodes=1)


def test_a_wall_clock_moves_for_one_node_alone() -> None:
    async def test(cluster: Cluster) -> None:
        for name in cluster.nodes:
            async with cluster.client(name) as client:
                await client.send("orders", b"a", ttl=600)
        cluster.wall_clock("n0", 3600.0)
        await trio.sleep(60)
        assert [len(await receive(cluster, name)) for name in cluster.nodes] == [0, 1]

    in_cluster(test, nodes=2, redistribution_delay=None)


def test_stop_and_restart_keep_the_messages() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        await cluster.stop("n0")
        with pytest.raises(UsageError, match="n0 is dead"):
            await cluster.stop("n0")
        await cluster.restart("n0")
        assert await receive(cluster) == [b"a"]

    in_cluster(test, nodes=1)


def test_two_clusters_of_one_test_do_not_see_each_other() -> None:
    async def test(world: SimulatedWorld) -> None:
        first, second = Cluster(world, ClusterPlan(nodes=2)), Cluster(world, ClusterPlan(nodes=3))
        await first.form()
        await second.form()
        assert set(first.urls).isdisjoint(second.urls)
        assert first.broker("n0").cluster("cluster").nodes() == 2
        assert second.broker("n0").cluster("cluster").nodes() == 3

    in_world(test)


def test_settled_lists_what_still_moves_when_the_time_is_up() -> None:
    async def chatter(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            while True:
                await client.send("orders", b"a")
                await trio.sleep(0.1)

    async def test(cluster: Cluster) -> None:
        cluster.spawn(None, chatter, cluster)
        with pytest.raises(CallTimeoutError, match="n0: messages of orders come or go") as raised:
            await cluster.settled(timeout=3)
        assert isinstance(raised.value, TimeoutError)

    in_cluster(test, nodes=1)


def test_wait_for_asks_every_node_and_names_the_one_that_did_not_come_so_far() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client, client.consumer("orders"):
            await cluster.wait_for(nodes=2, queue="orders", consumers=1)
            with pytest.raises(CallTimeoutError, match=r"^n0: "):
                await cluster.wait_for(queue="orders", consumers=2, timeout=5)

    in_cluster(test, nodes=2)


def test_the_same_seed_is_the_same_run() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b")
        cluster.kill("n1")
        await cluster.restart("n1")
        await receive(cluster, "n1")

    traces = [in_cluster(test, nodes=2, seed=seed).scheduler.trace for seed in (5, 5, 6)]
    assert traces[0] == traces[1] != traces[2]


def test_a_seed_of_the_cluster_wins_over_that_of_the_test() -> None:
    async def test(world: SimulatedWorld) -> None:
        cluster = Cluster(world, ClusterPlan(nodes=1, seed=7))
        await cluster.form()
        assert (cluster.seed, world.seed) == (7, 7)
        await send(cluster, "n0", b"a")

    assert in_world(test, 1).scheduler.trace == in_world(test, 2).scheduler.trace


def test_a_report_names_seed_nodes_queues_and_the_last_events() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        cluster.kill("n1")
        lines = cluster.report().split("\n")
        assert lines[0].startswith("seed 1, ")
        assert lines[2].split() == ["n0", "active", "orders:", "1", "ready,", "0", "unacked"]
        assert lines[3].split() == ["n1", "dead", "-"]
        assert lines[-1].split()[1:] == ["n1", "killed"]

    in_cluster(test, nodes=2)


WRONG: list[tuple[Any, str]] = [
    (lambda cluster: cluster.kill("n9"), "no node is named 'n9'; the nodes: n0, n1"),
    (lambda cluster: cluster.url("x"), "no node is named 'x'; the nodes: n0, n1"),
    (lambda cluster: cluster.cut("n0", "n2"), "no node is named 'n2'; the nodes: n0, n1, test"),
    (lambda cluster: cluster.kill("n1"), "n1 is dead, .*; n0 is active, n1 is dead"),
    (lambda cluster: cluster.broker("n1"), "n1 is dead"),
    (lambda cluster: cluster.spawn("n1", trio.sleep, 1), "n1 is dead"),
    (lambda cluster: cluster.resume("n0"), "n0 is active, and not paused"),
    (lambda cluster: cluster.disk("n0", "lost"), "kind='lost' is not allowed; allowed: eio, eio_once, enospc"),
    (lambda cluster: cluster.drop("n0", "n1", 1.0), "probability=1.0 is not allowed"),
    (lambda cluster: cluster.delay("n0", "n1", -1), "seconds=-1 is not allowed"),
    (lambda cluster: cluster.cut("n0", "n0"), "a link is between two different places, not 'n0' and 'n0'"),
    (lambda cluster: cluster.delay("test", "test", 1), "a link is between two different places"),
    (lambda cluster: cluster.cut("n0", "n1", one_way="yes"), "one_way='yes' is not allowed; allowed: True or False"),
    (lambda cluster: cluster.wall_clock("n0", "x"), "seconds='x' is not allowed; allowed: seconds from -1e9 to 1e9"),
    (lambda cluster: cluster.wall_clock("n0", float("nan")), "seconds=nan is not allowed"),
    (lambda cluster: cluster.spawn("n0", 5), "spawn.* needs an async function, and not 5"),
    (lambda cluster: cluster.spawn("n0", send(cluster, "n0")), "hand over fn, and not fn"),
    (lambda cluster: cluster.partition("n0", "n1"), "a group of a partition is a list"),
    (lambda cluster: cluster.partition(["n0"], ["n0", "n1"]), "named twice: n0"),
    (lambda cluster: cluster.partition(), "a partition needs a group"),
]


def test_a_wrong_call_names_the_nodes_and_what_is_allowed() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.kill("n1")
        for call, text in WRONG:
            with pytest.raises(UsageError, match=text):
                call(cluster)

    in_cluster(test, nodes=2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ha": "colocated"}, "ha='colocated': this version of meshq has no such backups"),
        ({"nodes": 0}, "nodes=0 is not allowed; allowed: a number from 1 to 32"),
        ({"queues": "orders"}, "queues='orders' is not allowed"),
        ({"seed": -1}, "seed=-1"),
        ({"faults": "all"}, "faults='all'"),
        ({"redistribution_delay": -1}, "redistribution_delay=-1"),
        ({"colour": 1}, "colour=1 is not allowed; allowed: no setting of this name; the settings: nodes, queues, ha, "),
    ],
)
def test_a_wrong_setting_of_a_cluster_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ClusterPlan.of(settings.pop("nodes", 3), settings, ("nodes", *CLUSTER_KEYWORDS))


def test_the_settings_that_a_call_takes_are_those_of_a_cluster() -> None:
    # Services are made of parts that a call can't be given from outside its run.
    assert {"nodes", "services", *CLUSTER_KEYWORDS} == {field.name for field in attrs.fields(ClusterPlan)}
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "test-your-service.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in CLUSTER_KEYWORDS)


def test_sockets_and_threads_of_the_real_world_are_refused_to_the_test_and_to_nobody_else() -> None:
    asked, answered = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()

    def other() -> None:
        asked.get(timeout=30)
        with socket.socket() as one:
            answered.put(one.fileno())

    async def test(cluster: Cluster) -> None:
        text = "a (socket|thread) of the real world can't be part of a simulated test.* meshq_server"
        for call in (socket.socket, trio.socket.socket, threading.Thread(target=int).start):
            with pytest.raises(UsageError, match=text):
                call()
        with pytest.raises(UsageError, match=text):
            await trio.to_thread.run_sync(int)
        asked.put(None)
        assert answered.get(timeout=30) > 0
        await send(cluster, "n0", b"a")

    helper = threading.Thread(target=other)
    helper.start()
    # trio has a thread that waits for more work.
    trio.run(trio.to_thread.run_sync, int)
    in_cluster(test, nodes=1)
    helper.join()
    socket.socket().close()


def test_an_object_that_was_entered_by_hand_and_never_left_is_closed_and_named() -> None:
    async def left_open(cluster: Cluster) -> None:
        client = await cluster.client("n0").__aenter__()
        await client.consumer("orders").__aenter__()
        with pytest.raises(UsageError, match=r"^the task .* has to be an async function"):
            await called(len, ([],), "the task x")  # type: ignore[arg-type]

    async def fails(cluster: Cluster) -> None:
        await cluster.client("n0").__aenter__()
        raise ZeroDivisionError

    async def test(cluster: Cluster) -> None:
        text = r"still open at the end of the test: <Consumer 'orders' .*>, <Client .*>; enter it with async with"
        with pytest.raises(UsageError, match=text):
            await called(left_open, (cluster,), "the test")
        with pytest.raises(ZeroDivisionError):
            await called(fails, (cluster,), "the test")
        await send(cluster, "n0", b"a")

    in_cluster(test, nodes=1)


def test_settings_of_addresses_keep_the_redistribution_delay_unless_they_have_their_own() -> None:
    given = {"#": meshq.AddressSettings(max_delivery_attempts=3), "a": meshq.AddressSettings()}
    merged = ClusterPlan(address_settings=given, redistribution_delay=2.0).settings_of_addresses()
    assert (merged["#"].redistribution_delay, merged["#"].max_delivery_attempts) == (2.0, 3)
    assert merged["a"] == given["a"]


def test_a_test_that_waits_for_what_never_comes_fails_with_the_stack_of_every_task() -> None:
    async def test(world: SimulatedWorld) -> None:
        await trio.sleep_forever()

    with pytest.raises(OvertimeError, match="sleep_forever"):
        in_world(test)


def test_a_setting_error_is_one_of_usage() -> None:
    assert issubclass(SettingsError, UsageError)


def test_a_cluster_with_users_asks_its_clients_and_links_its_nodes_all_the_same() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0", user="app", password="secret") as client:
            await client.send("orders", b"a")
        with pytest.raises(meshq.SecurityError):
            async with cluster.client("n1"):
                pass

    in_cluster(test, nodes=2, security=meshq.Security(users={"app": "secret"}))


def test_settings_of_the_cluster_reach_its_connections_and_addresses() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        async with cluster.client("n1") as client, client.consumer("orders") as consumer:
            assert await consumer.receive(timeout=60) is None

    in_cluster(test, nodes=2, load_balancing="off", redistribution_delay=None)
