"""A time to live without an end is none, on every face."""

from __future__ import annotations

import math

import pytest

import meshq.blocking
from meshq import Broker, Message, SettingsError


async def expirations(broker: Broker) -> list[tuple[bytes, bool]]:
    """What waits in ``q``, and whether it has a time at which it expires."""
    async with broker.client() as client, client.consumer("q", filter="expiration IS NULL", browse=True) as never:
        return sorted([(delivery.body, True) async for delivery in never])


async def test_what_never_expires_is_sent_as_if_nothing_were_said() -> None:
    async with Broker("b", data_dir=None) as broker, broker.client() as client:
        await client.send("q", b"1", ttl=math.inf)
        await client.send("q", Message(b"2", ttl=math.inf))
        await client.send_many("q", [Message(b"3", ttl=math.inf), Message(b"4", ttl=math.inf, group="g")])
        async with client.producer("q") as producer:
            await producer.send(b"5", ttl=math.inf)
            await producer.send(b"6", ttl=math.inf, group="g")
        async with client.transaction() as tx:
            await tx.send("q", b"7", ttl=math.inf)
        await client.send("q", b"mortal", ttl=100)
        assert [body for body, _ in await expirations(broker)] == [b"%d" % number for number in range(1, 8)]
        for wrong in (-math.inf, math.nan, -1, True, "inf"):
            with pytest.raises(SettingsError, match=r"math\.inf or None"):
                await client.send("q", b"x", ttl=wrong)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="delay=inf"):
            await client.send("q", b"x", delay=math.inf)


def test_a_program_without_async_may_say_so_too() -> None:
    with meshq.blocking.Broker("b", data_dir=None) as broker, broker.client() as client:
        client.send("q", b"1", ttl=math.inf)
        with client.consumer("q", filter="expiration IS NULL") as consumer:
            found = consumer.receive(timeout=10)
            assert found is not None and found.body == b"1"
