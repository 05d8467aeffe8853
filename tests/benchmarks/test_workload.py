"""Latencies count stalls, and a message too few or too short fails its run."""

from __future__ import annotations

import time

import pytest

from benchmarks.workload import STAMP, LatencyClock, Workload, received


def at(clock: LatencyClock, monkeypatch: pytest.MonkeyPatch, now: float) -> float:
    """The stamp of a message sent at ``now``."""
    monkeypatch.setattr(time, "monotonic", lambda: now)
    return float(STAMP.unpack_from(clock.stamp(100))[0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> LatencyClock:
    """A thousand a second, from 1,000 s on."""
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    return LatencyClock(1_000.0)


def test_a_message_sent_in_time_is_stamped_when_it_is_sent(
    clock: LatencyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at(clock, monkeypatch, 1_000.0015) == 1_000.0015


def test_a_stall_counts_for_every_message_that_it_delayed(clock: LatencyClock, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = [at(clock, monkeypatch, 1_000.0105) for _ in range(3)]
    assert stamps == pytest.approx([1_000.001, 1_000.002, 1_000.003])


def test_a_sender_behind_its_time_does_not_pause(clock: LatencyClock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clock.pause() == pytest.approx(0.001)
    monkeypatch.setattr(time, "monotonic", lambda: 1_001.0)
    assert clock.pause() == 0.0


def test_percentiles_leave_out_the_first_tenth(clock: LatencyClock) -> None:
    clock.latencies = [5.0] * 10 + [0.001] * 89 + [0.002]
    assert clock.result() == pytest.approx({"p50_us": 1_000, "p99_us": 2_000, "p999_us": 2_000})


def test_without_a_rate_nothing_is_timed() -> None:
    clock = LatencyClock(0.0)
    clock.arrived([b"short"])
    assert clock.result() == {}


@pytest.mark.parametrize(("count", "size"), [(9, 900), (10, 999), (11, 1_100)])
def test_a_missing_or_mangled_message_fails_the_run(count: int, size: int) -> None:
    with pytest.raises(RuntimeError, match="expected 10 of 100 bytes each"):
        received(Workload(count=10), count, size)


def test_everything_received_gives_the_time_it_ended() -> None:
    assert set(received(Workload(count=10), 10, 1_000)) == {"ended"}
