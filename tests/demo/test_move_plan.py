"""Where moves and the departure come: each step has the rows that it needs, and none overlaps the next one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.demo._flights_format import parse
from meshq.demo._kill_plan import CLUSTER_WINDOW, NODES_MAX, PRODUCER_NODE, WAITING_MIN
from meshq.demo._move_plan import MOVING_NODES_MIN, PAGE_ROWS, REST_MIN, moving_rows_min, plan_moving
from meshq.demo._page_format import LARGE_BYTES, page_body

#: The shortest line that a flight has in the file, about: a page of these has to be large.
SHORT = b"2013,1,1,NA,5,NA,NA,5,NA,9E,1,NA,EWR,ATL,NA,80,5,0,2013-01-01T05:00:00Z"


@given(nodes=st.integers(MOVING_NODES_MIN, NODES_MAX), data=st.data())
def test_each_step_has_its_rows_and_the_file_ends_behind_the_last(nodes: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(moving_rows_min(nodes), 400_000))
    killed = data.draw(st.integers(2, nodes))
    plan = plan_moving(rows, nodes, killed)
    first, second = plan.kills
    assert (first.node, second.node) == (killed, PRODUCER_NODE)
    assert first.hold_at >= 0
    assert (first.go_on_to - first.check_at) // nodes >= WAITING_MIN
    assert (second.check_at - second.hold_at) // nodes >= CLUSTER_WINDOW
    assert second.go_on_to - second.check_at >= limits.PRODUCER_WINDOW_MESSAGES
    steps = [first, second, *plan.moves, plan.leave]
    for step, following in itertools.pairwise(steps):
        assert step.hold_at < step.check_at < step.go_on_to <= following.hold_at
    for move in plan.moves:
        assert (move.check_at - move.hold_at) // nodes >= move.stranded_min
    leave = plan.leave
    assert (leave.check_at - leave.hold_at) // nodes >= CLUSTER_WINDOW + leave.ready_min
    # Each node with a consumer is dealt a page.
    assert leave.pages >= nodes
    assert leave.check_at < leave.prepared_to < leave.pages_to < leave.go_on_to <= rows - REST_MIN


@given(nodes=st.integers(MOVING_NODES_MIN, NODES_MAX))
def test_consumers_move_to_and_fro_between_nodes_that_stay(nodes: int) -> None:
    plan = plan_moving(moving_rows_min(nodes), nodes, 2)
    there, back = plan.moves
    assert (there.node, there.to_node) == (back.to_node, back.node)
    assert plan.leave.node == nodes
    assert plan.leave.node not in (PRODUCER_NODE, there.node, back.node)


def test_a_page_of_the_shortest_flights_is_a_large_message() -> None:
    parse(SHORT)
    assert len(page_body([SHORT] * PAGE_ROWS)) > LARGE_BYTES
