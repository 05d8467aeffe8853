"""Which conditions of Spark's the source sees to, and what is then read."""

from __future__ import annotations

import pytest

from meshq.spark._filters_plan import Condition, Pruning, pruned


def offset(kind: str, value: object) -> Condition:
    """A condition on a sequence."""
    return Condition(kind, "offset", value)


@pytest.mark.parametrize(
    ("conditions", "expected", "whole"),
    [
        ([offset("GreaterThan", 5), offset("LessThan", 9)], (6, 9), [True, True]),
        ([offset("GreaterThanOrEqual", 5), offset("LessThanOrEqual", 9)], (5, 10), [True, True]),
        ([offset("EqualTo", 7)], (7, 8), [True]),
        ([offset("EqualNullSafe", 7), offset("GreaterThan", 9)], (10, 10), [True, True]),
        # Of several numbers it is the range, and the rest is Spark's.
        ([offset("In", (9, 4, 6))], (4, 10), [False]),
        # Nothing that is known.
        ([offset("EqualTo", "7"), offset("GreaterThan", 1.5), offset("IsNotNull", None)], (1, 20), [False] * 3),
        ([offset("In", ()), offset("In", (1, None))], (1, 20), [False, False]),
        ([Condition("EqualTo", "value", b"x"), Condition("Not", "", None)], (1, 20), [False, False]),
    ],
)
def test_sequences(conditions: list[Condition], expected: tuple[int, int], whole: list[bool]) -> None:
    found, done = pruned(conditions)
    assert (found.part_of(1, 20), done) == (expected, whole)
    assert found.reads("orders", 0, "n")


def test_partitions() -> None:
    conditions = [
        Condition("In", "topic", ("orders", "bills")),
        Condition("EqualTo", "topic", "orders"),
        Condition("EqualTo", "node", "n"),
        Condition("In", "partition", (0, 2)),
    ]
    found, done = pruned(conditions)
    assert done == [True] * 4
    assert found.reads("orders", 2, "n")
    assert not any(found.reads(*one) for one in (("bills", 2, "n"), ("orders", 1, "n"), ("orders", 2, "m")))
    # Both can't be: nothing is read.
    nothing, _ = pruned([Condition("EqualTo", "topic", "a"), Condition("EqualTo", "topic", "b")])
    assert not nothing.reads("a", 0, "n") and not nothing.reads("b", 0, "n")
    assert pruned([]) == (Pruning(), []) and Pruning().reads("any", 7, "n") and Pruning().part_of(3, 5) == (3, 5)
    # A number is no name, and a truth is no number.
    strange, done = pruned([Condition("EqualTo", "topic", 5), Condition("EqualTo", "partition", True)])
    assert strange == Pruning() and done == [False, False]
