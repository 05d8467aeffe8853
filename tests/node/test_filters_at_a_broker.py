"""What consumers with filters get from a broker: every operator, and what is missing, which never matches."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import Client, Message
from tests.node.lives import lives
from tests.process import ENDS, End

#: By body.
PROPERTIES: dict[bytes, dict[str, Any]] = {
    b"one": {"myProperty": 5, "region": "us", "amount": 10, "express": True},
    b"two": {"myProperty": 6, "region": "emea", "amount": 20.5, "express": False},
    b"three": {"myProperty": "5", "region": "us-east", "amount": 30},
    b"four": {"region": "u_s", "amount": -1, "note": "it's"},
    b"none": {},
}
EVERY = {*PROPERTIES}
TABLE: list[tuple[str, set[bytes]]] = [
    # comparison
    ("myProperty = 5", {b"one"}),
    ("myProperty <> 5", {b"two"}),
    ("region = 'us'", {b"one"}),
    ("region <> 'us'", {b"two", b"three", b"four"}),
    ("amount < 20", {b"one", b"four"}),
    ("amount <= 10", {b"one", b"four"}),
    ("amount > 20", {b"two", b"three"}),
    ("amount >= 20.5", {b"two", b"three"}),
    ("region < 'us'", {b"two", b"four"}),
    ("note = 'it''s'", {b"four"}),
    ("express = TRUE", {b"one"}),
    ("express", {b"one"}),
    # AND, OR, NOT: what is unknown stays so
    ("region = 'us' AND amount = 10", {b"one"}),
    ("region = 'us' AND missing = 1", set()),
    ("region = 'us' OR missing = 1", {b"one"}),
    ("NOT region = 'us'", {b"two", b"three", b"four"}),
    ("NOT express", {b"two"}),
    ("NOT missing = 1", set()),
    ("NOT (myProperty = 5 OR amount > 20)", set()),
    ("missing = 1 OR NOT missing = 1", set()),
    # IN
    ("region IN ('us', 'emea')", {b"one", b"two"}),
    ("region NOT IN ('us', 'emea')", {b"three", b"four"}),
    # BETWEEN
    ("amount BETWEEN 10 AND 20.5", {b"one", b"two"}),
    ("amount NOT BETWEEN 10 AND 20.5", {b"three", b"four"}),
    # LIKE
    ("region LIKE 'us%'", {b"one", b"three"}),
    ("region LIKE 'u_'", {b"one"}),
    ("region LIKE 'u!_s' ESCAPE '!'", {b"four"}),
    ("region NOT LIKE 'us%'", {b"two", b"four"}),
    ("region LIKE '%'", {b"one", b"two", b"three", b"four"}),
    # IS NULL
    ("note IS NULL", EVERY - {b"four"}),
    ("note IS NOT NULL", {b"four"}),
    ("myProperty IS NULL", {b"four", b"none"}),
    # arithmetic
    ("amount * 2 + 1 = 21", {b"one"}),
    ("amount / 2 = 5", {b"one"}),
    ("amount - 0.5 = 20", {b"two"}),
    ("-amount = 1", {b"four"}),
    ("amount / 0 = 1", set()),
    ("missing + 1 = 1", set()),
    # constants
    ("1 = 1", EVERY),
    ("1 = 2", set()),
]


async def fill(client: Client, queue: str) -> None:
    """Each by itself and all of them in one run."""
    messages = [Message(body, properties=found) for body, found in PROPERTIES.items()]
    await client.send_many(queue, messages)
    for message in messages:
        await client.send(queue, message)


async def seen(client: Client, queue: str, text: str) -> list[bytes]:
    """What a browser with this filter sees."""
    async with client.consumer(queue, filter=text, browse=True) as browser:
        return [delivery.body async for delivery in browser]


@pytest.mark.parametrize("end", ENDS)
async def test_every_operator_finds_what_it_says_before_and_after_a_restart(end: End) -> None:
    async with lives() as node, node.client() as client:
        await fill(client, "q")
        for again in (False, True):
            if again:
                await node.again(end=end)
            wrong = {text: found for text, expected in TABLE if set(found := await seen(client, "q", text)) != expected}
            assert wrong == {}
            # Each twice: none is shown for another one.
            for text, expected in TABLE:
                assert len(await seen(client, "q", text)) == 2 * len(expected), text


@pytest.mark.parametrize(("text", "expected"), TABLE)
async def test_a_consumer_gets_what_its_filter_says_and_the_rest_stays(text: str, expected: set[bytes]) -> None:
    async with lives() as node, node.client() as client:
        await client.create_queue("q")
        async with client.consumer("q", filter=text) as consumer:
            # What comes while it waits, and what is there when it comes.
            await fill(client, "q")
            got = [delivery.body for delivery in await consumer.receive_many(100, timeout=0.1)]
            assert sorted(got) == sorted([*expected, *expected])
        async with client.consumer("q", filter=text) as consumer:
            batch = await consumer.receive_many(100, timeout=0.1)
            assert sorted(delivery.body for delivery in batch) == sorted([*expected, *expected])
            await consumer.ack(*batch, confirm=True)
        async with client.consumer("q") as consumer:
            rest = [delivery.body for delivery in await consumer.receive_many(100, timeout=0.1)]
            assert sorted(rest) == sorted([*(EVERY - expected), *(EVERY - expected)])
