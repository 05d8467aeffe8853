"""Large messages where an address is bounded: the bytes of their bodies count, wherever they lie."""

from __future__ import annotations

import pytest

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
