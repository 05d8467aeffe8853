"""What the client alone costs per message, against a link that confirms at once.

``python -m benchmarks.client_costs`` prints microseconds of CPU per message.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

from meshq.client import Client, Consumer
from meshq.env import real_env
from meshq.message import PropertyValue
from meshq.wire import (
    Answer,
    Attached,
    Authenticated,
    Deliver,
    DirectLink,
    Frame,
    FrameType,
    Link,
    Outgoing,
    Welcome,
    encode_run,
)

BODY = b"x" * 100
PROPERTIES: dict[str, PropertyValue] = {"carrier": "UA", "origin": "EWR", "month": 1}
RUN = 250


class NullNode:
    """Confirms and answers everything at once, and keeps nothing."""

    def __init__(self) -> None:
        self._out = Outgoing()
        self._there = DirectLink("client")
        self._channel = 0
        self._tag = 1
        self._run = encode_run([BODY] * RUN)
        self._header = Deliver(address="q", producer=b"p" * 16, number=1, sequence=1).encode()

    def open(self) -> Link:
        """The client's end of the link."""
        here, self._there = DirectLink.pair("client", "null")
        self._there.on_frames = self._frames
        self._there.on_closed = lambda: None
        return here

    def _say(self, frame: Frame) -> None:
        self._out.number(frame, keep=False)
        self._there.send(frame)

    def _frames(self, frames: list[Frame]) -> None:
        kinds = FrameType
        for frame in frames:
            kind = frame.type
            if kind is kinds.SEND:
                last = frame.first + frame.count - 1
                self._say(Frame(kinds.CONFIRM, channel=frame.channel, first=last))
            elif kind is kinds.HELLO:
                welcome = Welcome(version=1, node_id=b"n" * 16, node_name="null", mechanisms=("none",))
                self._there.send(Frame(kinds.WELCOME, header=welcome.encode()))
            elif kind is kinds.AUTHENTICATE:
                self._there.send(Frame(kinds.AUTHENTICATED, header=Authenticated().encode()))
            elif kind is kinds.ATTACH:
                self._there.send(Frame(kinds.ATTACHED, header=Attached(session=1, key=b"k" * 16).encode()))
                self._say(Frame(kinds.CREDIT, first=1 << 60))
            elif kind is kinds.CLOSE:
                self._there.close()
                return
            elif frame.first and kind is not kinds.PING:
                if kind is kinds.CONSUME:
                    self._channel = frame.channel
                self._say(Frame(kinds.ANSWER, first=frame.first, header=Answer().encode()))
        self._there.flush()

    def deliver(self, runs: int) -> None:
        """Deliver so many runs."""
        for _ in range(runs):
            self._say(
                Frame(
                    FrameType.DELIVER,
                    channel=self._channel,
                    first=self._tag,
                    stamp=1,
                    header=self._header,
                    count=RUN,
                    table=self._run.table,
                    body=self._run.body,
                )
            )
            self._tag += RUN
        self._there.flush()


async def producer_costs(client: Client, count: int) -> None:
    """Pipelined sends."""
    identities = [f"{number:09}" for number in range(count)]
    async with client.producer("a") as producer:
        started = time.process_time()
        for _ in range(count):
            await producer.send(BODY)
        await producer.flush()
        report("producer.send", started, count)
        started = time.process_time()
        for identity in identities:
            await producer.send(BODY, duplicate_id=identity)
        await producer.flush()
        report("producer.send, duplicate id", started, count)
        started = time.process_time()
        for _ in range(count):
            await producer.send(BODY, properties=PROPERTIES)
        await producer.flush()
        report("producer.send, 3 properties", started, count)


async def send_costs(client: Client, count: int) -> None:
    """Sends that wait."""
    started = time.process_time()
    for _ in range(count // 100):
        await client.send_many("a", [BODY] * 100)
    report("send_many(100)", started, count)
    started = time.process_time()
    for _ in range(count // 10):
        await client.send("a", BODY)
    report("send", started, count // 10)


async def whole(consumer: Consumer) -> None:
    """A thousand messages together."""
    await consumer.ack(*await consumer.receive_many(1_000))


async def whole_with_bodies(consumer: Consumer) -> None:
    """The same, every body read."""
    batch = await consumer.receive_many(1_000)
    for delivery in batch:
        _ = delivery.body
    await consumer.ack(*batch)


async def one_by_one(consumer: Consumer) -> None:
    """A thousand messages, each on its own."""
    for _ in range(1_000):
        delivery = await consumer.receive()
        assert delivery is not None
        await delivery.ack()


async def consumer_costs(client: Client, node: NullNode, count: int) -> None:
    """Receiving and acknowledging."""
    ways: dict[str, Callable[[Consumer], Awaitable[None]]] = {
        "receive_many(1000), ack(*batch)": whole,
        "the same, bodies read": whole_with_bodies,
        "receive(), ack()": one_by_one,
    }
    async with client.consumer("q") as consumer:
        for name, way in ways.items():
            spent = 0.0
            for _ in range(count // 1_000):
                node.deliver(1_000 // RUN)
                started = time.process_time()
                await way(consumer)
                await trio.lowlevel.checkpoint()
                spent += time.process_time() - started
            report(name, time.process_time() - spent, count)


def report(name: str, started: float, count: int) -> None:
    """Print one line."""
    print(f"{name:34} {(time.process_time() - started) / count * 1e6:6.2f} us")


async def main(count: int = 200_000) -> None:
    """Print the cost of everything."""
    node = NullNode()
    async with Client.over(node.open, env=real_env()) as client:
        await producer_costs(client, count)
        await send_costs(client, count)
        await consumer_costs(client, node, count)


if __name__ == "__main__":
    trio.run(main)
