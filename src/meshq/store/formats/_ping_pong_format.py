"""The format of a small file that is replaced whole, in turn under two names.

Its layout is the same in every format version, so that a newer file is told from a damaged one: the checksum
is looked at before the version is.

====== ===== ==================================================
offset bytes what (integers little-endian)
====== ===== ==================================================
0      8     magic ``meshqpar``
8      4     format version
12     4     length of the body, n
16     8     generation: rises with each write
24     8     what it is for, e.g. ``manifest``, padded with zeros
32     n     body
32+n   16    BLAKE2b-128 of all before
====== ===== ==================================================
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

import attrs

from meshq.errors import DamagedError
from meshq.store.formats._layout_format import PLAIN_VERSION, refuse_newer

MAGIC: Final = b"meshqpar"
CHECKSUM_BYTES: Final = 16
_HEAD: Final = struct.Struct("<8sIIQ8s")
HEAD_BYTES: Final = _HEAD.size


@attrs.frozen
class PingPongCopy:
    """A valid file of a ping-pong file."""

    generation: int
    body: bytes


def _checksum(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def encode_copy(purpose: bytes, copy: PingPongCopy, *, version: int = PLAIN_VERSION) -> bytes:
    """Encode one of the two files."""
    head = _HEAD.pack(MAGIC, version, len(copy.body), copy.generation, purpose)
    return head + copy.body + _checksum(head + copy.body)


def decode_copy(purpose: bytes, data: bytes, file: str) -> PingPongCopy:
    """Decode one of the two files.

    Raises:
        DamagedError: the file is not what was written.
        SettingsError: the file is of a newer version.
    """
    if len(data) < HEAD_BYTES + CHECKSUM_BYTES:
        raise DamagedError(file, 0, f"at least {HEAD_BYTES + CHECKSUM_BYTES} bytes", f"{len(data)} bytes")
    magic, version, length, generation, found_purpose = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError(file, 0, f"the magic {MAGIC!r}", repr(magic))
    expected = _checksum(memoryview(data)[:-CHECKSUM_BYTES])
    if expected != data[-CHECKSUM_BYTES:]:
        at = len(data) - CHECKSUM_BYTES
        raise DamagedError(file, at, f"checksum {expected.hex()}", data[-CHECKSUM_BYTES:].hex())
    refuse_newer(file, version)
    if found_purpose.rstrip(b"\0") != purpose or length != len(data) - HEAD_BYTES - CHECKSUM_BYTES:
        found = f"{found_purpose.rstrip(bytes(1))!r} with {length} bytes"
        raise DamagedError(file, 12, f"{purpose!r} with {len(data) - HEAD_BYTES - CHECKSUM_BYTES} bytes", found)
    return PingPongCopy(generation, data[HEAD_BYTES:-CHECKSUM_BYTES])
