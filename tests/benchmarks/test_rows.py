"""Rows name what runs and what was promised."""

from __future__ import annotations

import pytest

from benchmarks.row import Target
from benchmarks.rows import ROWS, SYSTEMS, chosen
from benchmarks.workload import Workload


def test_every_row_of_the_plan_is_there() -> None:
    assert list(dict.fromkeys(row.family for row in chosen(None))) == [
        "P1",
        "P2",
        "P3",
        "P4",
        "P5",
        "P6",
        "P7",
        "P8",
        "P9",
        "P10",
        "P13",
        "P14",
        "P15",
        "P16",
        "P17",
    ]


def test_every_row_measures_this_project_and_nothing_unknown() -> None:
    for row in ROWS:
        assert "ours" in row.workloads
        assert set(row.workloads) <= set(SYSTEMS)
        assert set(row.nominal) in (set(), set(row.workloads))


def test_a_target_against_a_system_has_that_system_in_its_row() -> None:
    for row in ROWS:
        for line in row.lines:
            assert all(not target.against or target.against in row.workloads for target in line.targets)


def test_a_family_means_all_its_variants_and_a_key_means_one() -> None:
    assert [row.key for row in chosen("P1")] == ["P1", "P1-properties", "P1-duplicate-id"]
    assert [row.key for row in chosen("P6-single, P2")] == ["P2", "P6-single"]


def test_an_unknown_row_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no row 'P11': there are P1, .*P15"):
        chosen("P1,P11")


@pytest.mark.parametrize("seconds", [0.001, 0.2, 2.0])
def test_a_count_is_whole_frames_for_every_task(seconds: float) -> None:
    for row in ROWS:
        for system in row.nominal:
            workload = row.workload(system, seconds, None)
            assert workload.count > 0
            assert workload.count % (workload.tasks * workload.frame) == 0


def test_messages_given_are_rounded_to_whole_frames() -> None:
    (row,) = chosen("P6-durable")
    assert row.workload("ours", 2.0, 12_345) == Workload(kind="inprocess", count=12_000, frame=100, tasks=4)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(against="floor", at_least=0.5), 0.5, True),
        (Target(against="floor", at_least=0.5), 0.49, False),
        (Target(at_most=2.0), 2.0, True),
        (Target(at_most=2.0), 2.01, False),
    ],
)
def test_a_bound_itself_is_met(target: Target, value: float, met: bool) -> None:
    assert target.met(value) is met
