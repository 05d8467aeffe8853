"""The path of a message through a network of brokers, as brokers and filters see it."""

from __future__ import annotations

import pytest

from meshq import Message
from meshq.client import BridgedMessage, send_bridged
from meshq.wire import PathStep, encode_path, path_of
from tests.network.kit import consuming, take, world

HERE, THERE = "a" * 32, "b" * 32
STEPS = (PathStep(HERE, "east"), PathStep(THERE, "west"))
TEXT = encode_path(STEPS)


def test_a_path_counts_only_beside_the_mark_of_a_broker_that_forwards() -> None:
    assert path_of({"b": b"", "p": TEXT}) == STEPS
    assert path_of({"b": b"own", "p": TEXT}) == STEPS
    assert path_of({"p": TEXT}) == ()
    assert path_of({"b": b""}) == ()


@pytest.mark.parametrize("text", [7, "", "no path", "C" * 32 + " name", "\n".join([TEXT] * 9)])
def test_what_is_no_path_is_none(text: object) -> None:
    assert path_of({"b": b"", "p": text}) == ()


@pytest.mark.parametrize(
    ("filter", "count"),
    [
        (f"AMQBrokerPath LIKE '%{HERE}%'", 1),
        (f"AMQBrokerPath LIKE '%{THERE}%'", 0),
        (f"AMQBrokerPath = '{HERE}'", 1),
        ("AMQBrokerHops = 1", 1),
        ("AMQBrokerPath IS NULL", 1),
    ],
)
async def test_a_filter_sees_the_ids_of_a_path_and_no_names(filter: str, count: int) -> None:
    """A broker may have the id of another one as its name."""
    async with world() as made:
        await made.start("a")
        async with made.here("a") as client:
            path = encode_path([PathStep(HERE, THERE)])
            await send_bridged(client, "q", [BridgedMessage(Message(b"forwarded"), b"", path)])
            await client.send("q", b"own")
        async with consuming(made, "a", filter=filter) as (_, consumer):
            got = await take(consumer, count)
            assert all(one.path == ((THERE,) if one.body == b"forwarded" else ()) for one in got)
