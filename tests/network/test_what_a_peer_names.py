"""What another broker says of its queues commands nothing at the broker that asks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from meshq import Client, Consumer, QueueStatistics, RemoteProtocolError, Topics, UsageError
from meshq.client import network_consumer, window_at
from meshq.network import _direction
from tests.network.kit import to, world


async def test_only_topics_of_users_that_the_settings_let_pass_are_forwarded_for_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = ["activemq.management", "activemq.notifications", "$meshq.stage.x", "$temporary.x", "a\nb", "secret", "t"]

    async def claim(
        client: Client, node_id: str, beginning: str, *, most: int, target_id: str = ""
    ) -> tuple[list[str], bool]:
        return [
            f"{one}::{beginning}{one}@{node_id}" for one in topics if beginning.endswith(".") and not target_id
        ], False

    opened: Counter[str] = Counter()

    def open_one(client: Client, address: str, **about: Any) -> Consumer:
        opened[address] += 1
        return network_consumer(client, address, **about)

    monkeypatch.setattr(_direction, "network_consumer", open_one)
    monkeypatch.setattr(_direction, "kept_queues", claim)
    async with world() as made:
        await made.start("b")
        await made.start("a")
        async with made.here("a") as client:
            await client.create_address("t", "multicast")
        await made.brokers["a"].add_network(to("b", duplex=True, excluded=[Topics("secret")]))
        await made.brokers["a"].network("to-b").wait_for(timeout=30)
        await trio.sleep(0.5)
    # What the settings exclude now may still wait here for a subscription there: these are names of this broker.
    assert opened == {"t": 2, "secret": 1}


async def test_what_another_broker_names_makes_no_address_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def claim(
        client: Client, node_id: str, beginning: str, *, most: int, target_id: str = ""
    ) -> tuple[list[str], bool]:
        there = client.statistics().node_id == peer and beginning.endswith(".") and not target_id
        return [f"{one}::{beginning}{one}@{node_id}" for one in ("t", "u")] if there else [], False

    opened: list[str] = []

    def open_one(client: Client, address: str, **about: Any) -> Consumer:
        opened.append(address)
        return network_consumer(client, address, **about)

    monkeypatch.setattr(_direction, "network_consumer", open_one)
    monkeypatch.setattr(_direction, "kept_queues", claim)
    async with world() as made:
        await made.start("b")
        async with made.here("b") as client:
            peer = client.statistics().node_id
        await made.start("a")
        async with made.here("a") as client:
            await client.create_address("t", "multicast")
            await made.brokers["a"].add_network(to("b", duplex=True))
            await made.brokers["a"].network("to-b").wait_for(timeout=30)
            await trio.sleep(0.5)
            assert set(opened) == {"t"} and not (await client.explain_route("u")).exists
    (told,) = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "network_kept_dropped"]
    assert "for 'u' was dropped: no such address is here" in told


async def test_a_broker_takes_no_request_as_a_message_that_another_broker_forwards() -> None:
    async with world() as made:
        await made.start("a")
        async with made.here("a") as client:
            with pytest.raises(UsageError, match="no messages of other brokers"):
                await window_at(client, "activemq.management", 1, "multicast")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("number", [-1, 2**63, "7", b"7", 7.0, True, None]),
        ("ready", ["3", -3]),
        ("name", [7, None]),
        ("routing", [b"anycast"]),
        ("durable", [1]),
    ],
)
def test_an_answer_about_a_queue_with_values_that_are_none_is_a_breach_of_the_protocol(
    field: str, values: list[Any]
) -> None:
    assert QueueStatistics.of({"name": "q", "number": 2**63 - 1, "newer": None}).number == 2**63 - 1
    for value in values:
        with pytest.raises(RemoteProtocolError, match=f"whose {field} is none"):
            QueueStatistics.of({"name": "q", field: value})
