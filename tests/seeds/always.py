"""Many seeds of one simulation, always the same, and each that ever failed: what has to be met in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from meshq.testing._network import EFFECTS, LOSSES
from meshq.testing._network import FAULTS as NETWORK_FAULTS
from meshq.testing.disk._faults import KINDS as DISK_KINDS
from qa.seeds import SeedReport, many_seeds
from qa.simulate import failed_seeds_of, recorded
from qa.simulation.broker import SIGHTS
from qa.simulation.faults import FAULTS_MIN
from qa.simulation.scenario import DURATION_S, SENDS_MIN
from tests.tiers import cores_of_a_test

ROOT = Path(__file__).parents[2]
#: For all seeds of one simulation on one slow core.
TIMEOUT_S = 3_600
#: Every failpoint of the product; a test finds one that is not listed.
FAILPOINTS = (
    "broker.costly",
    "broker.drop_connection",
    "broker.late_step",
    "broker.no_block",
    "client.small_runs",
    "journal.batch_of_one",
    "journal.compact_early",
    "journal.lazy_long",
    "journal.roll_early",
    "journal.thread_always",
)
#: Those that only the mesh comes upon.
MESH_FAILPOINTS = ("broker.stage_piece",)
#: What happened besides, as the broker and the disk tell it.
CONSEQUENCES = (
    "disk.create.EMFILE",
    "disk.create.ENFILE",
    "disk.create.ENOSPC",
    "disk.sync.EIO",
    "disk.write.EIO",
    "disk.write.ENOSPC",
    "seen.damage_found_later",
    "seen.harmless_damage",
    "seen.refused_damage",
    "seen.store_apart",
    "seen.waited_for_descriptors",
)
#: What these simulations do not do, and tests of users ask for; counted all the same.
NOT_DRAWN = tuple(f"network.{kind}" for kind in LOSSES)
#: What can't happen here, and why.
IMPOSSIBLE = {"network.timed_out": "a client gives a connection attempt up long before its system does"}


def reports_of_all(stage: str, *, seeds: int, expected: Sequence[str] = ()) -> list[SeedReport]:
    """Run the seeds, none of which may fail, and up to a quarter more while something expected was not met."""
    always = dict.fromkeys([*range(seeds), *recorded(ROOT / failed_seeds_of(stage))])
    reports = list(many_seeds(always, jobs=cores_of_a_test(), stage=stage))
    with closing(many_seeds(range(seeds, seeds + seeds // 4), jobs=cores_of_a_test(), stage=stage)) as more:
        while missing_of(times_met(reports), expected) and (report := next(more, None)) is not None:
            reports.append(report)
    assert len(reports) >= seeds >= 100
    failed = [report.line for report in reports if not report.passed]
    assert not failed, "\n".join(failed)
    check_minimums(reports)
    return reports


def check_minimums(reports: list[SeedReport]) -> None:
    """Each seed lasts a minute and confirms hundreds of sends through several faults."""
    assert (DURATION_S, SENDS_MIN, FAULTS_MIN) == (60.0, 300, 3)
    for report in reports:
        assert report.simulated_s >= DURATION_S, report.seed
        assert report.confirmed >= SENDS_MIN, report.seed
        assert report.faults >= FAULTS_MIN, report.seed
        assert not report.abandoned, report.seed


def expected_of(
    kinds: Sequence[str], *, sights: Sequence[str] = SIGHTS, failpoints: Sequence[str] = FAILPOINTS
) -> list[str]:
    """Everything that has to happen in some seed."""
    expected = [f"fault.{kind}" for kind in kinds]
    expected += [f"chaos.{point}" for point in failpoints]
    expected += [f"network.{kind}" for kind in (*NETWORK_FAULTS, *EFFECTS)]
    expected += [f"seen.{sight}" for sight in sights]
    return [*expected, *DISK_KINDS, *CONSEQUENCES, "node.kill", "node.pause", "node.power_off"]


def times_met(reports: Sequence[SeedReport]) -> dict[str, int]:
    """How often each kind happened."""
    met: dict[str, int] = {}
    for report in reports:
        for kind, number in report.counters.items():
            met[kind] = met.get(kind, 0) + number
    return met


def missing_of(met: Mapping[str, int], expected: Sequence[str]) -> list[str]:
    """What should have happened, and did not."""
    return [kind for kind in expected if not met.get(kind) and kind not in IMPOSSIBLE]


def check_all_was_met(reports: Sequence[SeedReport], expected: Sequence[str]) -> dict[str, int]:
    """Every fault and every failpoint happened in some seed, and none that nobody knows of; how often each did."""
    met = times_met(reports)
    missing = missing_of(met, expected)
    assert not missing, f"never met: {missing}"
    drawn = [kind for kind in NOT_DRAWN if met.pop(kind)]
    assert not drawn, f"met, and said not to be drawn: {drawn}"
    unknown = [kind for kind in met if kind not in expected]
    assert not unknown, f"met, and not known: {unknown}"
    return met
