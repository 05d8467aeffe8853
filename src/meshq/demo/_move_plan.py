"""The plan of a run in which consumers move and a node leaves: every step, by rows of the file.

After both kills a consumer moves from node to node, twice, and strands at its node what it was given and what waits
there: the second time it moves together with the consumer that it had joined.  Then the last node leaves for good.
Before that it is given a backlog, a prepared transaction, and its share of large messages.

What a step needs is a number of rows that does not depend on the file; what the file has beyond that is spread over the
times between the steps.
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq.demo._kill_plan import (
    CLUSTER_WINDOW,
    DELIVERED_MIN,
    PRODUCER_NODE,
    WAITING_MIN,
    Kill,
    plan_cluster_kills,
)
from meshq.limits import PRODUCER_WINDOW_MESSAGES

#: How many nodes there have to be: the producer's, one that is left by its consumers, and one that leaves.
MOVING_NODES_MIN: Final = 3
#: How many there are unless told otherwise.
MOVING_NODES: Final = 5
#: The node that consumers leave first.
FIRST_LEFT: Final = 2
#: Messages that a move has to strand, at least, and rows that are sent for each node while the consumers hold.
STRANDED_MIN: Final = 500
MOVE_ROWS_PER_NODE: Final = 600
#: Rows that are sent for each node while consumers move.
GOING_ON_PER_NODE: Final = 200
#: Messages that must be ready on the node that leaves, beside those that its consumers hold.
BACKLOG_MIN: Final = 100
LEAVE_ROWS_PER_NODE: Final = CLUSTER_WINDOW + 200
#: Flights in the prepared transaction; flights in a page; pages for each node, which are dealt in turn.
PREPARED_ROWS: Final = 500
PAGE_ROWS: Final = 150
PAGES_PER_NODE: Final = 2
#: Rows that are sent while the node leaves, and, at least, when it has left.
LEAVING_ROWS: Final = 1_000
REST_MIN: Final = 1_000
#: Tenths of the rows that no step needs, before each of them.
SPARE_TENTHS: Final = (2, 2, 1, 1, 1)


@attrs.frozen(kw_only=True)
class Move:
    """A move of all consumers of a node."""

    node: int
    #: Where they go.
    to_node: int
    #: The producer waits here until all consumers of the node hold; the backlog ends at ``check_at``.
    hold_at: int
    check_at: int
    #: How far the producer may go while they move.
    go_on_to: int
    stranded_min: int = STRANDED_MIN


@attrs.frozen(kw_only=True)
class Leave:
    """The departure of a node for good."""

    node: int
    #: As in a move; ``go_on_to``: how far the producer may go while the node leaves.
    hold_at: int
    check_at: int
    go_on_to: int
    #: Rows of the prepared transaction, pages behind that, and rows of each page.
    prepared: int = PREPARED_ROWS
    pages: int
    page_rows: int = PAGE_ROWS
    #: Messages that must be with its consumers, and messages that must be ready.
    delivered_min: int = DELIVERED_MIN
    ready_min: int = BACKLOG_MIN

    @property
    def prepared_to(self) -> int:
        """The row at which the transaction ends."""
        return self.check_at + self.prepared

    @property
    def pages_to(self) -> int:
        """The row at which the pages end."""
        return self.prepared_to + self.pages * self.page_rows


@attrs.frozen(kw_only=True)
class MovingPlan:
    """The plan of a whole run."""

    kills: tuple[Kill, Kill]
    moves: tuple[Move, Move]
    leave: Leave


def _needed(nodes: int) -> tuple[int, ...]:
    """Return the rows of each step: before each kill, for both moves, for the departure."""
    fill = nodes * CLUSTER_WINDOW
    leave = nodes * LEAVE_ROWS_PER_NODE + PREPARED_ROWS + nodes * PAGES_PER_NODE * PAGE_ROWS
    going_on = nodes * GOING_ON_PER_NODE
    first, second = fill, nodes * WAITING_MIN + fill
    move = nodes * MOVE_ROWS_PER_NODE
    return first, second, PRODUCER_WINDOW_MESSAGES + move, going_on + move, going_on + leave


def moving_rows_min(nodes: int) -> int:
    """Return the smallest number of rows with which every step is possible."""
    return sum(_needed(nodes)) + LEAVING_ROWS + REST_MIN


def plan_moving(rows: int, nodes: int, first_killed: int) -> MovingPlan:
    """Plan a run with a number of rows, at least ``moving_rows_min(nodes)``."""
    spare = rows - moving_rows_min(nodes)
    ends: list[int] = []
    at = 0
    for needed, tenths in zip(_needed(nodes), SPARE_TENTHS, strict=True):
        at += needed + spare * tenths // 10
        ends.append(at)
    first, second, move_first, move_second, leave_end = ends
    backlog, pages = nodes * MOVE_ROWS_PER_NODE, nodes * PAGES_PER_NODE
    # Two nodes of which neither leaves.
    second_left = FIRST_LEFT + 1 if nodes > MOVING_NODES_MIN else PRODUCER_NODE
    check_at = leave_end - PREPARED_ROWS - pages * PAGE_ROWS
    leave = Leave(
        node=nodes,
        hold_at=check_at - nodes * LEAVE_ROWS_PER_NODE,
        check_at=check_at,
        go_on_to=leave_end + LEAVING_ROWS,
        pages=pages,
    )
    first_move = Move(
        node=FIRST_LEFT,
        to_node=second_left,
        hold_at=move_first - backlog,
        check_at=move_first,
        go_on_to=move_second - backlog,
    )
    second_move = Move(
        node=second_left,
        to_node=FIRST_LEFT,
        hold_at=move_second - backlog,
        check_at=move_second,
        go_on_to=leave.hold_at,
    )
    return MovingPlan(
        kills=plan_cluster_kills(nodes, (first, second, move_first - backlog), first_killed),
        moves=(first_move, second_move),
        leave=leave,
    )
