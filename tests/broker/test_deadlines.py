"""The deadlines of sessions that wait for their clients."""

from __future__ import annotations

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
