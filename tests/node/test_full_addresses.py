"""Addresses that hold no more than they may, as programs see it."""

from __future__ import annotations

import pytest
import trio

from meshq import AddressFullError, AddressSettings
from tests.node.lives import bodies, lives


async def test_two_producers_of_a_client_one_of_them_to_a_full_address() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=5)}
    async with lives(address_settings=settings) as node, node.client() as client:
        sent = 0

        async def fill() -> None:
            nonlocal sent
            for number in range(20):
                await client.send("slow", b"%d" % number)
                sent = number + 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert sent == 5
            for number in range(10):
                await client.send("free", b"%d" % number)
            async with client.consumer("slow") as consumer:
                assert await bodies(consumer) == [b"%d" % number for number in range(20)]
        found = await client.queue("slow")
        assert (found.added, found.dropped, found.ready) == (20, 0, 0)


async def test_who_waits_for_room_goes_on_after_a_restart() -> None:
    settings = {"slow": AddressSettings(full_policy="block", max_size_messages=2)}
    async with lives(address_settings=settings) as node, node.client() as client:
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                async with client.producer("slow") as producer:
                    for number in range(6):
                        await producer.send(b"%d" % number)

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.1)
            await node.again(killed=True)
            async with client.consumer("slow") as consumer:
                got = await bodies(consumer)
        assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(6)]


async def test_a_send_to_a_full_address_fails_and_was_not_done() -> None:
    settings = {"full": AddressSettings(full_policy="fail", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.send("full", b"1")
        with pytest.raises(AddressFullError, match="'full' has 1 messages") as caught:
            await client.send("full", b"2")
        assert caught.value.outcome == "not_done"
        async with client.consumer("full") as consumer:
            assert await bodies(consumer) == [b"1"]
        await client.send("full", b"3")


async def test_what_is_dropped_is_confirmed_and_seen() -> None:
    settings = {"lossy": AddressSettings(full_policy="drop", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client:
        for body in (b"1", b"2", b"3"):
            await client.send("lossy", body)
        assert (await client.queue("lossy")).dropped == 2
        assert node.broker.statistics().dropped == 2
