"""Windows without an end, on a broker with little memory: ``python -m tests.attacks.wide_windows``."""

from __future__ import annotations

from pathlib import Path

import trio

from meshq import Message, connect
from tests.attacks.kit import Report, Server, main, serving

MIB = 1 << 20
LIMIT = 64 * MIB
SIZE = 100_000
MESSAGES = 3_000
CONSUMERS = 8


async def _hoard(url: str, done: list[int]) -> None:
    """Take whatever is given, and settle nothing."""
    async with (
        connect(url) as client,
        client.consumer("q", window=100_000, window_bytes=(1 << 31) - 1) as consumer,
    ):
        await consumer.receive()
        done.append(1)
        async for _ in consumer:
            pass


async def attack(folder: Path) -> Report:
    """Fill a queue far beyond memory, and hold as much of it as one can."""
    report, events = Report("wide windows"), list[int]()
    server = Server(folder, settings=f"memory_limit = {LIMIT}")
    async with serving(server) as sampler, connect(server.url) as client:
        for _ in range(0, MESSAGES, 50):
            await client.send_many("q", [Message(bytes(SIZE))] * 50)
        used: list[int] = []
        held: list[int] = []
        async with trio.open_nursery() as nursery:
            for _ in range(CONSUMERS):
                nursery.start_soon(_hoard, server.url, events)
            for _ in range(30):
                await trio.sleep(0.2)
                found = await client.broker()
                used.append(found.memory_used)
                held.append(found.held_bytes)
            nursery.cancel_scope.cancel()
        growth = sampler.rss_bytes - sampler.first.rss_bytes
    report.at_least("consumers that hold something", len(events), CONSUMERS)
    report.at_most("bytes that they hold", max(held), LIMIT // 2 + CONSUMERS * 2 * MIB)
    report.at_most("bytes of memory that are used", max(used), LIMIT)
    report.at_most("bytes by which the process has grown", growth, 4 * LIMIT)
    return report


if __name__ == "__main__":
    main(attack)
