"""TLS over any byte stream: OpenSSL in memory, our own stream under it.

What the stream below has not taken waits *here*, unencrypted, and goes through OpenSSL once there is room: else a
large send would be held twice, and what waits could not be counted in the caller's bytes.
"""

from __future__ import annotations

import ssl
from collections import deque
from contextlib import suppress
from typing import Final, NoReturn

import trio

from meshq.abc import Buffer, Stream
from meshq.env._certificates import identities_of
from meshq.errors import BusyError, ClosedError, ConnectionBrokenError, MeshqError, SecurityError, UsageError, caused
from meshq.limits import CHECKPOINT_MESSAGES, KIB, RECEIVE_BYTES

#: Encrypted at a time: four records.
PIECE_BYTES: Final = 64 * KIB


class TlsStream(Stream):
    """A connection whose handshake is over."""

    __slots__ = (
        "_below_bytes",
        "_binding",
        "_calls",
        "_closed",
        "_flushing",
        "_identities",
        "_incoming",
        "_outgoing",
        "_reading",
        "_server_name",
        "_stream",
        "_tls",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(
        self,
        stream: Stream,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        binding: bytes,
        *,
        server_name: str = "",
    ) -> None:
        self._server_name = server_name
        self._identities = identities_of(tls) if tls.server_side else ()
        self._stream = stream
        self._tls = tls
        #: Encrypted bytes that OpenSSL has yet to read, and encrypted bytes to be sent.
        self._incoming = incoming
        self._outgoing = outgoing
        self._binding = binding
        #: The bytes that are not encrypted yet, in order; never an empty piece.
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        #: The unsent bytes of the stream below, when last checked.
        self._below_bytes = 0
        #: Calls of ``receive`` since the last one that passed through the scheduler.
        self._calls = 0
        self._reading = False
        self._flushing = False
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<TlsStream {self.peer} {state} waiting_bytes={self._waiting_bytes + self._below_bytes}>"

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def binding(self) -> bytes:
        return self._binding

    @property
    def identities(self) -> tuple[str, ...]:
        return self._identities

    @property
    def server_name(self) -> str:
        return self._server_name

    def send_nowait(self, data: Buffer) -> int:
        if self._closed:
            self._refuse()
        if self._below_bytes or not len(data):
            # A broken stream says so here, too.
            self._below_bytes = self._stream.send_nowait(b"")
        view = memoryview(data).cast("B")
        taken = 0
        if not self._waiting:
            while taken < view.nbytes and not self._below_bytes:
                piece = view[taken : taken + PIECE_BYTES]
                self._encrypt(piece)
                taken += piece.nbytes
        if taken < view.nbytes:
            self._waiting.append(memoryview(bytes(view[taken:])))
            self._waiting_bytes += view.nbytes - taken
        return self._waiting_bytes + self._below_bytes

    async def flush(self) -> None:
        if self._flushing:
            raise BusyError(f"two tasks flush the stream to {self.peer}")
        if self._closed:
            self._refuse()
        self._flushing = True
        try:
            while True:
                if self._below_bytes:
                    await self._stream.flush()
                    self._below_bytes = 0
                if not self._waiting:
                    return
                self._encrypt_waiting()
        finally:
            self._flushing = False

    async def receive(self, size_max: int) -> bytes:
        if self._reading:
            raise BusyError(f"two tasks read the stream from {self.peer}")
        if size_max < 1:
            raise UsageError(f"size_max={size_max} is not allowed; allowed: 1 or more")
        if self._closed:
            self._refuse()
        self._reading = True
        try:
            self._calls += 1
            if self._calls >= CHECKPOINT_MESSAGES:
                self._calls = 0
                await trio.lowlevel.checkpoint()
            while True:
                if self._closed:
                    self._refuse()
                data = self._decrypt(size_max)
                if data is not None:
                    return data
                arrived = await self._stream.receive(RECEIVE_BYTES)
                if arrived:
                    self._incoming.write(arrived)
                else:
                    self._incoming.write_eof()
        finally:
            self._reading = False

    def gone(self) -> bool:
        return self._closed or self._stream.gone()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._waiting:
            self._send_close_alert()
        self._waiting.clear()
        self._waiting_bytes = self._below_bytes = 0
        self._stream.close()

    def _send_close_alert(self) -> None:
        """Send the TLS close alert; a connection that ends without it was cut."""
        with suppress(ssl.SSLError):
            # ``unwrap`` raises because the other side's close alert has not come; no task waits for it.
            self._tls.unwrap()
        try:
            self._stream.send_nowait(self._outgoing.read())
        except ConnectionBrokenError:
            return

    def _encrypt(self, piece: memoryview) -> None:
        try:
            self._tls.write(piece)
        except ssl.SSLError as error:
            raise ConnectionBrokenError(f"the connection to {self.peer} is broken: {error.reason}") from error
        self._below_bytes = self._stream.send_nowait(self._outgoing.read())

    def _encrypt_waiting(self) -> None:
        while self._waiting and not self._below_bytes:
            first = self._waiting[0]
            self._encrypt(first[:PIECE_BYTES])
            self._waiting_bytes -= min(first.nbytes, PIECE_BYTES)
            if first.nbytes > PIECE_BYTES:
                self._waiting[0] = first[PIECE_BYTES:]
            else:
                self._waiting.popleft()

    def _decrypt(self, size_max: int) -> bytes | None:
        """Return decrypted bytes; None if there are none."""
        try:
            data = self._tls.read(size_max)
        except ssl.SSLWantReadError:
            data = None
        except ssl.SSLZeroReturnError:
            return b""
        except ssl.SSLError as error:
            raise self._lost(error) from error
        if self._outgoing.pending:
            # An answer of TLS itself (a change of keys).
            self._below_bytes = self._stream.send_nowait(self._outgoing.read())
        return data

    def _refuse(self) -> NoReturn:
        shut = ClosedError("this side has closed the connection")
        raise ConnectionBrokenError(f"the connection to {self.peer} is closed") from shut

    def _lost(self, error: ssl.SSLError) -> MeshqError:
        if "ALERT" in (error.reason or ""):
            # What a client of TLS 1.3 is told of its certificate comes when its own handshake is over.
            return refused(error, self.peer)
        if _cut_off(error):
            cut = ConnectionBrokenError(f"the connection to {self.peer} was cut off: TLS has not ended")
            return caused(cut, error)
        return caused(ConnectionBrokenError(f"the connection to {self.peer} is broken: {error.reason or error}"), error)


def _cut_off(error: ssl.SSLError) -> bool:
    return isinstance(error, ssl.SSLEOFError) or "EOF" in (error.reason or "")


def refused(error: ssl.SSLError, peer: str) -> MeshqError:
    """Return the error for a failed handshake: a certificate is not trusted, or the peer is gone."""
    if _cut_off(error):
        return caused(ConnectionBrokenError(f"{peer} has ended the connection in the handshake of TLS"), error)
    if isinstance(error, ssl.SSLCertVerificationError):
        # It is said on this side only: the other one is sent an alert.
        return SecurityError(f"the certificate of {peer} is not trusted: {error.verify_message}")
    said = (error.reason or str(error)).replace("_", " ").lower()
    return SecurityError(f"no TLS 1.3 with {peer}: {said}")
