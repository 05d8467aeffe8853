"""The simulation of a pair finds what it is there to find: each of these mistakes breaks a promise in a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from meshq.ha import SharedDirectory
from meshq.ha._fenced_disk import Fence
from meshq.ha._lease_machine import Lease
from meshq.ha._shared_directory import Epoch
from meshq.ha._store_activation import StoreActivation
from meshq.ha._store_term import StoreTerm
from qa.ha.scenario import run_pair_seed
from tests.seeds.finding import find_mistake

SEEDS = 25
TIMEOUT_S = 1_200


def forgets_its_lease(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the lease: a node acts until it notices a successor."""

    async def never(activation: object) -> None:
        await trio.sleep_forever()

    patch.setattr(StoreActivation, "_end_late_leases", never)
    patch.setattr(StoreTerm, "may_act", lambda term: not term.fence.fallen)
    patch.setattr(Lease, "holds", lambda lease, now: not lease._lost)


def notices_no_successor(patch: pytest.MonkeyPatch) -> None:
    """Only the lock is left: a sync is reported in whatever epoch it is, and nobody looks at the lease."""
    forgets_its_lease(patch)
    patch.setattr(Fence, "check", lambda fence: None)


def begins_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """An activation after the first one goes on in the directory of the last one."""
    begin: Callable[[Any], Epoch] = SharedDirectory.begin

    def again(self: SharedDirectory) -> Epoch:
        names = self._names(self.root)
        if "epoch-1" not in names:
            return begin(self)
        return Epoch(number=1, directory=f"{self.root}/epoch-1")

    patch.setattr(SharedDirectory, "begin", again)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mistake", [forgets_its_lease, notices_no_successor, begins_no_epoch])
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    find_mistake(run_pair_seed, SEEDS, ("H1", "H2", "H3"))
