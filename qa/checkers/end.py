"""The table of all checkers: the common ones of the package, and more for our own simulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshq.testing.history import _end as common
from meshq.testing.history._delivery import Checker, Violation
from meshq.testing.history._history import History
from qa.checkers.calm import (
    l1_kept_while_it_lives,
    l2_gone_at_its_time,
    l3_never_early,
    l4_urgent_first,
    l5_one_holder,
    l6_no_more_than_the_window,
    l7_memory_is_bounded,
)
from qa.checkers.mesh import (
    b1_no_dead_letter_by_refusal,
    b2_carried_all_the_way,
    b3_no_more_than_was_under_way,
    m1_nothing_for_who_is_gone,
)
from qa.checkers.partner import r1_nothing_before_the_partner

#: Every checker by its name.
CHECKERS: Final[dict[str, Checker]] = common.CHECKERS | {
    "L1": l1_kept_while_it_lives,
    "L2": l2_gone_at_its_time,
    "L3": l3_never_early,
    "L4": l4_urgent_first,
    "L5": l5_one_holder,
    "L6": l6_no_more_than_the_window,
    "L7": l7_memory_is_bounded,
    "B1": b1_no_dead_letter_by_refusal,
    "B2": b2_carried_all_the_way,
    "B3": b3_no_more_than_was_under_way,
    "M1": m1_nothing_for_who_is_gone,
    "R1": r1_nothing_before_the_partner,
}


def violations_of(history: History, checkers: Sequence[str] = tuple(CHECKERS)) -> list[Violation]:
    """Return the violations that these checkers find, in the order of the checkers."""
    return common.found_by([CHECKERS[name] for name in checkers], history)


def check_history(history: History, checkers: Sequence[str] = tuple(CHECKERS)) -> None:
    """Raise ``HistoryError`` if a promise is broken, with the story of the first message concerned."""
    common.judge([CHECKERS[name] for name in checkers], history)
