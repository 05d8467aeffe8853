"""The fixtures of simulated tests, beside pytest-trio.

This file is loaded in each run of pytest beside pytest-trio: the broker is loaded by the first test that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import pytest
from pytest_trio import trio_fixture

from meshq.testing.plugin import WORLD

if TYPE_CHECKING:
    from trio.testing import MockClock

    from meshq.client import Client
    from meshq.node import Broker
    from meshq.store import Journal
    from meshq.testing.kit._cluster import Cluster
    from meshq.testing.kit._cluster_settings import ClusterKeywords
    from meshq.testing.kit._network_face import SimulatedNetwork
    from meshq.testing.kit._world import SimulatedWorld

    ClusterFactory = Callable[..., Awaitable[Cluster]]

#: The host of ``meshq_broker``, and the broker's name.
BROKER_HOST = "broker"
BROKER_NAME = "test"
F = TypeVar("F", bound=Callable[..., Any])


def simulated_fixture(function: F) -> F:
    """Make a fixture for pytest-trio; to other plugins, which would run it themselves, it does not look async."""

    @functools.wraps(function)
    def plain(**keywords: Any) -> Any:
        return function(**keywords)

    return cast(F, trio_fixture(plain))


def _world_of(request: pytest.FixtureRequest) -> SimulatedWorld:
    world: SimulatedWorld = request.node.stash[WORLD]
    return world


@pytest.fixture
def meshq_clock(request: pytest.FixtureRequest) -> MockClock:
    """The clock of the test, which jumps by itself; do not move it."""
    from meshq.testing.kit._run import clock_of

    asked = [name for name in ("autojump_clock", "mock_clock") if name in request.fixturenames]
    return clock_of({name: request.getfixturevalue(name) for name in asked})


@simulated_fixture
async def meshq_cluster(request: pytest.FixtureRequest, meshq_clock: MockClock) -> AsyncIterator[ClusterFactory]:
    """``await meshq_cluster(nodes=3, queues=["orders"])`` makes a cluster that has formed."""
    from meshq.testing.kit._cluster import Cluster
    from meshq.testing.kit._cluster_settings import CLUSTER_KEYWORDS, ClusterPlan

    world = _world_of(request)
    clusters: list[Cluster] = []

    async def make(nodes: int = 3, **settings: Unpack[ClusterKeywords]) -> Cluster:
        cluster = Cluster(world, ClusterPlan.of(nodes, settings, ("nodes", *CLUSTER_KEYWORDS)))
        clusters.append(cluster)
        await cluster.form()
        return cluster

    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, world, clusters)
        yield make


async def _close(world: SimulatedWorld, clusters: list[Cluster]) -> None:
    for cluster in clusters:
        world.reports += cluster.report_lines()
    for cluster in clusters:
        await cluster.close()


@simulated_fixture
async def meshq_broker(
    request: pytest.FixtureRequest, meshq_clock: MockClock, meshq_settings: dict[str, Any]
) -> AsyncIterator[Broker]:
    """A running ``Broker("test")`` on a simulated disk, in virtual time."""
    from meshq.node import Broker
    from meshq.testing.kit._broker_settings import broker_keywords
    from meshq.testing.kit._cluster import JOURNAL, PORT
    from meshq.testing.kit._node import KitNode
    from meshq.testing.kit._report import report_of

    world = _world_of(request)
    url = f"tcp://{BROKER_HOST}:{PORT}?insecure=true"
    defaults = {"data_dir": "/data", "journal": JOURNAL, "acceptors": [url]}
    keywords = broker_keywords(defaults, meshq_settings)
    node = KitNode(world, BROKER_NAME, BROKER_HOST, lambda _: Broker(BROKER_NAME, **keywords))
    node.start()
    await node.started()
    assert node.broker is not None
    yield node.broker
    world.reports += report_of([node.view({})], [])
    world.closing = True
    left = await node.stop()
    assert not left, "; ".join(left)


@simulated_fixture
async def meshq_client(meshq_broker: Broker) -> AsyncIterator[Client]:
    """A client of ``meshq_broker``."""
    async with meshq_broker.client() as client:
        yield client


@simulated_fixture
async def meshq_journal(request: pytest.FixtureRequest, meshq_clock: MockClock) -> AsyncIterator[Journal]:
    """An open ``Journal`` on a simulated disk."""
    from meshq.store import Journal

    _world_of(request)
    async with Journal("/journal") as journal:
        yield journal


@simulated_fixture
async def meshq_network(request: pytest.FixtureRequest, meshq_clock: MockClock) -> SimulatedNetwork:
    """The simulated network of the test: its faults, and a place for servers of the test."""
    from meshq.testing.kit._network_face import SimulatedNetwork

    return SimulatedNetwork(_world_of(request))
