"""The checkers of a mesh: each passes a good history, and finds what it is in charge of."""

from __future__ import annotations

from meshq.testing._checkers_mesh import b1_no_dead_letter_by_refusal, b2_carried_all_the_way
from meshq.testing._history import History, body_of


def bridged(hops: int = 4, duplicate_id: str | None = "d1@a") -> History:
    """Message 1 was sent into a ring at a, came back there, and was acknowledged."""
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    history.spared["q@a.dead"] = "its target says no"
    history.send_ok(history.sent("s", "q", 1, duplicate_id="d1@a", node="a"))
    number = history.delivered("r", "r", "q", body_of(1), sequence=5, node="a")
    history.carried(number, hops, 4, duplicate_id)
    history.settle_ok(history.settling([number]))
    return history


def test_a_place_to_which_nothing_may_come_is_empty() -> None:
    history = bridged()
    history.recounted("q@a.dead", [])
    assert list(b1_no_dead_letter_by_refusal(history)) == []
    history.recounted("q@a.dead", [(1, 3)])
    assert [violation.uid for violation in b1_no_dead_letter_by_refusal(history)] == [1]
    history.recounted("q@a.dead", [])
    history.delivered("r", "r", "q", body_of(2), sequence=5, node="a.dead")
    assert [violation.uid for violation in b1_no_dead_letter_by_refusal(history)] == [2]


def test_what_comes_out_of_bridges_has_made_all_its_hops_and_has_its_senders_id() -> None:
    assert list(b2_carried_all_the_way(bridged())) == []
    for wrong in (bridged(hops=3), bridged(hops=5), bridged(duplicate_id=None), bridged(duplicate_id="d1@b")):
        assert [violation.uid for violation in b2_carried_all_the_way(wrong)] == [1]
