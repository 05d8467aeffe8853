"""The checkers of what needs no crash: each passes a good history, and finds what it is in charge of."""

from __future__ import annotations

import attrs
import pytest

from meshq.testing.history._history import History, body_of
from qa.checkers.calm import (
    l1_kept_while_it_lives,
    l2_gone_at_its_time,
    l3_never_early,
    l4_urgent_first,
    l5_one_holder,
    l6_no_more_than_the_window,
    l7_memory_is_bounded,
)


@attrs.define
class Story:
    """A history with a clock that the test sets."""

    now: float = 0.0
    history: History = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.history = History(lambda: self.now)
        self.history.expected.calm["q"] = None
        self.history.expected.drains("q")

    def sent(self, uid: int, *, durable: bool = False, ttl_s: float = float("inf"), delay_s: float = 0.0) -> None:
        """A send that is confirmed at once."""
        op = self.history.sent("c", "q", uid, durable=durable, ttl_s=ttl_s, delay_s=delay_s)
        self.history.send_ok(op)

    def got(
        self, uid: int, who: str = "r", *, priority: int = 4, group: str | None = None, since_s: float = 0.0
    ) -> int:
        """A delivery; its number."""
        return self.history.delivered(
            "c", who, "q", body_of(uid), sequence=uid, stream=who, window=2, since_s=since_s, line=(priority, group)
        )

    def settled(self, *numbers: int, kind: str = "ack", delay_s: float = 0.0) -> None:
        """A settlement that is confirmed at once."""
        self.history.settle_ok(self.history.settling(numbers, kind, delay_s=delay_s))


@pytest.mark.parametrize("ends", ["settled", "delivered", "lost", "crash", "crash before the answer"])
def test_what_is_not_durable_is_kept_until_it_is_settled_or_a_broker_is_started(ends: str) -> None:
    story = Story()
    del story.history.expected.calm["q"]
    op = story.history.sent("c", "q", 1, durable=False)
    story.now = 1.0
    if ends == "crash before the answer":
        story.history.restarted()
        story.now = 2.0
    story.history.send_ok(op)
    if ends in ("settled", "delivered"):
        number = story.got(1)
        if ends == "settled":
            story.settled(number)
    if ends == "crash":
        story.history.restarted()
    assert len(list(l1_kept_while_it_lives(story.history))) == (ends in ("delivered", "lost"))


@pytest.mark.parametrize(
    ("asked_s", "answered_s", "left", "wrong"),
    [
        (0.5, 0.5, 2, 0),
        (0.5, 0.5, 1, 1),
        (2.0, 2.0, 1, 0),
        (2.0, 2.0, 2, 1),
        (2.0, 2.0, 0, 1),
        # It was counted before or after the time, and there is no telling.
        (0.5, 2.0, 2, 0),
        (0.5, 2.0, 1, 0),
        (0.5, 2.0, 0, 1),
    ],
)
def test_what_expires_is_there_before_its_time_and_gone_after_it(
    asked_s: float, answered_s: float, left: int, wrong: int
) -> None:
    story = Story()
    story.sent(1, ttl_s=1.0)
    story.sent(2)
    story.now = answered_s
    story.history.looked("q", left, asked_s)
    assert len(list(l2_gone_at_its_time(story.history))) == wrong


@pytest.mark.parametrize(("since_s", "wrong"), [(0.9, 0), (1.1, 1)])
def test_what_has_expired_is_granted_to_nobody(since_s: float, wrong: int) -> None:
    story = Story()
    story.sent(1, ttl_s=1.0)
    story.now = 2.0
    story.got(1, since_s=since_s)
    assert len(list(l2_gone_at_its_time(story.history))) == wrong


@pytest.mark.parametrize(("first_s", "again_s", "wrong"), [(1.0, 3.0, 0), (0.9, 3.0, 1), (1.0, 2.9, 1), (0.1, 0.2, 2)])
def test_what_waits_is_not_delivered_before(first_s: float, again_s: float, wrong: int) -> None:
    story = Story()
    story.sent(1, delay_s=1.0)
    story.now = first_s
    story.settled(story.got(1), kind="nack", delay_s=2.0)
    story.now = again_s
    story.got(1)
    assert len(list(l3_never_early(story.history))) == wrong


@pytest.mark.parametrize(
    ("started", "clocks", "wrong"),
    [
        # The clock of a broker that began anew was put forward meanwhile.
        ("a", [("a", 0.0, 0.0), ("a", 0.4, 60.0)], 0),
        ("a", [("a", 0.0, -60.0), ("a", 0.4, -30.0)], 0),
        # No broker began anew, or another one than the one whose clock it was, or that was put forward before.
        ("", [("a", 0.4, 60.0)], 1),
        ("b", [("a", 0.4, 60.0)], 1),
        ("a", [("a", 0.0, 60.0)], 1),
        ("a", [("a", 0.4, -60.0)], 1),
        ("a", [], 1),
    ],
)
def test_what_waits_may_be_early_if_a_clock_was_put_forward_and_its_broker_began_anew(
    started: str, clocks: list[tuple[str, float, float]], wrong: int
) -> None:
    story = Story()
    events = [(at_s, node, offset_s) for node, at_s, offset_s in clocks]
    for at_s, node, offset_s in events:
        if not at_s:
            story.history.clock_set(node, offset_s)
    story.now = 0.1
    story.sent(1, delay_s=1.0)
    for at_s, node, offset_s in events:
        if at_s:
            story.now = at_s
            story.history.clock_set(node, offset_s)
    story.now = 0.5
    if started:
        story.history.restarted(started)
    story.now = 0.9
    story.got(1)
    assert len(list(l3_never_early(story.history))) == wrong


@pytest.mark.parametrize(("opened_s", "wrong"), [(1.0, 1), (0.0, 0)])
def test_what_was_there_before_its_consumer_comes_by_its_priority(opened_s: float, wrong: int) -> None:
    story = Story(now=0.5)
    story.sent(1)
    story.sent(2)
    story.now = 1.0
    story.got(1, priority=3, since_s=opened_s)
    story.got(2, priority=7, since_s=opened_s)
    assert len(list(l4_urgent_first(story.history))) == wrong


def test_a_group_has_one_holder_and_its_order() -> None:
    story = Story()
    first = story.got(1, "r", group="g")
    story.got(2, "s", group="other")
    story.settled(first)
    story.got(3, "s", group="g")
    assert list(l5_one_holder(story.history)) == []
    story.got(4, "r", group="g")
    assert [violation.uid for violation in l5_one_holder(story.history)] == [4]
    story = Story()
    story.settled(story.got(2, group="g"))
    story.got(1, group="g")
    assert [violation.uid for violation in l5_one_holder(story.history)] == [1]


def test_no_consumer_holds_more_than_its_window() -> None:
    story = Story()
    first = story.got(1)
    story.got(2)
    story.settled(first)
    story.got(3)
    story.history.bounded("messages dispatched", 2, 2)
    assert list(l6_no_more_than_the_window(story.history)) == []
    story.got(4)
    story.history.bounded("messages dispatched", 3, 2)
    assert len(list(l6_no_more_than_the_window(story.history))) == 2


def test_the_memory_has_a_bound() -> None:
    story = Story()
    story.history.bounded("memory", 10, 10)
    assert list(l7_memory_is_bounded(story.history)) == []
    story.history.bounded("memory", 11, 10)
    assert len(list(l7_memory_is_bounded(story.history))) == 1
