"""Windows without an end, on a broker with little memory: ``python -m tests.attacks.wide_windows``.

Some who ask for them are clients of ours that settle nothing.  Others speak the protocol by hand: they grant themselves
all there is and never say what has arrived, whether they settle it or not; some do not even read.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import trio

from meshq import Message, connect
from meshq.wire import Consume, FrameType
from tests.attacks.kit import Report, Server, main, serving
from tests.attacks.raw import Conversation

MIB = 1 << 20
LIMIT = 64 * MIB
SIZE = 100_000
MESSAGES = 3_000
CONSUMERS = 8
#: Clients by hand of each manner, and what they do; none of them reports what has arrived.
RAW = 3
MANNERS = ("keeps all", "settles", "is deaf", "browses and is deaf")
#: The most that the protocol lets a window be.
WIDEST = (1 << 31) - 1


async def _hoard(url: str, done: list[int]) -> None:
    """Take whatever is given, and settle nothing."""
    async with (
        connect(url) as client,
        client.consumer("q", window=100_000, window_bytes=WIDEST) as consumer,
    ):
        await consumer.receive()
        done.append(1)
        async for _ in consumer:
            pass


async def _hoard_by_hand(port: int, begun: dict[str, int], manner: str) -> None:
    """Take a session and a consumer with the widest windows, and never say what has arrived."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        conversation = Conversation(stream)
        assert await conversation.attach(WIDEST)
        browse = manner == "browses and is deaf"
        header = Consume(queue="q", window=WIDEST, window_bytes=WIDEST, browse=browse)
        await conversation.say(header, number=1, channel=1, first=1)
        for number in count(2):
            while (frame := await conversation.next()) is None or frame.type is not FrameType.DELIVER:
                assert frame is not None and frame.type is not FrameType.CLOSE, frame
            begun[manner] = begun.get(manner, 0) + 1
            if "deaf" in manner:
                await trio.sleep_forever()
            if manner == "settles":
                await conversation.settle(1, frame.first, frame.first + frame.count - 1, number=number)


async def attack(folder: Path) -> Report:
    """Fill a queue far beyond memory, and hold as much of it as one can."""
    report, events, by_hand = Report("wide windows"), list[int](), dict[str, int]()
    server = Server(folder, settings=f"memory_limit = {LIMIT}")
    async with serving(server) as sampler, connect(server.url) as client:
        for _ in range(0, MESSAGES, 50):
            await client.send_many("q", [Message(bytes(SIZE))] * 50)
        used: list[int] = []
        held: list[int] = []
        async with trio.open_nursery() as nursery:
            for _ in range(CONSUMERS):
                nursery.start_soon(_hoard, server.url, events)
            for manner in MANNERS * RAW:
                nursery.start_soon(_hoard_by_hand, server.port, by_hand, manner)
            for _ in range(30):
                await trio.sleep(0.2)
                found = await client.broker()
                used.append(found.memory_used)
                held.append(found.held_bytes)
            nursery.cancel_scope.cancel()
        growth = sampler.rss_bytes - sampler.first.rss_bytes
    report.at_least("consumers that hold something", len(events), CONSUMERS)
    for manner in MANNERS:
        report.at_least(f"runs that a client by hand has who {manner}", by_hand.get(manner, 0), RAW)
    report.at_most("bytes that they hold", max(held), LIMIT // 2 + (CONSUMERS + len(MANNERS) * RAW) * 2 * MIB)
    report.at_most("bytes of memory that are used", max(used), LIMIT)
    report.at_most("bytes by which the process has grown", growth, 4 * LIMIT)
    return report


if __name__ == "__main__":
    main(attack)
