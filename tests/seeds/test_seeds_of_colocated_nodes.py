"""Seeds of two processes with the backups of each other, always the same; and mistakes that they find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq.ha.colocated import RequestTries
from qa.ha.colocated import DURATION_S, FAULTS, SIGHTS, run_colocated_seed
from tests.seeds.finding import find_mistake
from tests.seeds.meeting import reports_that_meet

TIMEOUT_S = 1_200
SEEDS = 12
MET = (*(f"seen.{sight}" for sight in SIGHTS), *(f"fault.{kind}" for kind in FAULTS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_two_processes_that_back_each_other_keep_what_was_confirmed_and_find_a_backup_again() -> None:
    reports = reports_that_meet("colocated", MET, seeds=SEEDS, most=3 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)


def remembers_its_backup(patch: pytest.MonkeyPatch) -> None:
    """A node that was given a backup once looks no more."""
    patch.setattr(RequestTries, "backed", lambda tries: setattr(tries, "_tries", float("inf")))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mistake", [remembers_its_backup])
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    find_mistake(run_colocated_seed, SEEDS, ("H4", "H5"))
