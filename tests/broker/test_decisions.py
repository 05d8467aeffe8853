"""What a node has said of transactions by their xids is said again, also of those that it never knew."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker.transactions._decisions import Decision, Decisions
from meshq.wire import BY_NAME, Answer
from tests.broker.preparing import decide, next_life, prepare
from tests.broker.test_transactions import Tx, clean, house_with

ROLLED_BACK, USAGE = (BY_NAME[name].number for name in ("rolled_back", "usage"))


@pytest.mark.parametrize("first", ["commit", "rollback"])
@pytest.mark.parametrize("cut", [False, True])
def test_of_what_nobody_knows_everybody_is_told_the_same_from_then_on(first: str, cut: bool) -> None:
    """Whoever has heard that it is committed must not hear that it is rolled back."""
    house, client, _ = house_with()
    other = "rollback" if first == "commit" else "commit"
    refused = USAGE if first == "commit" else ROLLED_BACK
    for _ in range(3):
        assert decide(client, first, b"never heard of") == 0
        assert decide(client, other, b"never heard of") == refused
        assert decide(client, first, b"never heard of") == 0
        if cut:
            house, client = next_life(house)
    clean(house)


def test_the_answer_about_what_nobody_knows_waits_for_the_disk() -> None:
    house, client, _ = house_with()
    house.auto = False
    assert decide(client, "commit", b"never heard of") == -1
    house.rest()
    assert client.answer(client.calls) == Answer()


def test_who_asks_for_many_has_its_own_decisions_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.limits.DECISIONS_REMEMBERED", 10)
    decisions = Decisions()
    decisions.add(b"owner's", Decision("owner", False, 1))
    gone = [found for number in range(100) for found in decisions.add(b"%d" % number, Decision("thief", True, number))]
    assert decisions.get(b"owner's") is not None and len(decisions) == 10 and gone == list(range(1, 91))


def test_the_oldest_decisions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECISIONS_REMEMBERED", 3)
    house, client, _ = house_with()
    for number in range(1, 7):
        assert prepare(Tx(client, number=number), b"x%d" % number) == 0
        assert decide(client, "rollback", b"x%d" % number) == 0
    for _ in range(2):
        assert len(house.core.transactions.two_phase.decisions) == 3
        assert [decide(client, "commit", b"x%d" % number) for number in (4, 5, 6)] == [ROLLED_BACK] * 3
        house, client = next_life(house)
    # What was told of those that are forgotten is remembered in their place.
    assert [decide(client, "commit", b"x%d" % number) for number in (1, 2, 3, 4)] == [0] * 4
    assert len(house.core.transactions.two_phase.decisions) == 3
    client.put(client.produce("any"), b"a record that kills them")
    assert [record.kind for record in house.log.living()].count(15) == 3
