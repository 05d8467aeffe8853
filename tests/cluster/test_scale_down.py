"""A node that scales down: a clean stop hands everything over to another node, a crash nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from meshq import Broker, ClusterConnection, LiveOnly, Message, ScaleDown, SettingsError
from tests.cluster.kit import Mesh, bodies
from tests.cluster.nodes import connection
from tests.cluster.nodes import nodes as separate
from tests.cluster.test_transfer import nodes_with_queues, numbered, recounted, taken

SCALES_DOWN = {"ha": LiveOnly(scale_down=ScaleDown())}


def own(**settings: Any) -> dict[str, Any]:
    return {"own": {"a": {"data_dir": "/data/broker", **settings}}}


async def ten(nodes: Mesh) -> None:
    """Have 5 durable and 5 other messages at ``a``, and two at ``b``."""
    await nodes.send("b", [b"a1", b"a2"])
    async with nodes.client("a") as client:
        for number in range(10):
            await client.send("q", Message(b"%d" % number, durable=number < 5))


async def test_a_clean_stop_of_a_node_that_scales_down_sends_all_its_messages_to_another_node() -> None:
    async with nodes_with_queues(**own(**SCALES_DOWN)) as nodes:
        await ten(nodes)
        state = await recounted(nodes)
        assert bodies(await taken(nodes, "b")) == [b"a1", b"a2", *numbered(10)]
        assert [name for name, (live, _) in state["queues"].items() if live] == []


@pytest.mark.parametrize("policy", [None, LiveOnly(), LiveOnly(scale_down=ScaleDown(enabled=False))])
async def test_without_scale_down_a_stop_keeps_what_is_durable_and_the_rest_is_gone(policy: LiveOnly | None) -> None:
    async with nodes_with_queues(**own(ha=policy)) as nodes:
        await ten(nodes)
        await nodes.stop("a")
        assert bodies(await taken(nodes, "b")) == [b"a1", b"a2"]
        await nodes.start("a")
        assert bodies(await taken(nodes, "a")) == numbered(5)


async def test_a_crash_of_a_node_that_scales_down_moves_nothing_and_what_is_durable_stays() -> None:
    async with nodes_with_queues(**own(**SCALES_DOWN)) as nodes:
        await ten(nodes)
        await nodes.kill("a")
        assert bodies(await taken(nodes, "b")) == [b"a1", b"a2"]
        await nodes.start("a")
        assert bodies(await taken(nodes, "a")) == numbered(5)


@pytest.mark.parametrize(("policy", "wanted", "moved"), [(None, True, 10), (SCALES_DOWN["ha"], False, 0)])
async def test_a_stop_may_say_itself_whether_it_scales_down(policy: LiveOnly | None, wanted: bool, moved: int) -> None:
    async with nodes_with_queues(**own(ha=policy)) as nodes:
        await ten(nodes)
        await nodes.brokers["a"].stop(scale_down=wanted)
        await nodes.ended("a")
        assert len(await taken(nodes, "b")) == 2 + moved


async def test_only_a_node_of_the_group_takes_over_and_the_last_of_a_group_stops_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = {"a": "g1", "b": "g1", "c": "g2"}
    order = LiveOnly(scale_down=ScaleDown(group_name="g1"))
    connections = {
        name: [connection(name, [other for other in groups if other != name], group_name=group)]
        for name, group in groups.items()
    }
    # The order of connectors leads to the node of the other group first.
    connections["a"] = [connection("a", ["c", "b"], group_name="g1")]
    async with separate(connections, ["q"], a={"ha": order}, b={"ha": order}) as made:
        for name in "abc":
            await made.known(name).wait_for(nodes=3)
        await made.send("a", "q", 5)
        await made.brokers["a"].stop()
        assert await ready_of(made, "b", "c") == {"b": 5, "c": 0}
        with caplog.at_level(logging.WARNING):
            await made.brokers["b"].stop()
        assert "stops without scaling down" in caplog.text and "of the group 'g1'" in caplog.text
        # K57: one record, with a stable event.
        events = [getattr(one, "event", "") for one in caplog.records if one.levelno >= logging.WARNING]
        assert events.count("last_of_group") == 1 and "scale_down_failed" not in events
        assert await ready_of(made, "c") == {"c": 0}


async def ready_of(made: Any, *names: str) -> dict[str, int]:
    found = {}
    for name in names:
        async with made.brokers[name].client() as client:
            found[name] = (await client.queue("q")).ready
    return found


async def test_the_named_one_of_two_clusters_finds_the_node() -> None:
    order = LiveOnly(scale_down=ScaleDown(cluster_name="second"))
    connections = {
        "a": [connection("a", ["b"], "first"), connection("a", ["c"], "second")],
        "b": [connection("b", ["a"], "first")],
        "c": [connection("c", ["a"], "second")],
    }
    async with separate(connections, ["q"], a={"ha": order}) as made:
        await made.known("a", "first").wait_for(nodes=2)
        await made.known("a", "second").wait_for(nodes=2)
        await made.send("a", "q", 5)
        await made.brokers["a"].stop()
        assert await ready_of(made, "b", "c") == {"b": 0, "c": 5}


async def test_the_first_of_the_named_connectors_that_is_linked_takes_over_and_no_other_node() -> None:
    order = ScaleDown(connectors=["inproc://nobody", "c"])
    async with nodes_with_queues("abc", **{"broker": {"queues": ["q"]}, **own(ha=LiveOnly(scale_down=order))}) as nodes:
        await ten(nodes)
        await nodes.stop("a")
        assert bodies(await taken(nodes, "c")) == numbered(10)


async def test_a_node_with_nobody_to_take_over_stops_with_a_warning_and_what_is_durable_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with nodes_with_queues("a", **own(**SCALES_DOWN)) as nodes:
        await nodes.send("a", numbered(3))
        with caplog.at_level(logging.WARNING):
            await nodes.stop("a")
        assert "stops without scaling down" in caplog.text
        await nodes.start("a")
        assert bodies(await taken(nodes, "a")) == numbered(3)


@pytest.mark.slow
async def test_a_target_that_dies_in_the_middle_holds_a_stop_up_for_so_long_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with nodes_with_queues(**own(**SCALES_DOWN)) as nodes:
        await nodes.send("a", numbered(3_000))
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes.stop, "a")
            await trio.sleep(0.5)
            await nodes.kill("b")
        assert "does not answer" in caplog.text
        await nodes.start("a", "b")
        await nodes.joined()
        got = bodies(await taken(nodes, "a")) + bodies(await taken(nodes, "b"))
        assert sorted(map(int, got)) == list(range(3_000))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda: ScaleDown(cluster_name="other"), "cluster_name='other'"),
        (lambda: ScaleDown(connectors=["nowhere"]), "connectors='nowhere'"),
        (lambda: ScaleDown(connectors="a"), "connectors='a'"),
        (lambda: ScaleDown(group_name=7), "group_name=7"),
        (lambda: ScaleDown(enabled=1), "enabled=1"),
        (lambda: ScaleDown(discovery="group"), "discovery='group'"),
        (lambda: True, "scale_down=True"),
    ],
)
def test_an_order_that_is_not_allowed_is_refused_by_name(order: Any, said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        mesh = ClusterConnection("mesh", connector="a", user="u", password="p")
        Broker("a", data_dir=None, connectors={"a": "inproc://a"}, services=[mesh], ha=LiveOnly(scale_down=order()))
    assert said in str(raised.value)
