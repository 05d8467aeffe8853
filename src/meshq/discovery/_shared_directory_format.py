"""The file of one member of a shared directory: its last datagram, with a number and a checksum."""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final

import attrs

from meshq import limits

MAGIC: Final = b"MQSD"
VERSION: Final = 1
#: Magic, version, 0, size of the datagram, number of the datagram, checksum of all of it.
_HEAD: Final = struct.Struct("<4sBBHQI")
FILE_BYTES_MAX: Final = _HEAD.size + limits.DATAGRAM_BYTES_MAX
#: The name of a member's file, and of a file that is being written.
_NAME: Final = re.compile(r"[0-9a-f]{32}(\.new)?")


@attrs.frozen
class MemberFile:
    """The content of a member's file; ``number`` rises by one with each datagram of the member."""

    number: int
    datagram: bytes


def is_member(name: str) -> bool:
    """Whether a name in the directory is that of a member's file, written or being written."""
    return _NAME.fullmatch(name) is not None


def encode_member(content: MemberFile) -> bytes:
    """Encode the file of a member."""
    head = _HEAD.pack(MAGIC, VERSION, 0, len(content.datagram), content.number, 0)
    check = zlib.crc32(head + content.datagram)
    return _HEAD.pack(MAGIC, VERSION, 0, len(content.datagram), content.number, check) + content.datagram


def decode_member(file: bytes) -> MemberFile | None:
    """Decode the file of a member; None if the bytes are none, or not whole."""
    if len(file) < _HEAD.size:
        return None
    magic, version, zero, size, number, check = _HEAD.unpack_from(file)
    datagram = file[_HEAD.size :]
    if (
        magic != MAGIC
        or version != VERSION
        or zero
        or size != len(datagram)
        or not 0 < size <= limits.DATAGRAM_BYTES_MAX
    ):
        return None
    if check != zlib.crc32(_HEAD.pack(magic, version, zero, size, number, 0) + datagram):
        return None
    return MemberFile(number, datagram)
