"""Seeds of the protocol of message groups alone, always the same: a hundred of them take half a minute."""

from __future__ import annotations

import pytest

from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 600
SEEDS = 120
MET = (
    "fault.answer_lost",
    "fault.away_and_join",
    "fault.away_and_leave",
    "fault.away_and_restart",
    "fault.crash",
    "fault.cut",
    "fault.down",
    "fault.join",
    "fault.leave",
    "fault.letter_lost",
    "fault.split",
    "seen.group_remembered",
    "seen.group_yielded",
    "seen.late_letter",
    "seen.moved",
    "seen.redistributed",
    "seen.sent_while_away",
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_groups_keep_all_promises_whatever_happens_to_letters_and_nodes() -> None:
    reports_that_meet("grouping", MET, seeds=SEEDS, most=2 * SEEDS)
