"""Decisions on transactions that nobody knows: on a full disk they take nothing of what consumers need."""

from __future__ import annotations

import math
import random

import pytest
import trio

from meshq import AddressFullError, Client, RetryTransactionError
from meshq.limits import KIB
from meshq.testing import SimDisk
from tests.node.lives import lives
from tests.node.test_large_on_a_full_disk import drain, leave, on

#: Decisions that would take several segments of the smallest size.
DECISIONS = 3_000


async def decide(client: Client, name: str, first: int, count: int) -> int:
    """Decide so many transactions that nobody knows; returns how many of them were refused."""
    refused = 0
    call, error = (client.commit, RetryTransactionError) if name == "commit" else (client.rollback, AddressFullError)
    for number in range(first, first + count):
        xid = b"%06d" % number + bytes(58)
        try:
            await call(xid)
        except error as refusal:
            assert refusal.outcome == "not_done"
            refused += 1
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("name", ["commit", "rollback"])
async def test_decisions_on_what_nobody_knows_leave_the_reserve_to_who_drains_a_full_disk(name: str) -> None:
    disk = SimDisk(random.Random(1))
    settings = {**on(disk, 64 * KIB), "queues": ["in"]}
    async with lives(**settings) as node, node.client() as client, node.client() as other:
        await client.send_many("in", [bytes(1_000)] * 50)
        # What was decided while there was room is remembered.
        assert await decide(client, name, 0, 1) == 0
        leave(disk, 0)
        with trio.fail_after(600):
            refused = await decide(client, name, 1, DECISIONS)
            assert await decide(client, name, 0, 1) == 0
        assert refused > DECISIONS - 1_000
        with trio.fail_after(60):
            await drain(other, 50)
        disk.capacity_bytes = math.inf
        await trio.sleep(300)
        assert await decide(client, name, 1, DECISIONS) == 0
