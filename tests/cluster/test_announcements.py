"""The announcements of a node over a link that has opened: how many, how far apart, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio

from meshq import ConnectionBrokenError, abc
from meshq.broker.session._session import ServerSession
from meshq.client.link._announcement_plan import AnnouncementPlan
from meshq.wire import Frame
from tests.cluster.test_settings_at_work import Machines, machines

FEATURES = "meshq.broker.session._peering.LINK_FEATURES"


def run(plan: AnnouncementPlan, *, until: float, late: float = 0.0) -> list[float]:
    """When a plan has announcements made, by a task that wakes ``late``."""
    made = []
    while plan.next_at < until:
        now = plan.next_at + late
        if plan.due(now):
            made.append(now)
    return made


# -- the plan


@pytest.mark.parametrize(
    ("attempts", "interval", "times"), [(2, 1.0, [5, 6]), (1, 1.0, [5]), (4, 0.5, [5, 5.5, 6, 6.5])]
)
def test_so_many_announcements_are_due_so_far_apart_the_first_one_at_once(
    attempts: int, interval: float, times: list[float]
) -> None:
    plan = AnnouncementPlan(attempts, interval)
    assert plan.next_at == math.inf
    plan.opened(5.0)
    assert run(plan, until=100) == times
    assert plan.next_at == math.inf


def test_none_is_due_before_the_link_opens_or_if_there_are_to_be_none() -> None:
    plan = AnnouncementPlan(2, 1.0)
    assert not plan.due(1_000.0)
    plan = AnnouncementPlan(0, 1.0)
    plan.opened(5.0)
    assert (plan.next_at, plan.due(1_000.0)) == (math.inf, False)


def test_one_that_is_late_does_not_make_the_next_one_later() -> None:
    plan = AnnouncementPlan(3, 1.0)
    plan.opened(5.0)
    assert run(plan, until=100, late=0.25) == [5.25, 6.25, 7.25]


def test_a_link_that_opens_anew_begins_anew() -> None:
    plan = AnnouncementPlan(3, 1.0)
    plan.opened(5.0)
    assert plan.due(5.0)
    plan.opened(5.5)
    assert run(plan, until=100) == [5.5, 6.5, 7.5]


# -- between nodes


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """The announcements that nodes have taken: which node, and when."""
    found: list[tuple[str, float]] = []
    taken: Callable[[ServerSession, Frame], None] = ServerSession._announced

    def announced(session: ServerSession, frame: Frame) -> None:
        found.append((session._core.identity.name, trio.current_time()))
        taken(session, frame)

    monkeypatch.setattr(ServerSession, "_announced", announced)
    return found


def one_way(**settings: Any) -> dict[str, Any]:
    """A lists b, and b lists nobody: b links to no node."""
    alone = {"static_connectors": [], "allow_direct_connections_only": True}
    return {"a": {"static_connectors": ["b"], **settings}, "b": alone}


@pytest.mark.parametrize(
    ("settings", "apart"),
    [
        ({}, [0, 1.0]),
        ({"notification_attempts": 1}, [0]),
        ({"notification_attempts": 5, "notification_interval": 0.25}, [0, 0.25, 0.5, 0.75, 1.0]),
        ({"notification_attempts": 0}, []),
    ],
)
async def test_a_node_announces_itself_exactly_so_often_and_exactly_so_far_apart(
    settings: dict[str, Any], apart: list[float], heard: list[tuple[str, float]]
) -> None:
    async with machines("ba", **one_way(**settings)) as nodes:
        await trio.sleep(60)
        assert [name for name, _ in heard] == ["b"] * len(apart)
        assert [at - heard[0][1] for _, at in heard] == pytest.approx(apart, abs=0.01)
        assert nodes.known("a").peers()[0].announced == len(apart)


async def test_a_node_that_is_linked_anew_is_told_anew_and_over_a_resumed_session_nothing_comes_twice(
    heard: list[tuple[str, float]],
) -> None:
    async with machines("ba", **one_way(retry_interval=0.1)) as nodes:
        await trio.sleep(0.5)
        assert len(heard) == 1
        # The session is resumed: what is left comes.
        nodes.network.reset("a", "b")
        await trio.sleep(20)
        assert len(heard) == 2
        nodes.network.kill_host("a")
        nodes.brokers.clear()
        await nodes.start("a")
        await trio.sleep(20)
        assert len(heard) == 4


async def test_an_announcement_says_what_the_node_is_by_then(heard: list[tuple[str, float]]) -> None:
    async with machines("ba", **one_way(notification_interval=5.0)) as nodes:
        await trio.sleep(1)
        topology = nodes.known("a")._topology
        assert topology is not None
        topology.leave(b"s" * 16)
        await trio.sleep(3)
        assert known(nodes) == [("a", False, b"")]
        await trio.sleep(2)
        assert (known(nodes), len(heard)) == ([("a", True, b"s" * 16)], 2)


def known(nodes: Machines) -> list[tuple[str, bool, bytes]]:
    """What b knows of the others."""
    topology = nodes.known("b")._topology
    assert topology is not None
    return [(one.about.name, one.about.leaving, one.about.successor) for one in topology.nodes()[1:]]


class Closed(abc.Network):
    """A network in which nobody answers."""

    async def connect(self, host: str, port: int) -> Any:
        raise ConnectionBrokenError(f"{host} does not answer", outcome="not_done")

    async def listen(self, host: str, port: int) -> Any:
        raise NotImplementedError


async def test_a_node_that_could_not_be_reached_when_it_linked_is_dialed_at_its_next_announcement() -> None:
    settings = {"a": {"notification_interval": 5.0}, "b": {"retry_interval": 50.0, "max_retry_interval": 50.0}}
    async with machines("b", **settings) as nodes:
        dials = nodes.dials["b"]
        network, dials.inner = dials.inner, Closed()
        await trio.sleep(1)
        began = trio.current_time()
        await nodes.start("a")
        await trio.sleep(2)
        # When it was linked to, and at the first announcement.
        assert {round(at - began, 1) for at in dials.dialed_at if at >= began} == {0}
        dials.inner = network
        await nodes.known("b").wait_for(nodes=2, timeout=40)
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_lost_announcements_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerSession, "_announced", lambda session, frame: None)
    async with machines("ba", **one_way()) as nodes:
        await trio.sleep(5)
        assert known(nodes) == [("a", False, b"")]
        assert nodes.known("a").nodes() == 2


async def test_an_older_node_is_told_nothing(monkeypatch: pytest.MonkeyPatch, heard: list[tuple[str, float]]) -> None:
    monkeypatch.setattr(FEATURES, "origin counts due queue ids hops")
    async with machines("ba", **one_way()) as nodes:
        await trio.sleep(5)
        assert (heard, nodes.known("a").peers()[0].announced, nodes.known("a").nodes()) == ([], 0, 2)
