"""Seeds of two processes with the backups of each other, always the same; and mistakes that they find."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from meshq.ha.colocated import FoundBackups, HostingPlan, KeptBackups, RequestTries
from meshq.ha.replication._acting_side import ActingSide
from meshq.ha.replication.places import KnownPlace
from meshq.ha.replication.places._known_place import hosted_place
from qa.ha import colocated
from qa.ha.colocated import DURATION_S, REPLICATED_FAULTS, SIGHTS, run_colocated_seed
from tests.seeds.finding import find_mistake
from tests.seeds.meeting import reports_that_meet

TIMEOUT_S = 1_200
SEEDS = 12
MET = (*(f"seen.{sight}" for sight in SIGHTS), *(f"fault.{kind}" for kind in REPLICATED_FAULTS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_two_processes_that_back_each_other_keep_what_was_confirmed_and_find_a_backup_again() -> None:
    reports = reports_that_meet("colocated", MET, seeds=SEEDS, most=3 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)


def remembers_its_backup(patch: pytest.MonkeyPatch) -> None:
    """A node that was given a backup once looks no more."""
    patch.setattr(RequestTries, "backed", lambda tries: setattr(tries, "_tries", float("inf")))


def forgets_the_place_of_its_replica(patch: pytest.MonkeyPatch) -> None:
    """A primary that comes back asks its static connectors only."""
    patch.setattr(KnownPlace, "urls", ())


def believes_a_place_that_is_being_replaced(patch: pytest.MonkeyPatch) -> None:
    """A replica counts at once if the memory has its place, although that of another one is on its way to the disk.

    Replicas are replaced more often than elsewhere, and a backup that serves is not heard: it would mend this.
    """
    patch.setitem(colocated.REPLICATED_FAULTS, "replaced", 30)
    patch.setattr(KnownPlace, "hear", lambda known, wanted: None)
    came, keep = ActingSide._came_in_sync, KnownPlace.keep

    def comes(side: ActingSide) -> None:
        feeder, term = side.feeder, side.term
        if feeder is not None and term is not None and side.standing.place == hosted_place(feeder.wanted):
            side._admit(feeder, term)
        else:
            came(side)

    patch.setattr(ActingSide, "_came_in_sync", comes)
    patch.setattr(KnownPlace, "keep", lambda known, wanted, lasts, told: keep(known, wanted, lambda: True, told))


def gives_a_number_twice(patch: pytest.MonkeyPatch) -> None:
    """A host that starts counts from one again."""
    look = KeptBackups.look
    patch.setattr(KeptBackups, "look", lambda kept: attrs.evolve(look(kept), latest=0))
    patch.setattr(HostingPlan, "count_from", lambda plan, number: None)


def sets_the_newest_copy_aside(patch: pytest.MonkeyPatch) -> None:
    """A host that starts takes the backups of before for old, also one that has taken over."""
    look = KeptBackups.look

    def looks(kept: KeptBackups) -> FoundBackups:
        for one in look(kept).backups:
            kept.set_aside(one.number)
            kept.sync()
        return look(kept)

    patch.setattr(KeptBackups, "look", looks)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mistake", [remembers_its_backup])
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    find_mistake(run_colocated_seed, SEEDS, ("H4", "H5"))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "mistake",
    [
        forgets_the_place_of_its_replica,
        believes_a_place_that_is_being_replaced,
        gives_a_number_twice,
        sets_the_newest_copy_aside,
    ],
)
def test_a_mistake_with_stores_of_their_own_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    monkeypatch.setattr(colocated, "REPLICATED", 1.0)
    find_mistake(run_colocated_seed, 2 * SEEDS, ("CO8", "H1", "H4", "H6"))
