"""Where the kills come: the plan leaves room for what each of them has to catch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.demo._kill_plan import BACKLOG, CONSUMERS, READY_MIN, ROWS_MIN, WINDOW, plan_kills


@given(rows=st.integers(ROWS_MIN, 400_000))
def test_each_backlog_is_large_enough_and_the_producer_has_not_finished_at_the_first_kill(rows: int) -> None:
    first, second = plan_kills(rows)
    for kill in (first, second):
        assert kill.hold_at >= 0
        # With full windows at all consumers, and once more at one of them, enough is still ready.
        assert kill.check_at - kill.hold_at - (CONSUMERS + 1) * WINDOW >= READY_MIN
    assert first.check_at + limits.PRODUCER_WINDOW_MESSAGES <= first.go_on_to < rows
    assert first.in_flight
    assert second.hold_at >= first.go_on_to
    assert second.check_at == second.go_on_to == rows
    assert not second.in_flight


def test_a_row_less_would_not_do() -> None:
    assert plan_kills(ROWS_MIN)[0].go_on_to == ROWS_MIN - BACKLOG
