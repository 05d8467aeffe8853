"""Two hundred seeds of each simulation, always the same, and each that ever failed.

Each of the two is one test, so that the seeds are run once however tests are spread, in as many processes as there are
cores for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from meshq.testing._disk_faults import KINDS as DISK_KINDS
from meshq.testing._network import EFFECTS
from meshq.testing._network import FAULTS as NETWORK_FAULTS
from qa.mesh.faults import LINK_FAULTS, MESH_KINDS
from qa.mesh.scenario import MESH_SIGHTS
from qa.seeds import SeedReport, many_seeds
from qa.simulate import SEEDS, failed_seeds_of, recorded
from qa.simulation.broker import SIGHTS
from qa.simulation.faults import FAULTS_MIN, KINDS
from qa.simulation.scenario import DURATION_S, SENDS_MIN
from qa.simulation.users import USER_SIGHTS
from qa.simulation.workload_sifted import SIFTED_SIGHTS
from qa.simulation.workload_undertaker import UNDERTAKER_SIGHTS
from tests.tiers import cores_of_a_test

ROOT = Path(__file__).parents[2]
#: For all seeds of one simulation on one slow core.
TIMEOUT_S = 3_600
#: Every failpoint of the product; the rule below finds one that is not listed.
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
#: What those meet who are there in some seeds only.
CAST_SIGHTS = (*USER_SIGHTS, *UNDERTAKER_SIGHTS, *SIFTED_SIGHTS)
#: What is done to the broker when its minute is over.
LAST_SIGHTS = ("damaged_indexes", "power_after_a_repeat")
#: What can't happen here, and why.
IMPOSSIBLE = {"network.timed_out": "a client gives a connection attempt up long before its system does"}


def reports_of_all(stage: str) -> list[SeedReport]:
    """Run the seeds, none of which may fail."""
    seeds = dict.fromkeys([*range(SEEDS), *recorded(ROOT / failed_seeds_of(stage))])
    reports = list(many_seeds(seeds, jobs=cores_of_a_test(), stage=stage))
    assert len(reports) >= SEEDS == 200
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


def check_all_was_met(
    reports: list[SeedReport], kinds: Sequence[str], *, sights: Sequence[str] = SIGHTS
) -> dict[str, int]:
    """Every fault and every failpoint happened in some seed, and none that nobody knows of; how often each did."""
    expected = [f"fault.{kind}" for kind in kinds]
    expected += [f"chaos.{point}" for point in FAILPOINTS]
    expected += [f"network.{kind}" for kind in (*NETWORK_FAULTS, *EFFECTS)]
    expected += [f"seen.{sight}" for sight in sights]
    expected += [*DISK_KINDS, *CONSEQUENCES, "node.kill", "node.pause", "node.power_off"]
    met: dict[str, int] = {}
    for report in reports:
        for kind, number in report.counters.items():
            met[kind] = met.get(kind, 0) + number
    assert [kind for kind in expected if not met.get(kind) and kind not in IMPOSSIBLE] == []
    assert [kind for kind in met if kind not in expected] == []
    return met


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_in_two_hundred_seeds_that_meet_every_fault() -> None:
    reports = reports_of_all("broker")
    met = check_all_was_met(reports, KINDS, sights=(*SIGHTS, *CAST_SIGHTS, *LAST_SIGHTS))
    assert [kind for kind in IMPOSSIBLE if met.get(kind)] == []


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_on_a_mesh_in_two_hundred_seeds_that_meet_every_fault() -> None:
    reports = reports_of_all("mesh")
    check_all_was_met(reports, MESH_KINDS, sights=(*SIGHTS, *MESH_SIGHTS, "expired_in_doubt"))
    assert len(LINK_FAULTS) >= 6


def test_every_failpoint_of_the_product_is_listed() -> None:
    product = [path for path in (ROOT / "src" / "meshq").rglob("*.py") if path.parent.name != "testing"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in product)
    missing = [point for point in FAILPOINTS if f'failpoint("{point}")' not in text]
    assert not missing
    assert text.count('failpoint("') == len(FAILPOINTS)
