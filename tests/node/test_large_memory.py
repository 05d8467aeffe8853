"""A large body for which the broker has no memory: refused, and told what there is."""

from __future__ import annotations

import pytest

from meshq import AddressFullError
from tests.node.lives import bodies, lives


async def test_a_large_body_without_memory_is_refused_with_what_is_in_use_and_what_may_be() -> None:
    async with lives(memory_limit=1 << 20) as node, node.client() as client:
        told = r"no memory for another block of \d+ bytes of a large body: \d+ bytes of memory_limit=1048576 are in use"
        with pytest.raises(AddressFullError, match=told) as caught:
            await client.send("q", bytes(8 << 20))
        assert caught.value.outcome == "not_done"
        await client.send("q", b"small")
        async with client.consumer("q") as consumer:
            assert await bodies(consumer) == [b"small"]
