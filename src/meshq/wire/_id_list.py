"""A list of duplicate ids, as one node hands it over to another: the body of the one message of a FORWARD frame."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from meshq.wire._refusals import violation

# newer ids, ids
_HEAD: Final = struct.Struct("<IH")
#: Ids of one list.
IDS_MAX: Final = 4_096


class IdList(NamedTuple):
    """Duplicate ids, oldest first, and how many newer ones their node has."""

    ids: tuple[bytes, ...]
    newer: int


def encode_id_list(ids: Sequence[bytes], newer: int) -> bytes:
    """Encode ids."""
    return b"".join((_HEAD.pack(newer, len(ids)), bytes(map(len, ids)), *ids))


def decode_id_list(data: bytes) -> IdList:
    """Decode ids.

    Raises:
        RemoteProtocolError: the data are no list of different ids.
    """
    try:
        newer, count = _HEAD.unpack_from(data)
    except struct.error as error:
        raise violation("bad_header", "a list of duplicate ids without a head") from error
    sizes = data[_HEAD.size : _HEAD.size + count]
    at = _HEAD.size + count
    if not 0 < count <= IDS_MAX or len(sizes) != count or not all(sizes) or at + sum(sizes) != len(data):
        raise violation("bad_header", f"{len(data)} bytes with a list of {count} duplicate ids")
    ids = []
    for size in sizes:
        ids.append(data[at : at + size])
        at += size
    if len(dict.fromkeys(ids)) < count:
        raise violation("bad_header", "a list that names a duplicate id twice")
    return IdList(tuple(ids), newer)
