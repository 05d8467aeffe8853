"""Simulated tests without pytest-trio: a world, and a cluster in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from trio.testing import MockClock

from meshq.testing import Cluster
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.kit._run import run_in_world
from meshq.testing.kit._world import SimulatedWorld


def in_world(test: Callable[[SimulatedWorld], Awaitable[object]], seed: int = 1) -> SimulatedWorld:
    """Run a test in a world of its own; returns the world."""
    world = SimulatedWorld(seed, MockClock())
    run_in_world(world, lambda: test(world))
    return world


def in_cluster(test: Callable[[Cluster], Awaitable[object]], *, seed: int = 1, **settings: Any) -> SimulatedWorld:
    """Run a test with a cluster that has formed; returns the world."""

    async def run(world: SimulatedWorld) -> None:
        cluster = Cluster(world, ClusterPlan(**{"queues": ["orders"], **settings}))
        try:
            await cluster.form()
            await test(cluster)
        finally:
            await cluster.close()

    return in_world(run, seed)
