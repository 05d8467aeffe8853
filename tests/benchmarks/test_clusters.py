"""Nodes of a measured cluster do what they are told, and a measurement that went wrong gives no figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import clusters
from benchmarks.processes import BenchmarkError
from benchmarks.runner import measure
from benchmarks.workload import Workload

MIB = 1024 * 1024
pytestmark = pytest.mark.real


@pytest.mark.processes
def test_waiting_messages_go_to_the_consumer_at_the_other_node() -> None:
    figures = measure("ours", Workload(kind="redistribute", count=3_000))
    assert figures["messages"] == 3_000
    assert figures["rate"] == 3_000 / figures["seconds"]


@pytest.mark.processes
@pytest.mark.parametrize(("count", "size"), [(3_000, 100), (3, 2 * MIB)])
def test_all_messages_of_a_node_are_drained(count: int, size: int) -> None:
    figures = measure("ours", Workload(kind="drain", count=count, size=size))
    assert figures["messages"] == count
    assert figures["mib_per_s"] == pytest.approx(count * size / MIB / figures["seconds"])
    assert figures["growth_mib"] >= 0


@pytest.mark.processes
def test_a_drain_that_leaves_messages_behind_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = clusters.NodeEnd.ask

    def one_less(self: clusters.NodeEnd, do: str, **order: Any) -> dict[str, Any]:
        answer = ask(self, do, **order)
        return {"ready": answer["ready"] - 1} if do == "ready" else answer

    monkeypatch.setattr(clusters.NodeEnd, "ask", one_less)
    with pytest.raises(BenchmarkError, match="99 messages are at the other node of 100, transferred"):
        measure("ours", Workload(kind="drain", count=100))


@pytest.mark.processes
def test_a_node_has_joined_when_all_know_the_queues_of_all() -> None:
    figures = measure("ours", Workload(kind="join", nodes=3, queues=20))
    # Each pair of nodes says hello and tells its queues, both ways.
    assert figures["frames"] >= 2 * 2 * 2
    assert 0 < figures["join_s"] < 60
    assert figures["cpu_s"] > 0


@pytest.mark.processes
def test_a_cluster_that_idles_is_watched_for_a_while() -> None:
    figures = measure("ours", Workload(kind="idle-cluster", nodes=2, queues=2, seconds=0.2))
    assert figures["seconds"] >= 0.2
    assert figures["rss_mib"] > 10
    assert figures["wakeups_per_s"] >= 0
