"""A byte stream between two trio loops of one process, without a socket."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

import trio

from meshq.abc import Buffer, Stream
from meshq.errors import BusyError, ClosedError, ConnectionBrokenError, caused
from meshq.limits import CHECKPOINT_MESSAGES, RECEIVE_BYTES


class PipeStream(Stream):
    """An end of a pipe.  Sent bytes lie at the other end until they are read; beyond ``RECEIVE_BYTES`` they count as
    waiting."""

    __slots__ = ("_calls", "_closed", "_flushing", "_lock", "_lot", "_other", "_peer", "_pieces", "_token", "_unread")

    def __init__(self, peer: str, token: trio.lowlevel.TrioToken, lock: threading.Lock) -> None:
        self._peer = peer
        # The loop whose tasks use this end.
        self._token = token
        self._lot = trio.lowlevel.ParkingLot()
        self._calls = 0
        # All below is touched with the lock of both ends only.
        self._lock = lock
        self._other = self
        self._pieces: deque[memoryview] = deque()
        self._unread = 0
        self._flushing = False
        self._closed = False

    @classmethod
    def pair(
        cls, name: str, here: trio.lowlevel.TrioToken, there: trio.lowlevel.TrioToken
    ) -> tuple[PipeStream, PipeStream]:
        """Make two ends: the first for tasks of the loop ``here``, the second for tasks of the loop ``there``."""
        lock = threading.Lock()
        near, far = cls(name, here, lock), cls("in process", there, lock)
        near._other, far._other = far, near
        return near, far

    @property
    def peer(self) -> str:
        return self._peer

    def send_nowait(self, data: Buffer) -> int:
        other = self._other
        with self._lock:
            self._check()
            # The sender may change its buffer as soon as this returns.
            piece = memoryview(bytes(data))
            if piece.nbytes:
                other._pieces.append(piece)
                other._unread += piece.nbytes
            waiting = self._waiting()
        other._wake()
        return waiting

    async def flush(self) -> None:
        if self._flushing:
            raise BusyError(f"two tasks flush the stream to {self._peer}")
        self._flushing = True
        try:
            while True:
                with self._lock:
                    self._check()
                    if not self._waiting():
                        return
                await self._lot.park()
        finally:
            self._flushing = False

    async def receive(self, size_max: int) -> bytes:
        self._calls += 1
        if self._calls >= CHECKPOINT_MESSAGES:
            self._calls = 0
            await trio.lowlevel.checkpoint()
        while True:
            with self._lock:
                if self._closed:
                    raise self._shut()
                data = self._take(size_max)
                if data is not None:
                    room = self._other._flushing
                    break
            self._calls = 0
            await self._lot.park()
        if room:
            self._other._wake()
        return data

    def gone(self) -> bool:
        with self._lock:
            return self._closed or self._other._closed

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
            self._pieces.clear()
            self._unread = 0
        if not closed:
            self._wake()
            self._other._wake()

    def _check(self) -> None:
        if self._closed:
            raise self._shut()
        if self._other._closed:
            text = f"the other side of the stream to {self._peer} has closed it"
            raise ConnectionBrokenError(text) from EOFError("nobody reads the stream any more")

    def _shut(self) -> ConnectionBrokenError:
        error = ConnectionBrokenError(f"the stream to {self._peer} is closed")
        return caused(error, ClosedError("this side has closed the stream"))

    def _waiting(self) -> int:
        return max(self._other._unread - RECEIVE_BYTES, 0)

    def _take(self, size_max: int) -> bytes | None:
        """Take received bytes; ``b""`` at the end of the stream, None if nothing is here yet."""
        if not self._pieces:
            return b"" if self._other._closed else None
        piece = self._pieces.popleft()
        if piece.nbytes > size_max:
            self._pieces.appendleft(piece[size_max:])
            piece = piece[:size_max]
        self._unread -= piece.nbytes
        return bytes(piece)

    def _wake(self) -> None:
        """Wake the tasks that wait at this end; called by both loops."""
        # A loop that has ended has no waiting task.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)
