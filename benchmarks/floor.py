"""The floor: what a durable broker in Python costs before it has a single feature.

One queue, trio, msgpack frames, a deque of message objects, group commit through a thread, crc32.  No addresses, no
resume, no redelivery, no recovery: the journal is a zero-filled ring that nobody reads back.  What it does do is
honest: a message is visible only when it is on disk, a send is confirmed only then, every message is acknowledged,
acknowledgements are journaled too, and the consumer ends with a flush that waits for them.  meshq is measured in
multiples of it.  The garbage collector runs as Python sets it, because a library can't turn off its host's; without
it this file is about half as fast again.  At most 300 lines.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import msgpack
import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.timer import Timer
from benchmarks.workload import LatencyClock, Workload, received

SEND, CONFIRM, CREDIT, DELIVER, ACK, FLUSH = range(6)
LENGTH = struct.Struct("<I")
RECORD = struct.Struct("<II")  # length and crc32 before each write
RING_BYTES = 64 * 1024 * 1024  # rewritten from its start when full: reclaiming is a feature
RECEIVE_BYTES = 256 * 1024
DELIVER_MAX = 1_000
CONSUMER_WINDOW = 10_000
Row = tuple[dict[str, str], bytes]


@attrs.define
class Message:
    number: int
    properties: dict[str, str]
    body: bytes


def frame(kind: int, value: object) -> bytes:
    data = msgpack.packb((kind, value))
    return LENGTH.pack(len(data)) + data


class Frames:
    """Cut a stream into frames; ``raw`` is kept because the journal stores a producer's bytes as they came."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def receive(self) -> list[tuple[int, Any, bytes]]:
        """All frames that have arrived; an empty list is the end of the stream."""
        found: list[tuple[int, Any, bytes]] = []
        while not found and (data := await self.stream.receive_some(RECEIVE_BYTES)):
            buffer, at = self.buffer + data, 0
            while len(buffer) - at >= 4:
                end = at + 4 + LENGTH.unpack_from(buffer, at)[0]
                if end > len(buffer):
                    break
                raw = buffer[at + 4 : end]
                found.append((*msgpack.unpackb(raw), raw))
                at = end
            self.buffer = buffer[at:]
        return found


class Journal:
    """Group commit: whatever has gathered while one sync ran goes into the next, in one thread hop."""

    def __init__(self, workload: Workload) -> None:
        self.durable = workload.durable
        self.pending: list[tuple[bytes, Callable[[Any], object], Any]] = []
        self.wake = trio.Event()
        self.syncs = self.at = 0
        self.fd = os.open(os.path.join(workload.directory, "journal"), os.O_RDWR | os.O_CREAT, 0o600)
        for offset in range(0, RING_BYTES if self.durable else 0, 1 << 20):
            os.pwrite(self.fd, bytes(1 << 20), offset)
        os.fsync(self.fd)

    def append(self, record: bytes | list[Any], callback: Callable[[Any], object], argument: Any) -> None:
        if self.durable:
            raw = record if isinstance(record, bytes) else msgpack.packb(record)
            self.pending.append((raw, callback, argument))
            self.wake.set()
        else:
            callback(argument)

    def write(self, records: list[bytes]) -> None:
        data = b"".join(records)
        if self.at + len(data) + RECORD.size > RING_BYTES:
            self.at = 0
        os.pwritev(self.fd, [RECORD.pack(len(data), zlib.crc32(data)), data], self.at)
        os.fdatasync(self.fd)
        self.at += RECORD.size + len(data)
        self.syncs += 1

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            self.wake = trio.Event()
            taken, self.pending = self.pending, []
            await trio.to_thread.run_sync(self.write, [record for record, _, _ in taken])
            for _, callback, argument in taken:
                callback(argument)


class Broker:
    """One queue: ready, then delivered, then acknowledged."""

    def __init__(self, workload: Workload) -> None:
        self.journal = Journal(workload)
        self.ready: deque[Message] = deque()
        self.delivered: dict[int, Message] = {}
        self.number = 0
        self.on_ready: Callable[[], object] = lambda: None

    def place(self, rows: list[Row], raw: bytes | None, done: Callable[[int], object]) -> None:
        first = self.number
        self.number += len(rows)
        messages = [Message(first + i, properties, body) for i, (properties, body) in enumerate(rows)]
        self.journal.append(raw or rows, self.release, (messages, done))

    def release(self, placed: tuple[list[Message], Callable[[int], object]]) -> None:
        messages, done = placed
        self.ready.extend(messages)
        self.on_ready()
        done(len(messages))

    def take(self, count: int) -> list[Message]:
        ready = self.ready
        taken = [ready.popleft() for _ in range(min(count, len(ready)))]
        self.delivered.update((message.number, message) for message in taken)
        return taken

    def acknowledge(self, numbers: list[int], raw: bytes | None) -> None:
        for number in numbers:
            del self.delivered[number]
        self.journal.append(raw or numbers, bool, None)

    def flush(self, done: Callable[[int], object]) -> None:
        self.journal.append(b"", done, 1)


class Session:
    """One connection: a reader that places and acknowledges, a writer that confirms and delivers."""

    def __init__(self, broker: Broker, stream: trio.SocketStream) -> None:
        self.broker = broker
        self.stream = stream
        self.wake = trio.Event()
        self.confirmed = self.credit = 0

    def confirm(self, count: int) -> None:
        self.confirmed += count
        self.wake.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.write)
            await self.read()
            nursery.cancel_scope.cancel()

    async def read(self) -> None:
        frames = Frames(self.stream)
        while batch := await frames.receive():
            for kind, value, raw in batch:
                if kind == SEND:
                    self.broker.place(value, raw, self.confirm)
                elif kind == ACK:
                    self.broker.acknowledge(value, raw)
                    self.credit += len(value)
                elif kind == CREDIT:
                    self.broker.on_ready = lambda: self.wake.set()
                    self.credit += value
                elif kind == FLUSH:
                    self.broker.flush(self.confirm)
            self.wake.set()

    async def write(self) -> None:
        while True:
            await self.wake.wait()
            self.wake = trio.Event()
            out: list[bytes] = []
            if self.confirmed:
                out.append(frame(CONFIRM, self.confirmed))
                self.confirmed = 0
            while self.credit and (messages := self.broker.take(min(self.credit, DELIVER_MAX))):
                self.credit -= len(messages)
                out.append(frame(DELIVER, [(m.number, m.properties, m.body) for m in messages]))
            await self.stream.send_all(b"".join(out))


async def run_broker(workload: Workload, parent: ChildEnd) -> dict[str, float]:
    broker = Broker(workload)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, lambda stream: Session(broker, stream).run(), listeners)
        nursery.start_soon(broker.journal.run)
        await parent.meet_async(url=f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        nursery.cancel_scope.cancel()
    return {"syncs": broker.journal.syncs}


async def run_producer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    stream = await trio.open_tcp_stream("127.0.0.1", workload.port)
    frames = Frames(stream)
    await parent.meet_async()
    clock, timer = LatencyClock(workload.rate), Timer()
    started = time.monotonic()
    sent = confirmed = 0
    body = bytes(workload.size)
    burst = 1 if workload.rate else max(1, RECEIVE_BYTES // (workload.size * workload.frame))
    window = workload.window - workload.frame
    while confirmed < workload.count:
        if workload.rate and sent < workload.count:
            await timer.sleep(clock.pause())
            body = clock.stamp(workload.size)
        out: list[bytes] = []
        while len(out) < burst and sent < workload.count and sent - confirmed <= window:
            messages = [Message(sent + i, {}, body) for i in range(workload.frame)]
            out.append(frame(SEND, [(message.properties, message.body) for message in messages]))
            sent += workload.frame
        await stream.send_all(b"".join(out))
        while sent - confirmed > window or confirmed < sent == workload.count:
            confirmed += sum(value for _, value, _ in await frames.receive())
    return {"started": started, "ended": time.monotonic()}


async def run_consumer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    stream = await trio.open_tcp_stream("127.0.0.1", workload.port)
    frames = Frames(stream)
    clock = LatencyClock(workload.rate)
    await stream.send_all(frame(CREDIT, CONSUMER_WINDOW))
    await parent.meet_async()
    count = total = 0
    while count < workload.count:
        for _, rows, _ in await frames.receive():
            messages = [Message(*row) for row in rows]
            clock.arrived(message.body for message in messages)
            total += sum(len(message.body) for message in messages)
            count += len(messages)
            await stream.send_all(frame(ACK, [message.number for message in messages]))
    await stream.send_all(frame(FLUSH, None))
    await frames.receive()
    return received(workload, count, total, clock)


async def run_inside(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """No socket: tasks send in batches of ``frame``, one task takes and acknowledges."""
    broker = Broker(workload)
    arrived = trio.Event()
    await parent.meet_async()
    started = time.monotonic()

    async def produce() -> None:
        rows: list[Row] = [({}, bytes(workload.size))] * workload.frame
        for _ in range(workload.count // workload.tasks // workload.frame):
            stored = trio.Event()
            broker.place(rows, None, lambda _, stored=stored: stored.set())  # type: ignore[misc]
            await stored.wait()

    async def consume() -> int:
        nonlocal arrived
        count = total = 0
        while count < workload.count:
            await arrived.wait()
            arrived = trio.Event()
            while messages := broker.take(DELIVER_MAX if workload.frame > 1 else 1):
                count += len(messages)
                total += sum(len(message.body) for message in messages)
                broker.acknowledge([message.number for message in messages], None)
                await trio.lowlevel.checkpoint()
        arrived = trio.Event()
        broker.flush(lambda _: arrived.set())
        await arrived.wait()
        return total

    broker.on_ready = lambda: arrived.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.journal.run)
        for _ in range(workload.tasks):
            nursery.start_soon(produce)
        total = await consume()
        nursery.cancel_scope.cancel()
    result = received(workload, workload.count, total)
    return result | {"started": started, "syncs": broker.journal.syncs}


ROLES = {"broker": run_broker, "producer": run_producer, "consumer": run_consumer, "inprocess": run_inside}

if __name__ == "__main__":
    serve(ROLES)
