"""Targets of a scale-down that no cluster connection of the node links: how they are found, and refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from meshq import (
    BroadcastGroup,
    Broker,
    ClusterConnection,
    DiscoveryGroup,
    LiveOnly,
    Message,
    NotFoundError,
    ScaleDown,
    SettingsError,
)
from tests.cluster.kit import bodies, simulated, until
from tests.cluster.machines import LAN, leaves, machines, mesh, place, ten
from tests.cluster.test_transfer import numbered, taken

# -- connectors


async def test_a_named_connector_is_the_target_in_no_cluster_and_no_other_node_is_taken() -> None:
    # One process, and nobody has a cluster connection.
    names = {"there": "inproc://b", "other": "inproc://c"}
    parts = {"a": lambda: {"connectors": names, "ha": leaves(connectors=["there"])}}
    async with machines(parts=parts, together="abc") as nodes:
        await ten(nodes)
        async with nodes.client("a") as client:
            await client.send("fresh", Message(b"once", duplicate_id="once"))
        await nodes.stop("a")
        assert bodies(await taken(nodes, "b")) == [b"before", *numbered(10)]
        assert (await nodes.ready())["c"] == 0
        async with nodes.client("b") as client:
            await client.send("fresh", Message(b"again", duplicate_id="once"))
        assert bodies(await taken(nodes, "b", "fresh")) == [b"once"]


async def test_a_node_beyond_the_cluster_of_this_one_takes_over_and_the_clusters_stay_apart() -> None:
    parts = {
        "a": lambda: {"services": [mesh("d", name="left")], "ha": leaves(connectors=[place("b")])},
        "b": lambda: {"services": [mesh("c", name="right")]},
        "c": lambda: {"services": [mesh("b", name="right")]},
        "d": lambda: {"services": [mesh("a", name="left")]},
    }
    async with machines("abcd", parts=parts) as nodes:
        await nodes.brokers["a"].cluster("left").wait_for(nodes=2)
        await nodes.brokers["b"].cluster("right").wait_for(nodes=2)
        await ten(nodes)
        events = nodes.brokers["d"].events()
        await nodes.stop("a")
        assert (await nodes.ready()) == {"b": 11, "c": 0, "d": 0}
        assert bodies(await taken(nodes, "b")) == [b"before", *numbered(10)]
        # Those that were linked with it hear who has everything; the others have dialed nobody.
        async for event in events:
            if getattr(event, "reason", "") == "scaled_down":
                assert event.successor == bytes(nodes.brokers["b"].node_id).hex()  # type: ignore[attr-defined]
                break
        for name in "bc":
            assert len(nodes.brokers[name].cluster("right").peers()) == 1


async def test_the_named_connectors_are_tried_in_order_also_if_a_later_one_is_linked_already() -> None:
    order = leaves(connectors=[place("nobody"), place("b"), place("c")])
    parts = {
        "a": lambda: {"services": [mesh("c")], "ha": order},
        "b": lambda: {"services": [mesh(name="own")]},
        "c": lambda: {"services": [mesh("a")]},
    }
    async with machines(parts=parts) as nodes:
        await nodes.known("a").wait_for(nodes=2)
        await ten(nodes)
        await nodes.stop("a")
        assert (await nodes.ready()) == {"b": 11, "c": 0}


# -- the order


def chosen_from(**order: Any) -> dict[str, Any]:
    """Return the parts of five nodes: ``b`` is named, ``c`` is announced, ``d`` is near, ``e`` is in the cluster."""
    near = {"near": "inproc://d"} if order.pop("near", True) else {}
    if order.pop("heard", False):
        order["discovery"] = DiscoveryGroup("lan", LAN)
    return {
        "a": lambda: {"services": [mesh("e")], "ha": leaves(**order), "connectors": near},
        "b": lambda: {"services": [mesh(name="b")]},
        "c": lambda: {"services": [mesh(name="c"), BroadcastGroup("lan", LAN, connectors=["me"])]},
        "d": lambda: {"services": [mesh(name="d")]},
        "e": lambda: {"services": [mesh("a")]},
    }


@pytest.mark.parametrize(
    ("order", "target"),
    [
        ({"connectors": [place("b")], "heard": True}, "b"),
        ({"heard": True}, "c"),
        ({}, "d"),
        ({"cluster_name": "mesh"}, "e"),
        ({"near": False}, "e"),
    ],
)
async def test_targets_are_connectors_then_discovery_then_this_process_then_the_cluster(
    order: dict[str, Any], target: str
) -> None:
    async with machines("abcde", parts=chosen_from(**order), together="ad") as nodes:
        await nodes.known("a").wait_for(nodes=2)
        if order.get("heard"):
            group = nodes.brokers["a"].service("lan", kind="discovery_group")
            assert isinstance(group, DiscoveryGroup)
            await group.wait_for(1)
        await nodes.send("a", numbered(5))
        await nodes.stop("a")
        assert (await nodes.ready()) == {name: 5 * (name == target) for name in "bcde"}


async def test_a_connector_of_this_process_at_which_nobody_is_leaves_the_cluster_to_take_over() -> None:
    async with machines("ae", parts=chosen_from(), together="ad") as nodes:
        await nodes.known("a").wait_for(nodes=2)
        await nodes.send("a", numbered(5))
        await nodes.stop("a")
        assert (await nodes.ready()) == {"e": 5}


async def test_without_a_name_only_the_first_cluster_connection_finds_the_target() -> None:
    parts = {
        "a": lambda: {"services": [mesh(name="first"), mesh("b", name="second", address="none")], "ha": leaves()},
        "b": lambda: {"services": [mesh(name="second")]},
    }
    async with machines("ab", parts=parts) as nodes:
        await nodes.brokers["a"].cluster("second").wait_for(nodes=2)
        await nodes.send("a", numbered(5))
        await nodes.stop("a")
        assert (await nodes.ready()) == {"b": 0}


@pytest.mark.parametrize(
    "order", [{}, {"connectors": [place("b")]}, {"heard": True}, {"connectors": ["near"]}, {"group_name": "g"}]
)
async def test_with_none_of_them_a_stop_warns_and_is_an_ordinary_one(
    order: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with machines("a", parts=chosen_from(**order), together="ad") as nodes:
        await nodes.send("a", numbered(5))
        with caplog.at_level(logging.WARNING):
            await nodes.stop("a")
        assert "stops without scaling down" in caplog.text
        await nodes.start("a")
        assert bodies(await taken(nodes, "a")) == numbered(5)


# -- discovery


async def test_a_group_that_only_the_order_names_finds_the_target_by_its_announcements() -> None:
    # The node itself is in no cluster with anybody.
    group_of_order = DiscoveryGroup("wahey", LAN)
    parts = {
        "a": lambda: {"services": [mesh()], "ha": leaves(discovery=group_of_order, group_name="boo!")},
        "b": lambda: {
            "services": [mesh(name="b", group_name="other"), BroadcastGroup("b", LAN, connectors=["me"])],
        },
        "c": lambda: {
            "services": [mesh(name="c", group_name="boo!"), BroadcastGroup("c", LAN, connectors=["me"])],
        },
    }
    async with machines(parts=parts) as nodes:
        await group_of_order.wait_for(2)
        await nodes.send("a", numbered(5))
        await nodes.stop("a")
        assert (await nodes.ready()) == {"b": 0, "c": 5}


def test_an_order_may_have_a_group_by_name_that_a_discovery_group_finds() -> None:
    order = ScaleDown(group_name="boo!", discovery=DiscoveryGroup("wahey", LAN))
    broker = Broker("a", data_dir=None, ha=LiveOnly(scale_down=order))
    assert broker.service("wahey") is order.discovery
    assert (order.group_name, order.cluster_name, order.connectors) == ("boo!", None, ())


# -- what may go wrong


async def test_a_target_with_another_password_takes_nothing_over_and_the_reason_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = {
        "a": lambda: {"services": [mesh()], "ha": leaves(connectors=[place("b")])},
        "b": lambda: {"services": [mesh(password="another")]},
    }
    async with machines("ab", parts=parts) as nodes:
        await nodes.send("a", numbered(5))
        with pytest.raises(NotFoundError, match=r"no node 'tcp://b:5000.* is linked .*another password"):
            async with nodes.brokers["a"].drain(place("b")):
                pass
        assert nodes.linked("a") == []
        # It serves on, and stops as ever.
        await nodes.send("a", numbered(1, 5))
        with caplog.at_level(logging.WARNING):
            await nodes.stop("a")
        assert "stops without scaling down" in caplog.text and "or another password" in caplog.text
        await nodes.start("a")
        assert bodies(await taken(nodes, "a")) == numbered(6)
        assert (await nodes.ready())["b"] == 0


async def test_a_target_that_serves_no_nodes_says_so() -> None:
    async with machines("ab", parts={"a": lambda: {"services": [mesh()]}}) as nodes:
        with pytest.raises(NotFoundError, match="role"):
            async with nodes.brokers["a"].drain(place("b")):
                pass


@pytest.mark.parametrize("url", ["tcp://b", "nothing://b:1", place("b"), place("b") + "&call_timeout=5"])
async def test_a_url_that_may_not_be_dialed_is_refused_before_anything_closes(url: str) -> None:
    # Without a cluster connection the password is the one that everybody knows.
    async with machines("a") as nodes:
        with pytest.raises(SettingsError, match="target="):
            async with nodes.brokers["a"].drain(url):
                pass
        await nodes.send("a", numbered(1))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"connectors": [place("b")]}, "connectors='tcp://b:5000'"),
        ({"connectors": ["tcp://b"]}, "connectors='tcp://b'"),
        ({"discovery": DiscoveryGroup("lan", LAN)}, "discovery="),
    ],
)
async def test_an_order_that_leads_nowhere_is_refused_when_the_node_starts(order: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        async with Broker("a", data_dir=None, ha=leaves(**order), env=simulated()):
            pass
    assert said in str(raised.value)


def test_no_cluster_connection_has_the_name_of_links_that_hand_over() -> None:
    with pytest.raises(SettingsError, match="name='\\$handover'"):
        ClusterConnection("$handover")


async def test_a_dry_run_dials_counts_and_leaves_no_link() -> None:
    parts = {"a": lambda: {"services": [mesh()]}, "b": lambda: {"services": [mesh(name="b")]}}
    async with machines("ab", parts=parts) as nodes:
        await nodes.send("a", numbered(5))
        async with nodes.brokers["a"].drain(place("b"), dry_run=True) as drain:
            pass
        assert (drain.state, drain.left) == ("looked", 5) and nodes.linked("a") == []
        await until(lambda: nodes.brokers["b"].statistics().connections == 0)
        await nodes.kill("a")
        await nodes.start("a")
        assert nodes.linked("a") == []
        await nodes.send("a", numbered(1, 5))
        assert bodies(await taken(nodes, "a")) == numbered(6)


async def test_an_announced_node_that_may_not_be_dialed_does_not_end_the_node(caplog: pytest.LogCaptureFixture) -> None:
    group = DiscoveryGroup("wahey", LAN)
    parts: dict[str, Any] = {
        "a": lambda: {"services": [mesh()], "ha": leaves(discovery=group), "connectors": {"me": "tcp://a:5000"}},
        "b": lambda: {"services": [mesh(name="b"), BroadcastGroup("b", LAN, connectors=["me"])]},
    }
    async with machines("ab", parts=parts) as nodes:
        await group.wait_for(1)
        await nodes.send("a", numbered(5))
        await nodes.stop("a")
        assert "stops without scaling down" in caplog.text


async def test_a_drain_to_a_name_of_a_node_without_a_cluster_finds_nobody() -> None:
    async with machines("a") as nodes:
        with pytest.raises(NotFoundError):
            async with nodes.brokers["a"].drain("nobody"):
                pass
