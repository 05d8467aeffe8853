"""What operators do with queues, through a client, in process and over TCP: moving, sending back, other settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from meshq import (
    AddressSettings,
    Broker,
    Client,
    ClientFactory,
    MessageOrigin,
    NotFoundError,
    SettingsError,
)

TCP = "tcp://127.0.0.1:0"


def client_of(broker: Broker, near: bool) -> Client:
    return broker.client() if near else ClientFactory(broker.urls[0]).connect()


async def take(client: Client, queue: str, count: int) -> list[tuple[bytes, MessageOrigin | None]]:
    found = []
    async with client.consumer(queue) as consumer:
        while len(found) < count and (delivery := await consumer.receive(timeout=5)) is not None:
            found.append((delivery.body, delivery.origin))
            await delivery.ack()
    return found


@pytest.mark.parametrize("near", [True, False])
async def test_dead_letters_are_sent_back_by_hand(tmp_path: Path, near: bool) -> None:
    settings = {"orders": AddressSettings(dead_letter_address="dead", max_delivery_attempts=2)}
    broker = Broker("a", data_dir=tmp_path, acceptors=[TCP], address_settings=settings)
    async with broker, client_of(broker, near) as client:
        await client.send("orders", b"bad")
        await client.send("orders", b"worse")
        async with client.consumer("orders") as consumer:
            for _ in range(4):
                delivery = await consumer.receive(timeout=5)
                assert delivery is not None
                await delivery.nack()
            await client.flush()
        assert (await client.queue("orders")).dead_lettered == 2
        assert await client.redrive("dead", limit=1) == 1
        origin = MessageOrigin("dead", "dead", "redriven")
        assert await take(client, "orders", 1) == [(b"bad", origin)]
        assert await take(client, "dead", 1) == [(b"worse", MessageOrigin("orders", "orders", "attempts"))]


@pytest.mark.parametrize("near", [True, False])
async def test_messages_are_moved_by_hand_and_settings_changed_for_good(tmp_path: Path, near: bool) -> None:
    async with Broker("a", data_dir=tmp_path, acceptors=[TCP]) as broker, client_of(broker, near) as client:
        for number in range(4):
            await client.send("q", b"%d" % number, properties={"n": number})
        assert await client.move_messages("q", "aside", filter="n >= 2") == 2
        assert [body for body, _ in await take(client, "aside", 2)] == [b"2", b"3"]
        await client.set_address_settings("q", AddressSettings(dead_letter_address="dead"))
        with pytest.raises(SettingsError, match="limit"):
            await client.move_messages("q", "aside", limit=0)
        with pytest.raises(SettingsError, match="filter"):
            await client.redrive("q", filter="n ==")
        with pytest.raises(NotFoundError):
            await client.move_messages("none", "aside")
        with pytest.raises(SettingsError):
            await client.set_address_settings("q", {"dead_letter_address": "x"})  # type: ignore[arg-type]
    async with Broker("a", data_dir=tmp_path, acceptors=[TCP]) as broker, client_of(broker, near) as client:
        found = await client.address_settings("q")
        assert found == AddressSettings(dead_letter_address="dead")
        async with client.consumer("q") as consumer:
            delivery = await consumer.receive(timeout=5)
            assert delivery is not None and delivery.body == b"0"
            await delivery.reject()
            await client.flush()
        assert await take(client, "dead", 1) == [(b"0", MessageOrigin("q", "q", "rejected"))]
        await client.remove_address_settings("q")
        assert await client.address_settings("q") == AddressSettings()


async def test_what_is_late_or_too_old_is_so_by_the_clock(tmp_path: Path) -> None:
    settings = {"#": AddressSettings(expiry_address="old")}
    async with Broker("a", data_dir=tmp_path, address_settings=settings) as broker, broker.client() as client:
        began = trio.current_time()
        await client.send("q", b"late", delay=0.2)
        await client.send("q", b"short", ttl=0.1, delay=0.15)
        await client.send("q", b"again")
        async with client.consumer("q") as consumer:
            delivery = await consumer.receive(timeout=5)
            assert delivery is not None and delivery.body == b"again"
            await delivery.nack(delay=0.3)
            found = [await consumer.receive(timeout=5) for _ in range(2)]
            assert [one.body for one in found if one is not None] == [b"late", b"again"]
            assert trio.current_time() - began >= 0.3
        assert await take(client, "old", 1) == [(b"short", MessageOrigin("q", "q", "expired"))]
