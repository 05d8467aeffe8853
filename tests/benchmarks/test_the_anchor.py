"""The anchor works where Redis is installed."""

from __future__ import annotations

import importlib.util
import inspect
import shutil

import attrs
import pytest

from benchmarks.runner import measure
from benchmarks.workload import Workload
from meshq import Client

HERE = shutil.which("redis-server") is not None and importlib.util.find_spec("redis") is not None
pytestmark = [pytest.mark.real, pytest.mark.skipif(not HERE, reason="needs redis-server and the extra 'bench'")]

PIPELINED = Workload(count=400, frame=100)


@pytest.mark.processes
def test_redis_syncs_at_least_once_per_pipeline_when_it_is_durable() -> None:
    figures = measure("redis", PIPELINED)
    assert figures["messages"] == 400
    # A count that was divided by the seconds comes back as 3.9999999999999996, too.
    assert round(figures["syncs_per_s"] * figures["seconds"]) >= 4


@pytest.mark.processes
def test_redis_in_memory_has_no_syncs_to_tell() -> None:
    assert "syncs_per_s" not in measure("redis", attrs.evolve(PIPELINED, durable=False))


@pytest.mark.processes
def test_redis_keeps_a_backlog_through_sigkill() -> None:
    figures = measure("redis", attrs.evolve(PIPELINED, kind="backlog"))
    assert figures["restart_s"] > 0


def test_the_anchor_keeps_as_much_under_way_as_a_user_of_meshq_gets_by_default() -> None:
    from benchmarks.redis_anchor import READ_COUNT, READS

    windows = [inspect.signature(call).parameters["window"].default for call in (Client.consumer, Client.producer)]
    assert windows == [READ_COUNT * READS, Workload().window]
