"""The floor is a yardstick only while it is small, works, and keeps what it promises."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from benchmarks import floor
from benchmarks.runner import measure
from benchmarks.workload import Workload

pytestmark = pytest.mark.real

SMALL = Workload(count=400, frame=100, window=200)
PACED = Workload(count=50, frame=1, rate=500.0)
INSIDE = Workload(kind="inprocess", count=400, frame=100, tasks=4)


def test_the_floor_has_at_most_300_lines() -> None:
    assert len(Path(floor.__file__).read_text().splitlines()) <= 300


@pytest.mark.processes
@pytest.mark.parametrize("durable", [True, False])
def test_the_floor_carries_every_message_and_counts_its_syncs(durable: bool) -> None:
    figures = measure("floor", attrs.evolve(SMALL, durable=durable))
    assert figures["messages"] == 400
    assert figures["rate"] > 0
    assert ("syncs_per_s" in figures) is durable
    assert figures.get("syncs_per_s", 1.0) > 0


@pytest.mark.processes
def test_the_floor_tells_latencies_at_a_given_rate() -> None:
    figures = measure("floor", PACED)
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]
    # Never faster than it was told; how much slower is up to the machine.
    assert 0 < figures["rate"] < 550


@pytest.mark.parametrize(("durable", "frame"), [(True, 100), (False, 100), (False, 1)])
def test_the_floor_works_in_one_process(durable: bool, frame: int) -> None:
    figures = measure("floor", attrs.evolve(INSIDE, durable=durable, frame=frame))
    assert figures["messages"] == 400
    assert figures["rate"] > 0
