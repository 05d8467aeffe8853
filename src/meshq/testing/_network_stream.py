"""Streams of the memory network: the state of a connection in a process and in the kernel under it."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import NoReturn, Protocol

import trio

from meshq.abc import Buffer, Stream
from meshq.errors import BusyError, ClosedError, ConnectionBrokenError, UsageError, invariant
from meshq.limits import CHECKPOINT_MESSAGES
from meshq.testing._network_link import FIN, OPEN, RST, Item, Link, NetworkContext, Pipe

#: How often a reset takes along what had arrived and was not read: systems differ.
UNREAD_LOST_CHANCE = 0.5


class Machine(Protocol):
    """The part of a host that its streams use."""

    name: str
    #: There is no power.
    off: bool
    #: The process stands still; the kernel does not.
    paused: bool
    #: Connections that are neither closed here nor void.
    streams: dict[MemoryStream, None]
    #: Connections lost with the power, whose peers have sent since: they hear of it when power is back.
    ghosts: dict[MemoryStream, None]

    def when_running(self, action: Callable[[], None]) -> None:
        """Do it now, or when the process runs again; never if it is dead."""


class WaitingPlace:
    """A place for one task to wait.  A wake-up may be for nothing: the task looks again."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Sleep until woken.  Checkpoint: always.  Cancellation: the place is free again."""
        invariant(self.task is None, "two tasks wait in one place")
        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)

    def wake(self) -> None:
        """Wake the task that waits here, if there is one."""
        if self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task)

    def _leave(self, _: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


def _always() -> bool:
    return True


class SendBuffer:
    """The bytes of one direction that left their sender's call, and that the receiver has not said it has read.

    The link carries at most ``limit_bytes`` of them; the rest waits in the process, in order.
    """

    __slots__ = ("_limit_bytes", "_waiting", "may_send", "under_way_bytes", "waiting_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[memoryview] = deque()
        #: The sum of what waits.
        self.waiting_bytes: int = 0
        #: On the link, or arrived and not read.
        self.under_way_bytes: int = 0
        #: Whether what waits may leave.
        self.may_send: Callable[[], bool] = _always

    @property
    def free_bytes(self) -> int:
        """How much the link takes now."""
        return self._limit_bytes - self.under_way_bytes

    def put(self, data: memoryview) -> None:
        """Let bytes wait behind all others."""
        self._waiting.append(data)
        self.waiting_bytes += len(data)

    def take(self) -> bytes:
        """The next bytes for the link, as many as the link takes; empty: nothing waits, or the link is full."""
        free = self.free_bytes
        if not self._waiting or not free:
            return b""
        piece = self._waiting.popleft()
        if len(piece) > free:
            self._waiting.appendleft(piece[free:])
            piece = piece[:free]
        self.waiting_bytes -= len(piece)
        return bytes(piece)

    def clear(self) -> None:
        """Drop the waiting bytes."""
        self._waiting.clear()
        self.waiting_bytes = 0


class MemoryStream(Stream):
    """An end of a connection between two simulated hosts."""

    __slots__ = (
        "_calls",
        "_closed",
        "_dead",
        "_eof",
        "_failure",
        "_flushing",
        "_lost",
        "_peer",
        "_readable",
        "_reading",
        "_uncredited",
        "_unread",
        "_unsent",
        "_writable",
        "fabric",
        "host",
        "inbound",
        "opened",
        "outbound",
        "peer_host",
    )

    def __init__(self, fabric: NetworkContext, host: Machine, peer_host: Machine, link: Link, peer: str) -> None:
        self.fabric = fabric
        self.host = host
        self.peer_host = peer_host
        self._peer = peer
        self.outbound = Pipe(fabric, link, self)
        #: The other end's ``outbound``, once there is another end.
        self.inbound: Pipe | None = None
        #: Whether the handshake is over.
        self.opened = False
        #: The process closed it, or died.
        self._closed = False
        #: The process died.  Its tasks are not woken, and what they call does not return until cancelled.
        self._dead = False
        #: The host lost power; nobody here knows of this connection any more.
        self._lost = False
        #: Why the connection is void.
        self._failure: str | None = None
        #: The peer sends no more.
        self._eof = False
        #: Arrived and not read yet.
        self._unread = bytearray()
        #: Bytes read that the sender was not told of.
        self._uncredited = 0
        self._unsent = SendBuffer(fabric.settings.buffer_bytes)
        self._readable = WaitingPlace()
        self._writable = WaitingPlace()
        self._reading = False
        self._flushing = False
        #: Calls of ``receive`` since the last one that passed through the scheduler.
        self._calls = 0
        host.streams[self] = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._failure or "open"
        return f"<MemoryStream {self.host.name}->{self._peer} {state} waiting_bytes={self._unsent.waiting_bytes}>"

    # -- what a process calls ------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._peer

    def send_nowait(self, data: Buffer) -> int:
        if self._closed or self._failure is not None:
            self._refuse()
        taken, unsent = bytes(data), self._unsent
        if not taken:
            return unsent.waiting_bytes
        free = 0
        if not unsent.waiting_bytes and not self.host.paused:
            free = unsent.free_bytes
            if len(taken) <= free:
                self._transmit(taken)
                return 0
            if free:
                self._transmit(taken[:free])
        unsent.put(memoryview(taken)[free:])
        return unsent.waiting_bytes

    async def flush(self) -> None:
        if self._flushing:
            raise BusyError(f"two tasks flush the stream to {self._peer}")
        self._flushing = True
        try:
            while True:
                if self._closed or self._failure is not None:
                    await self._hang_if_dead()
                    self._refuse()
                if not self._unsent.waiting_bytes:
                    return
                await self._writable.wait()
        finally:
            self._flushing = False

    async def receive(self, size_max: int) -> bytes:
        if self._reading:
            raise BusyError(f"two tasks read the stream from {self._peer}")
        if size_max < 1:
            raise UsageError(f"size_max={size_max} is not allowed; allowed: 1 or more")
        self._reading = True
        try:
            self._calls += 1
            if self._calls >= CHECKPOINT_MESSAGES:
                self._calls = 0
                await trio.lowlevel.checkpoint()
            while not (self._closed or self._something_to_tell()):
                self._calls = 0
                await self._readable.wait()
            if self._closed:
                await self._hang_if_dead()
                self._refuse()
            if self._unread:
                return self._take(size_max)
            if self._failure is not None:
                self._refuse()
            return b""
        finally:
            self._reading = False

    def bound(self, may_send: Callable[[], bool]) -> None:
        self._unsent.may_send = may_send

    def gone(self) -> bool:
        return self._closed or (not self.host.paused and (self._eof or self._failure is not None))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.drop()
            self._readable.wake()
            self._writable.wake()
            self.host.when_running(self.hang_up)

    async def connected(self) -> None:
        """Return when the peer's kernel has taken the connection; raise if it can't be made."""
        while self.connecting or (self.host.paused and not self._closed):
            await self._readable.wait()
        await self._hang_if_dead()
        if not self.opened:
            text = f"{self._peer} can't be reached: {self._failure}"
            number = (errno.ECONNREFUSED,) if self._failure == "refused" else ()
            raise ConnectionBrokenError(text, outcome="not_done") from OSError(*number, self._failure)

    # -- what the kernel and the wire do -------------------------------------------------------------------

    def arrived(self, item: Item) -> None:
        """A segment is here."""
        if self._lost or self._closed:
            self._answer_for_nobody(item)
        elif self._failure is not None:
            pass
        elif type(item) is bytes:
            self._unread += item
            self.wake_if_running()
        elif type(item) is int:
            self._unsent.under_way_bytes -= item
            self.pump()
        elif item is RST:
            self.failed("reset by the peer")
        else:
            self.opened = self.opened or item is OPEN
            self._eof = self._eof or item is FIN
            self.wake_if_running()

    @property
    def connecting(self) -> bool:
        """Whether a task waits for the end of the handshake."""
        return not (self.opened or self._closed or self._failure is not None)

    def failed(self, reason: str) -> None:
        """End both directions of a broken connection; unread bytes may be gone."""
        if self._failure is not None or self._closed:
            return
        self._failure = reason
        if self.fabric.rng.random() < UNREAD_LOST_CHANCE:
            self._unread.clear()
        self.drop()
        self.wake_if_running()

    def pump(self) -> None:
        """Hand waiting bytes to the link, as many as its buffer takes."""
        if self.host.paused:
            return
        if self._unsent.waiting_bytes and not self._unsent.may_send():
            self.close()
            return
        while piece := self._unsent.take():
            self._transmit(piece)
        if not self._unsent.waiting_bytes:
            self._writable.wake()

    def wake_if_running(self) -> None:
        """Wake reader and writer, unless the process is paused."""
        if not self.host.paused:
            self._readable.wake()
            if not self._unsent.waiting_bytes:
                self._writable.wake()

    def drop(self) -> None:
        """Forget the unsent bytes, and leave the host's table of connections."""
        self._unsent.clear()
        self.host.streams.pop(self, None)

    def hang_up(self) -> None:
        """Close the socket as a kernel does after ``close`` or the end of the process.

        The peer reads an orderly end, or a reset if this process had not read all bytes of the peer.
        """
        if self.inbound is None or self._failure is not None:
            return
        self.outbound.put(RST if self._unread else FIN)
        self._unread.clear()

    def abandon(self) -> None:
        """The process died and the kernel closes its socket."""
        self._closed = self._dead = True
        self.drop()
        self.hang_up()

    def reset(self) -> None:
        """The process closed its listener, or died, before it had accepted this connection."""
        self._closed = self._dead = True
        self.drop()
        self.answer_void()

    def lose_power(self) -> None:
        """The host lost power.  What it had sent may have left it in part."""
        self._closed = self._dead = self._lost = True
        self.drop()
        self.outbound.lose()

    def answer_void(self) -> None:
        """Tell the peer that here is no such connection."""
        self.outbound.put(RST)

    # -- parts ---------------------------------------------------------------------------------------------

    def _something_to_tell(self) -> bool:
        if self.host.paused:
            return False
        return bool(self._unread) or self._eof or self._failure is not None

    def _take(self, size_max: int) -> bytes:
        size = min(size_max, len(self._unread))
        if size > 1 and self.fabric.rng.random() < self.fabric.settings.short_read_chance:
            size = self.fabric.rng.randint(1, size)
            self.fabric.counters["short_read"] += 1
        if size == len(self._unread):
            data = bytes(self._unread)
            self._unread.clear()
        else:
            data = bytes(self._unread[:size])
            del self._unread[:size]
        self._uncredited += size
        # As a kernel does, tell of reads in quarters of the buffer: often enough that a sender never waits
        # for ever, rarely enough to cost nothing.
        if self._uncredited * 4 >= self.fabric.settings.buffer_bytes and self._failure is None:
            self.outbound.put(self._uncredited)
            self._uncredited = 0
        return data

    def _transmit(self, data: bytes) -> None:
        self._unsent.under_way_bytes += len(data)
        if len(data) > 1 and self.fabric.rng.random() < self.fabric.settings.split_chance:
            self.fabric.counters["split"] += 1
            size = self.fabric.rng.randint(1, len(data) - 1)
            self.outbound.put(data[:size], size)
            data = data[size:]
        self.outbound.put(data, len(data))

    def _answer_for_nobody(self, item: Item) -> None:
        """Answer a segment of a connection that the host does not know, or that no process reads."""
        if self.host.off:
            self.fabric.counters["vanished"] += 1
            self.host.ghosts[self] = None
            assert self.inbound is not None
            self.inbound.begin_stall()
        elif item is not RST and (self._lost or item is OPEN or type(item) is bytes):
            self.answer_void()

    async def _hang_if_dead(self) -> None:
        if self._dead:
            await trio.sleep_forever()

    def _refuse(self) -> NoReturn:
        if self._closed:
            shut = ClosedError("this side has closed the connection")
            raise ConnectionBrokenError(f"the connection to {self._peer} is closed") from shut
        text = f"the connection to {self._peer} is lost: {self._failure}"
        raise ConnectionBrokenError(text) from OSError(self._failure)
