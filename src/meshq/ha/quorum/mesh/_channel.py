"""Messages over a byte stream: the length in four bytes, and so many bytes."""

from __future__ import annotations

from typing import Final

from meshq.abc import Stream
from meshq.errors import ConnectionBrokenError, RemoteProtocolError, invariant
from meshq.ha.quorum.mesh._message_format import MESSAGE_BYTES_MAX

_LENGTH_BYTES: Final = 4
_CHUNK: Final = 65_536


class Channel:
    """A stream of messages, each of up to 64 KiB."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._data = bytearray()

    @property
    def binding(self) -> bytes:
        """The hash of the server's certificate; empty without TLS."""
        return self._stream.binding

    def send_nowait(self, message: bytes) -> None:
        """Take a message, to be sent.  Raises: ConnectionBrokenError."""
        invariant(len(message) <= MESSAGE_BYTES_MAX, "a message has a bounded length")
        self._stream.send_nowait(len(message).to_bytes(_LENGTH_BYTES, "big") + message)

    async def send(self, message: bytes) -> None:
        """Send a message.  Checkpoint: when bytes wait.  Cancellation: the bytes still wait.
        Raises: ConnectionBrokenError."""
        self.send_nowait(message)
        await self._stream.flush()

    async def flush(self) -> None:
        """Wait until all taken messages are sent.  Checkpoint: when bytes wait.  Raises: ConnectionBrokenError."""
        await self._stream.flush()

    async def receive(self) -> bytes:
        """Receive a message.  Checkpoint: when nothing has arrived yet.  Cancellation: nothing is lost.
        Raises: ConnectionBrokenError; RemoteProtocolError if the message is too long."""
        await self._fill(_LENGTH_BYTES)
        length = int.from_bytes(self._data[:_LENGTH_BYTES], "big")
        if length > MESSAGE_BYTES_MAX:
            raise RemoteProtocolError(f"a message of {length} bytes, where {MESSAGE_BYTES_MAX} are allowed")
        await self._fill(_LENGTH_BYTES + length)
        message = bytes(self._data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        del self._data[: _LENGTH_BYTES + length]
        return message

    async def _fill(self, size: int) -> None:
        while len(self._data) < size:
            data = await self._stream.receive(_CHUNK)
            if not data:
                raise ConnectionBrokenError("the other side has closed the connection") from EOFError("closed")
            self._data += data
