"""Plans of kills: the rows at which nodes are killed, and the conditions of each kill.

A kill must catch messages in every state, and by more than luck.  So the consumers of the node hold their
acknowledgements from ``hold_at`` rows on, then the producer sends a backlog, and when enough is delivered the kill may
come, with one consumer acknowledging.  What else must be true depends on the number of nodes.

One node is killed with enough messages ready: first while the producer is on its way, then when it has finished.

In a cluster the first kill takes a node to which the producer's node forwards, with enough waiting there for it.
Messages don't wait by themselves, for a link is fast: the node is *frozen* before, as a machine is that swaps, until
enough has gathered.  The second kill takes the producer's own node, which runs, with sends that are not confirmed.
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq.limits import PRODUCER_WINDOW_MESSAGES

#: How many nodes there may be, and are unless told otherwise.
NODES_MAX: Final = 5
NODES: Final = 3
#: The node to which the producer is connected; and the one that the first kill takes in a cluster.
PRODUCER_NODE: Final = 1
FIRST_KILLED: Final = 2
#: Consumers of a single node; in a cluster each node has one.
CONSUMERS: Final = 3
#: Messages that one consumer is handed at once, and that it is given and has not settled, at most.
BATCH: Final = 300
WINDOW: Final = 600
CLUSTER_WINDOW: Final = 1_200
#: What a kill has to catch, at least: messages delivered and not acknowledged, messages ready (one node), and messages
#: that wait on the producer's node for the killed one (a cluster).
DELIVERED_MIN: Final = 500
READY_MIN: Final = 5_000
WAITING_MIN: Final = 500
#: Rows that are sent while the consumers hold: each fills its window, the one that acknowledges fills it once more.
BACKLOG: Final = READY_MIN + (CONSUMERS + 1) * WINDOW
#: Where in the file the first kill comes: two fifths, so that most of it still has to pass through the new broker.
FIRST_NUMERATOR: Final = 2
FIRST_DENOMINATOR: Final = 5
#: Where both kills come in a cluster, in tenths of the file.
CLUSTER_TENTHS: Final = (3, 6)
#: The fewest rows for which both kills can be made: with few nodes, and for each of many.
ROWS_MIN: Final = 20_000
ROWS_PER_NODE_MIN: Final = 6_500

assert (CONSUMERS - 1) * WINDOW >= DELIVERED_MIN, "the consumers that hold must be able to hold enough"
assert ROWS_MIN * FIRST_NUMERATOR // FIRST_DENOMINATOR >= BACKLOG, "the first backlog must fit before its kill"
assert ROWS_MIN - BACKLOG - ROWS_MIN * FIRST_NUMERATOR // FIRST_DENOMINATOR >= PRODUCER_WINDOW_MESSAGES, (
    "between the backlogs the producer must be able to fill its window"
)
assert CLUSTER_WINDOW >= DELIVERED_MIN + 2 * BATCH, "a consumer must hold enough while it acknowledges a batch"


def rows_min(nodes: int) -> int:
    """Return the smallest number of rows with which both kills are possible."""
    return max(ROWS_MIN, ROWS_PER_NODE_MIN * nodes)


@attrs.frozen(kw_only=True)
class Kill:
    """A kill, by rows of the file."""

    when: str
    #: The node that it takes; nodes are numbered from 1.
    node: int
    #: The producer waits here until all consumers of the node hold.
    hold_at: int
    #: The backlog ends here; the conditions are looked at once all of it is confirmed.
    check_at: int
    #: How far the producer may go when they are met.
    go_on_to: int
    #: Messages that must be ready on the node, beside what its consumers may still be given.
    ready_min: int = 0
    #: Messages that must wait for the node on the producer's; with any, the node is frozen until they do.
    waiting_min: int = 0

    @property
    def freezes(self) -> bool:
        """Whether the node stands still before it dies."""
        return self.waiting_min > 0

    @property
    def in_flight(self) -> bool:
        """Whether the producer is sending at that moment."""
        return self.go_on_to > self.check_at

    @property
    def catches_sends(self) -> bool:
        """Whether the kill must catch sends that are not confirmed."""
        return self.in_flight and self.node == PRODUCER_NODE


def plan_kills(rows: int, nodes: int = 1, first_killed: int = FIRST_KILLED) -> tuple[Kill, Kill]:
    """Plan both kills for a number of rows, at least ``rows_min(nodes)``; ``first_killed`` is for a cluster."""
    return _plan_one(rows) if nodes == 1 else _plan_cluster(rows, nodes, first_killed)


def _plan_one(rows: int) -> tuple[Kill, Kill]:
    first = rows * FIRST_NUMERATOR // FIRST_DENOMINATOR
    last = rows - BACKLOG
    return (
        Kill(
            when="while the producer sends",
            node=PRODUCER_NODE,
            hold_at=first - BACKLOG,
            check_at=first,
            go_on_to=last,
            ready_min=READY_MIN,
        ),
        Kill(
            when="after the producer has finished",
            node=PRODUCER_NODE,
            hold_at=last,
            check_at=rows,
            go_on_to=rows,
            ready_min=READY_MIN,
        ),
    )


def _plan_cluster(rows: int, nodes: int, first_killed: int) -> tuple[Kill, Kill]:
    first, second = (rows * tenths // 10 for tenths in CLUSTER_TENTHS)
    return plan_cluster_kills(nodes, (first, second, rows), first_killed)


def plan_cluster_kills(nodes: int, at: tuple[int, int, int], first_killed: int) -> tuple[Kill, Kill]:
    """Plan both kills in a cluster: the rows at which they come, and how far the producer may go at the second one."""
    first, second, end = at
    # Every node is dealt the same share: so many rows fill the window of each consumer.
    fill = nodes * CLUSTER_WINDOW
    return (
        Kill(
            when=f"while node {PRODUCER_NODE} forwards to it",
            node=first_killed,
            hold_at=first - fill,
            check_at=first,
            go_on_to=second - fill,
            waiting_min=WAITING_MIN,
        ),
        Kill(
            when="while the producer sends to it",
            node=PRODUCER_NODE,
            hold_at=second - fill,
            check_at=second,
            go_on_to=end,
        ),
    )
