"""Bytes in, frames out: the receiving side of a link, without any I/O."""

from __future__ import annotations

import zlib
from typing import Final

from meshq import limits
from meshq.errors import RemoteProtocolError
from meshq.wire._frames import (
    CHECK,
    COUNTER_MAX,
    FIXED,
    FIXED_BYTES,
    FLAG_BODY_CHECKED,
    FLAGS_EXCLUSIVE,
    FORMS,
    HEAD_BYTES,
    MAGIC,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Frame,
    FrameType,
)
from meshq.wire._refusals import violation

_TYPES: Final = {int(t): (t, FORMS[t]) for t in FrameType}


#: The fields of the fixed header, as they come out of it.
_Fixed = tuple[bytes, int, int, int, int, int, int, int, int, int, int, int]


class ReceiveBuffer:
    """Cuts a byte stream into frames and checks each one's form.

    ``body_bytes_max`` bounds a frame's body; it is small until the peer is known, and raised then.
    """

    __slots__ = ("_failed", "_pending", "body_bytes_max")

    def __init__(self, body_bytes_max: int = limits.UNAUTHENTICATED_BYTES_MAX) -> None:
        self.body_bytes_max: int = body_bytes_max
        # Bytes of a frame that is not complete yet.
        self._pending = bytearray()
        # The error that broke the stream: behind it the beginning of a frame is unknown.
        self._failed: RemoteProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Take received bytes; return the frames that are complete now.

        Raises:
            RemoteProtocolError: the bytes break the protocol; the connection is of no further use, and every later
            call says so, too.  Frames before the bad one are lost with it: their session ends.
        """
        if self._failed is not None:
            raise RemoteProtocolError(str(self._failed), refusal=self._failed.refusal)
        if self._pending:
            self._pending += data
            source: bytes | bytearray = self._pending
        else:
            source = data
        frames: list[Frame] = []
        offset = 0
        size = len(source)
        try:
            with memoryview(source) as view:
                while size - offset >= HEAD_BYTES:
                    frame, end = self._parse(view, offset, size)
                    if frame is None:
                        break
                    frames.append(frame)
                    offset = end
                if offset < size and not MAGIC.startswith(start := bytes(view[offset : offset + len(MAGIC)])):
                    # Found before a whole header has come: a peer with another protocol may wait for our answer.
                    raise violation("bad_magic", f"found {start.hex()}")
        except RemoteProtocolError as error:
            self._failed = error
            self._pending = bytearray()
            raise
        if source is self._pending:
            del self._pending[:offset]
        elif offset < size:
            self._pending += data[offset:]
        return frames

    def end(self) -> None:
        """Check that the stream has ended between two frames.

        Raises:
            RemoteProtocolError: the stream has ended inside a frame.
        """
        if self._pending:
            raise violation("truncated", f"{len(self._pending)} bytes of an unfinished frame")

    @property
    def pending_bytes(self) -> int:
        """The bytes of an unfinished frame."""
        return len(self._pending)

    def _parse(self, view: memoryview, offset: int, size: int) -> tuple[Frame | None, int]:
        fixed: _Fixed = FIXED.unpack_from(view, offset)
        frame_type, row_bytes = _check_fixed(fixed, self.body_bytes_max)
        _, _, _, flags, header_size, count, body_size, channel, number, received, first, stamp = fixed
        header_at = offset + HEAD_BYTES
        table_at = header_at + header_size
        body_at = table_at + count * row_bytes
        end = body_at + body_size
        if end > size:
            return None, offset
        expected = CHECK.unpack_from(view, offset + FIXED_BYTES)[0]
        check = zlib.crc32(view[header_at:body_at], zlib.crc32(view[offset : offset + FIXED_BYTES]))
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
            header=bytes(view[header_at:table_at]),
            count=count,
            table=bytes(view[table_at:body_at]),
            body=bytes(view[body_at:end]),
        )
        return frame, end


def _check_fixed(fixed: _Fixed, body_bytes_max: int) -> tuple[FrameType, int]:
    """Check the fixed header against the form of its type; return the type and the size of its rows."""
    magic, version, type_number, flags, header_size, count, body_size, channel, number, received, first, stamp = fixed
    if magic != MAGIC:
        raise violation("bad_magic", f"found {magic.hex()}")
    if not PROTOCOL_VERSION_MIN <= version <= PROTOCOL_VERSION:
        raise violation(
            "unknown_version",
            f"the frame has version {version}, this side speaks {PROTOCOL_VERSION_MIN}-{PROTOCOL_VERSION}",
        )
    known = _TYPES.get(type_number)
    if known is None:
        raise violation("unknown_type", f"type {type_number}")
    frame_type, form = known
    form_flags, row_bytes, rows_max, has_header, has_body, has_channel, has_first, has_stamp = form
    if flags & ~form_flags or (flags & FLAGS_EXCLUSIVE).bit_count() > 1:
        raise violation("unknown_flags", f"{frame_type.name} with flags {flags:#x}")
    if header_size > limits.HEADER_BYTES_MAX:
        raise violation("too_large", f"{header_size} bytes of header; allowed: {limits.HEADER_BYTES_MAX}")
    if count > rows_max:
        raise violation("too_large", f"{frame_type.name} with {count} rows; allowed: {rows_max}")
    if body_size > (body_bytes_max if has_body else 0):
        raise violation("too_large", f"{frame_type.name} with {body_size} bytes of body")
    if number | received | first | stamp > COUNTER_MAX:
        raise violation("too_large", f"{frame_type.name} with a counter over {COUNTER_MAX}")
    if has_channel is not None and has_channel is not (channel > 0):
        raise violation("bad_channel", f"{frame_type.name} with channel {channel}")
    if (header_size and not has_header) or (first and not has_first) or (stamp and not has_stamp):
        raise violation("bad_header", f"{frame_type.name} has a field that its type has not")
    return frame_type, row_bytes
