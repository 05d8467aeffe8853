"""Bytes in, frames out: the receiving side of a link, without any I/O."""

from __future__ import annotations

import zlib
from typing import Final

from meshq import limits
from meshq.wire._frames import (
    BODIED,
    CHECK,
    FIXED,
    FIXED_BYTES,
    FLAG_BODY_CHECKED,
    FLAGS,
    HEAD_BYTES,
    MAGIC,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    ROW_BYTES,
    ROWS_MAX,
    Frame,
    FrameType,
)
from meshq.wire._refusals import violation

_TYPES: Final = {int(t): t for t in FrameType}


class ReceiveBuffer:
    """Cuts a byte stream into frames and checks each one's form.

    ``body_bytes_max`` bounds a frame's body; it is small until the peer is known, and raised then.
    """

    __slots__ = ("_pending", "body_bytes_max")

    def __init__(self, body_bytes_max: int = limits.UNAUTHENTICATED_BYTES_MAX) -> None:
        self.body_bytes_max = body_bytes_max
        # Bytes of frames that are not complete yet.
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take what has arrived; return the frames that are complete now.

        Raises:
            RemoteProtocolError: the bytes break the protocol; the connection is of no further use.  Frames before
            the bad one are lost with it: the peer's session is resumed or made anew without them.
        """
        if self._pending:
            self._pending += data
            source: bytes | bytearray = self._pending
        else:
            source = data
        frames: list[Frame] = []
        offset = 0
        size = len(source)
        with memoryview(source) as view:
            while size - offset >= HEAD_BYTES:
                frame, end = self._parse(view, offset, size)
                if frame is None:
                    break
                frames.append(frame)
                offset = end
        if source is self._pending:
            del self._pending[:offset]
        elif offset < size:
            self._pending += data[offset:]
        return frames

    def end(self) -> None:
        """The stream has ended.

        Raises:
            RemoteProtocolError: inside a frame.
        """
        if self._pending:
            raise violation("truncated", f"{len(self._pending)} bytes of an unfinished frame")

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an unfinished frame."""
        return len(self._pending)

    def _parse(self, view: memoryview, offset: int, size: int) -> tuple[Frame | None, int]:
        (
            magic,
            version,
            type_number,
            flags,
            header_size,
            count,
            body_size,
            channel,
            number,
            received,
            first,
            stamp,
        ) = FIXED.unpack_from(view, offset)
        if magic != MAGIC:
            raise violation("bad_magic", f"found {magic.hex()}")
        if not PROTOCOL_VERSION_MIN <= version <= PROTOCOL_VERSION:
            raise violation(
                "unknown_version",
                f"the frame has version {version}, this side {PROTOCOL_VERSION_MIN}-{PROTOCOL_VERSION}",
            )
        frame_type = _TYPES.get(type_number)
        if frame_type is None:
            raise violation("unknown_type", f"type {type_number}")
        if flags & ~FLAGS.get(frame_type, 0):
            raise violation("unknown_flags", f"{frame_type.name} with flags {flags:#x}")
        if header_size > limits.HEADER_BYTES_MAX:
            raise violation("too_large", f"{header_size} bytes of header; allowed: {limits.HEADER_BYTES_MAX}")
        if count > ROWS_MAX.get(frame_type, 0):
            raise violation("too_large", f"{frame_type.name} with {count} rows")
        if body_size > (self.body_bytes_max if frame_type in BODIED else 0):
            raise violation("too_large", f"{frame_type.name} with {body_size} bytes of body")
        table_at = offset + HEAD_BYTES + header_size
        body_at = table_at + count * ROW_BYTES.get(frame_type, 0)
        end = body_at + body_size
        if end > size:
            return None, offset
        expected = CHECK.unpack_from(view, offset + FIXED_BYTES)[0]
        check = zlib.crc32(view[offset + HEAD_BYTES : body_at], zlib.crc32(view[offset : offset + FIXED_BYTES]))
        if flags & FLAG_BODY_CHECKED:
            check = zlib.crc32(view[body_at:end], check)
        if check != expected:
            raise violation("bad_checksum", f"{frame_type.name}: {expected:08x} was sent, {check:08x} was received")
        frame = Frame(
            frame_type,
            flags=flags,
            channel=channel,
            number=number,
            received=received,
            first=first,
            stamp=stamp,
            header=bytes(view[offset + HEAD_BYTES : table_at]),
            count=count,
            table=bytes(view[table_at:body_at]),
            body=bytes(view[body_at:end]),
        )
        return frame, end
