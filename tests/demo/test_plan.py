"""Where the kills come: the plan leaves room for what each of them has to catch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.demo._kill_plan import (
    BACKLOG,
    CLUSTER_WINDOW,
    CONSUMERS,
    NODES_MAX,
    PRODUCER_NODE,
    READY_MIN,
    ROWS_MIN,
    WAITING_MIN,
    WINDOW,
    plan_kills,
    rows_min,
)


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


@given(nodes=st.integers(2, NODES_MAX), data=st.data())
def test_in_a_cluster_there_are_rows_for_every_share_that_a_kill_waits_for(nodes: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(rows_min(nodes), 400_000))
    killed = data.draw(st.integers(2, nodes))
    first, second = plan_kills(rows, nodes, killed)
    assert (first.node, second.node) == (killed, PRODUCER_NODE)
    for kill in (first, second):
        assert kill.hold_at >= 0
        # The node's share of what is sent while its consumer holds fills the window.
        assert (kill.check_at - kill.hold_at) // nodes >= CLUSTER_WINDOW
        assert kill.in_flight
    # The share of a node that stands still, of what is sent from then on, is what has to wait.
    assert first.freezes
    assert (first.go_on_to - first.check_at) // nodes >= first.waiting_min == WAITING_MIN
    assert second.hold_at >= first.go_on_to
    # The producer's own node dies at work, and the producer can fill its window meanwhile, and go on.
    assert second.catches_sends
    assert not second.freezes
    assert second.go_on_to - second.check_at >= limits.PRODUCER_WINDOW_MESSAGES


def test_only_the_kill_of_the_producers_own_node_must_catch_what_it_sends() -> None:
    assert [kill.catches_sends for kill in plan_kills(50_000)] == [True, False]
    assert [kill.catches_sends for kill in plan_kills(50_000, 3, 2)] == [False, True]
    assert not any(kill.freezes for kill in plan_kills(50_000))
