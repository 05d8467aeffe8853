"""What the judge of the simulated mesh says of groups: the nodes that had one at the same time, and which may wait."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from meshq.broker.queue._queue_machine import Queue
from qa.mesh.bursts.groups import too_many, without_arbiter
from qa.mesh.bursts.tapes import outside_of
from tests.broker.queues import put
from tests.cluster.arbiters import name_of


@pytest.mark.parametrize(
    ("came", "timeout_s", "found"),
    [
        ([("a", 0.0), ("a", 1.0)], 2.0, 0),
        ([("a", 0.0), ("b", 1.0)], 2.0, 1),
        ([("a", 0.0), ("b", 1.0), ("c", 1.1)], math.inf, 2),
        # Nobody used it for long enough: another node has it from then on.
        ([("a", 0.0), ("b", 2.0), ("b", 2.1)], 2.0, 0),
        ([("a", 0.0), ("b", 2.0), ("a", 2.1)], 2.0, 1),
        ([("a", 0.0), ("b", 9.0)], math.inf, 1),
    ],
)
def test_only_a_pause_lets_another_node_have_a_group(
    came: list[tuple[str, float]], timeout_s: float, found: int
) -> None:
    assert too_many([(place, b"", at_s) for place, at_s in came], timeout_s) == found


def node(name: bytes, *, members: bytes, active: bool = True) -> Any:
    """A node as far as the judge looks at it."""
    known = SimpleNamespace(members=frozenset(bytes([each]).hex() for each in members))
    settings = SimpleNamespace(node_id=name)
    cluster = SimpleNamespace(_grouping=SimpleNamespace(arbiter=known))
    return SimpleNamespace(active=active, cluster=cluster, serving_core=SimpleNamespace(settings=settings))


@pytest.mark.parametrize(
    ("active", "known_to_b", "waits"), [(True, b"abc", False), (False, b"abc", True), (False, b"bc", False)]
)
def test_a_group_waits_only_while_a_member_that_is_away_decides_about_it(
    active: bool, known_to_b: bytes, waits: bool
) -> None:
    hexes = frozenset(letter.encode().hex() for letter in "abc")
    queue, of_a = name_of(b"a".hex(), hexes)
    _, of_b = name_of(b"b".hex(), hexes)
    nodes = [node(b"a", members=b"abc", active=active), node(b"b", members=known_to_b), node(b"c", members=known_to_b)]
    assert without_arbiter(nodes, queue, [of_a, of_b]) == ([of_a] if waits else [])


def test_what_waits_for_nobody_is_counted_message_by_message() -> None:
    queue = Queue(1, "tape", "tape", durable=True)
    put(queue, 2)
    gone = put(queue, groups=["red", "blue", None])
    assert outside_of([], queue.all_runs()) == 5
    assert outside_of(["red"], queue.all_runs()) == 4
    assert outside_of(["red", "blue"], queue.all_runs()) == 3
    for span in queue.waiting(2):
        queue.remove(span, "purged")
    assert outside_of(["red", "blue"], queue.all_runs()) == 1 and gone.live == 3
