"""Large messages where an address is bounded: the bytes of their bodies count, wherever they lie."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from meshq import AddressFullError, AddressSettings
from tests.node.lives import lives
from tests.node.test_large_messages import BODY, files, one, quiet


async def test_an_address_that_fails_when_it_is_full_counts_bodies_also_after_a_restart() -> None:
    settings = {"q": AddressSettings(full_policy="fail", max_size_bytes=len(BODY))}
    async with lives(queues=["q"], address_settings=settings) as life, life.client() as client:
        await client.send("q", b"small")
        await client.send("q", BODY)
        for again in (False, True):
            if again:
                await life.again(killed=True)
            with pytest.raises(AddressFullError) as caught:
                await client.send("q", BODY)
            assert caught.value.outcome == "not_done"
            with pytest.raises(AddressFullError, match=r"2 messages in \d{6,} bytes"):
                await client.send("q", b"small")
        await quiet()
        assert len(files(life)) == 1
        assert [await one(client), await one(client)] == [b"small", BODY]
        await client.send("q", BODY)


async def test_an_address_that_drops_when_it_is_full_drops_bodies() -> None:
    settings = {"q": AddressSettings(full_policy="drop", max_size_bytes=len(BODY))}
    async with lives(queues=["q"], address_settings=settings) as life, life.client() as client:
        for _ in range(3):
            await client.send("q", BODY)
        await quiet()
        assert len(files(life)) == (await client.queue("q")).ready == 1


async def test_large_messages_are_paged_like_others_and_their_bodies_stay_where_they_are() -> None:
    settings = {"q": AddressSettings(full_policy="page", max_size_bytes=2_000)}
    async with lives(queues=["q"], address_settings=settings) as life, life.client() as client:
        for number in range(6):
            await client.send("q", b"%d" % number * 700)
            await client.send("q", b"%d" % number + BODY)
        await quiet()
        assert len(files(life)) == 6
        for number in range(6):
            assert await one(client) == b"%d" % number * 700
            assert await one(client) == b"%d" % number + BODY
        await quiet()
        assert files(life) == []


async def test_so_many_bodies_come_in_at_a_time_each_has_an_open_file() -> None:
    async with lives(queues=["q"]) as life, life.client() as client, trio.open_nursery() as nursery:
        assert life.broker._node is not None and life.broker._node.bodies is not None
        bodies = life.broker._node.bodies
        bodies._uploads_max = 1
        go_on = trio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield BODY
            await go_on.wait()
            yield b"the end"

        nursery.start_soon(client.send, "q", slow())
        await quiet()
        with pytest.raises(AddressFullError, match="1 large bodies are coming in") as caught:
            await client.send("q", BODY)
        assert caught.value.outcome == "not_done"
        go_on.set()
        await quiet()
        await client.send("q", BODY)
        assert (await client.queue("q")).ready == 2
