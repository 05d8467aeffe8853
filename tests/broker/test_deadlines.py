"""The deadlines of sessions that wait for their clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshq.broker.session import _deadlines
from meshq.broker.session._deadlines import Deadlines


def test_what_is_due_comes_in_order_and_once() -> None:
    deadlines = Deadlines()
    for number, at in ((1, 5.0), (2, 3.0), (3, 9.0)):
        deadlines.set(number, at)
    assert (deadlines.soonest(), deadlines.due(2.9)) == (3.0, [])
    assert (deadlines.due(5.0), deadlines.due(5.0)) == ([2, 1], [])
    deadlines.forget(3)
    deadlines.forget(3)
    assert (deadlines.soonest(), len(deadlines)) == (None, 0)


def test_the_last_word_on_a_number_holds() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 5.0)
    deadlines.set(1, 8.0)
    assert (deadlines.due(7.0), deadlines.soonest()) == ([], 8.0)
    deadlines.set(1, 2.0)
    assert (deadlines.due(3.0), deadlines.soonest()) == ([1], None)


def test_what_comes_and_goes_for_ever_leaves_nothing_behind() -> None:
    deadlines = Deadlines()
    for now in range(10_000):
        deadlines.set(1, now + 60.0)
        deadlines.forget(1)
    deadlines.set(1, 1.0)
    assert len(deadlines._heap) <= 2 + _deadlines.STALE_MAX


class Looked(dict[int, float]):
    """Deadlines by number, and how many of them were looked at one after the other."""

    looks = 0

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()

    def __iter__(self) -> Iterator[int]:
        self.looks += len(self)
        return super().__iter__()


def test_one_that_comes_or_goes_costs_no_look_at_all_the_others() -> None:
    deadlines, count = Deadlines(), 1_000
    looked = deadlines._of = Looked()
    for number in range(count):
        deadlines.set(number, 1_000.0 - number)
        assert deadlines.soonest() == 1_000.0 - number
    for number in range(count):
        # Each comes back, and is gone again.
        deadlines.forget(number)
        deadlines.set(number, 2_000.0 + number)
        deadlines.soonest()
    assert len(deadlines.due(3_000.0)) == count
    # The heap is swept now and then: that is all of it, for as many that have come and gone.
    assert looked.looks <= 4 * count


@given(st.lists(st.tuples(st.sampled_from(["set", "forget", "due"]), st.integers(0, 5), st.integers(0, 50))))
def test_a_heap_says_what_a_look_at_all_of_them_says(steps: list[tuple[str, int, int]]) -> None:
    deadlines, model = Deadlines(), dict[int, float]()
    for kind, number, at in steps:
        if kind == "set":
            deadlines.set(number, float(at))
            model[number] = float(at)
        elif kind == "forget":
            deadlines.forget(number)
            model.pop(number, None)
        else:
            due = [one for one, when in model.items() if when <= at]
            assert sorted(deadlines.due(float(at))) == sorted(due)
            for one in due:
                del model[one]
        assert deadlines.soonest() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
