"""What the node says of itself, and explains: costly filters are asked in steps there, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meshq import limits
from meshq.address import NOTIFICATIONS
from meshq.broker.queue._run_messages import RunMessages
from meshq.errors import AddressFullError
from meshq.selector import parse_filter
from meshq.wire import encode_map
from tests.broker.costly import Steps
from tests.broker.kit import House, RawClient, make_house
from tests.broker.logs import FakeLog


@pytest.fixture(name="asked")
def _asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts filters that look at a priority, each of which is a term."""
    asked = [0]
    header = RunMessages.header

    def counting(self: RunMessages, name: str) -> Any:
        asked[0] += name == "priority"
        return header(self, name)

    monkeypatch.setattr(RunMessages, "header", counting)
    monkeypatch.setattr(limits, "SCAN_TERMS", 1)
    return asked


def in_steps(steps: Steps, house: House, asked: list[int]) -> int:
    """Go on to the end; returns how many filters were asked in all, and a few in each step."""
    total = asked[0]
    while house.core.pending.fair_scheduler or house.core.running_operations:
        asked[0] = 0
        steps.one(house)
        assert asked[0] <= limits.SCAN_MESSAGES_MAX + 1
        total += asked[0]
    return total


def telling(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> tuple[House, RawClient]:
    """A house where each notification is more than a step for the subscription ``told``."""
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 1)
    subscribe(house, "told", "queue LIKE 'n%' OR queue = 'another'")
    return house, client


def subscribe(house: House, name: str, text: str) -> None:
    wanted = parse_filter(text)
    house.core.definitions.create_queue(name, address=NOTIFICATIONS, routing="multicast", durable=False, filter=wanted)


def told(house: House) -> list[str]:
    """The queues of which the notifications tell that are kept."""
    seen = []
    for view in house.queue("told").runs():
        messages = RunMessages(view.run)
        for row in range(view.run.content.rows):
            messages.move(row, properties=True)
            seen.append(messages.properties["queue"])
    return seen


@pytest.mark.parametrize("late", [False, True])
def test_notifications_for_costly_filters_keep_their_order(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    house, client = telling(steps, monkeypatch)
    for number in range(20):
        client.call("create_queue", name=f"n{number}")
    assert house.core.internal_producer._waiting_bytes and not house.queue("told").counts.added
    if late:
        subscribe(house, "late", "queue <> 'x'")
        for _ in range(5):
            steps.one(house)
        client.call("create_queue", name="n20")
    steps.all(house)
    assert (
        told(house) == [f"n{number}" for number in range(20 + late)]
        and house.core.internal_producer._waiting_bytes == 0
    )


def test_a_subscription_keeps_no_more_notifications_than_it_may_though_these_waited_for_filters(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, client = telling(steps, monkeypatch)
    monkeypatch.setattr(limits, "NOTIFICATIONS_QUEUED_MAX", 7)
    for number in range(20):
        client.call("create_queue", name=f"n{number}")
    assert house.core.internal_producer._waiting_bytes and not house.queue("told").counts.added
    steps.all(house)
    assert told(house) == [f"n{number}" for number in range(13, 20)] and house.core.settings.event_bus.dropped == 13


def test_a_notification_that_costs_little_overtakes_none_that_waits(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, client = telling(steps, monkeypatch)
    client.call("create_queue", name="n0")
    client.call("create_queue", name="n1")
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 1_000)
    client.call("create_queue", name="n2")
    assert told(house) == []
    steps.all(house)
    assert told(house) == ["n0", "n1", "n2"]


def test_subscriptions_that_come_while_a_notification_waits_are_asked_in_steps(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    house, client = telling(steps, monkeypatch)
    client.call("create_queue", name="n0")
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 5)
    for number in range(40):
        subscribe(house, f"late{number}", f"AMQPriority < 9 AND queue <> 'late{number}'")
    assert in_steps(steps, house, asked) == 40
    assert told(house) == ["n0"] and house.queue("late7").counts.added == 1


def test_what_waits_too_much_or_has_no_place_when_it_is_its_turn_is_counted(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, client = telling(steps, monkeypatch)
    client.call("create_queue", name="n0")
    size = house.core.internal_producer._waiting_bytes
    monkeypatch.setattr(limits, "OWN_MESSAGES_WAITING_BYTES_MAX", 2 * size)
    client.call("create_queue", name="n1")
    client.call("create_queue", name="n2")
    assert house.core.settings.event_bus.dropped == 1 and house.core.internal_producer._waiting_bytes == 2 * size

    def full(*about: object, **more: object) -> None:
        raise AddressFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(type(house.core.ingress), "place", full)
        steps.one(house)
        steps.one(house)
    steps.all(house)
    assert house.core.settings.event_bus.dropped + len(told(house)) == 3 and house.core.settings.event_bus.dropped > 1


# -- explanations


def test_an_explanation_asks_filters_in_steps(steps: Steps, asked: list[int]) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    for number in range(60):
        text = f"AMQPriority <> {number}"
        client.call("create_queue", name=f"q{number}", address="in", routing="multicast", filter=text)
    steps.all(house)
    asked[0] = 0
    client.call("explain_route", address="in", properties=encode_map({}), priority=4)
    assert in_steps(steps, house, asked) == 60
    answer = client.answer(client.calls)
    assert answer is not None
    assert [answer.named[f"gets{number}"] for number in (3, 4, 5)] == ["yes", "no", "yes"]


def test_an_explanation_tells_of_each_address_in_its_turn(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    for number in range(5):
        client.call("create_queue", name=f"q{number}", address=f"a{number}", routing="multicast")
        if number:
            client.call("create_divert", name=f"d{number}", address="a0", forwarding_address=f"a{number}")
    steps.all(house)
    client.call("explain_route", address="a0")
    assert client.answer(client.calls) is None
    assert steps.all(house) >= 5
    answer = client.answer(client.calls)
    assert answer is not None and "q4" in answer.named.values()


def test_explanations_take_turns_and_are_right(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    for number in range(60):
        client.call("create_queue", name=f"q{number}", address="in", routing="multicast", filter=f"k = {number}")
    asked = Counter[str]()
    steps.all(house)
    calls = []
    for _ in range(5):
        client.call("explain_route", address="in", properties=encode_map({"k": 3}))
        calls.append(client.calls)
    answered = sum(client.answer(call) is not None for call in calls)
    assert not answered
    while house.core.pending.fair_scheduler:
        before = sum(client.answer(call) is not None for call in calls)
        steps.one(house)
        asked["at once"] = max(asked["at once"], sum(client.answer(call) is not None for call in calls) - before)
    assert asked["at once"] == 1
    for call in calls:
        answer = client.answer(call)
        assert answer is not None
        said = answer.named
        assert said["name3"] == "q3" and said["gets3"] == "yes" and said["gets2"] == "no"
