"""A hundred seeds of the single broker, always the same, and each that ever failed.

They are one test, so that the seeds are run once however tests are spread, in as many processes as there are cores for
it; those of the mesh have a file of their own.
"""

from __future__ import annotations

import pytest

from qa.simulation.broker import SIGHTS
from qa.simulation.faults import KINDS
from qa.simulation.users import USER_SIGHTS
from qa.simulation.workload_cursor import TAPE_SIGHTS
from qa.simulation.workload_sifted import SIFTED_SIGHTS
from qa.simulation.workload_undertaker import UNDERTAKER_SIGHTS
from tests.seeds.always import (
    FAILPOINTS,
    IMPOSSIBLE,
    MESH_FAILPOINTS,
    ROOT,
    TIMEOUT_S,
    check_all_was_met,
    expected_of,
    reports_of_all,
)

#: What those meet who are there in some seeds only.
CAST_SIGHTS = (*USER_SIGHTS, *UNDERTAKER_SIGHTS, *SIFTED_SIGHTS, *TAPE_SIGHTS)
#: What is done to the broker when its minute is over.
LAST_SIGHTS = ("damaged_indexes", "power_after_a_repeat")


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_in_a_hundred_seeds_that_meet_every_fault() -> None:
    expected = expected_of(KINDS, sights=(*SIGHTS, *CAST_SIGHTS, *LAST_SIGHTS))
    reports = reports_of_all("broker", seeds=100, expected=expected)
    met = check_all_was_met(reports, expected)
    assert [kind for kind in IMPOSSIBLE if met.get(kind)] == []


def test_every_failpoint_of_the_product_is_listed() -> None:
    product = [path for path in (ROOT / "src" / "meshq").rglob("*.py") if path.parent.name != "testing"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in product)
    missing = [point for point in (*FAILPOINTS, *MESH_FAILPOINTS) if f'failpoint("{point}")' not in text]
    assert not missing
    assert text.count('failpoint("') == len(FAILPOINTS) + len(MESH_FAILPOINTS)
