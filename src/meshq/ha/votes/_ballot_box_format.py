"""The ballot box of a node as a file: JSON with a checksum before it."""

from __future__ import annotations

import json
import zlib
from hashlib import blake2b
from typing import Final

from meshq.errors import DamagedError
from meshq.ha.votes._ballot_box_machine import BALLOTS_MAX, BallotBox, GivenVote

#: More than a full box takes.
BYTES_MAX: Final = BALLOTS_MAX * 2_048


def file_of(name: str) -> str:
    """Return the name of the file of a node: two nodes with one directory have a file each."""
    return f"votes-{blake2b(name.encode(), digest_size=8).hexdigest()}"


def encode_box(box: BallotBox, node_id: bytes = b"", vote: GivenVote | None = None) -> bytes:
    """Return the bytes of the file, with another ``vote`` about a node id."""
    given = {**box.given, **({} if vote is None else {node_id: vote})}
    rows = {key.hex(): [one.number, one.holder, one.vote.hex()] for key, one in given.items()}
    body = json.dumps({"box_id": box.box_id.hex(), "given": rows}, sort_keys=True).encode()
    return b"%08x\n" % zlib.crc32(body) + body


def decode_box(data: bytes, file: str) -> BallotBox:
    """Read the file.  Raises: DamagedError."""
    check, _, body = data.partition(b"\n")
    try:
        if int(check, 16) != zlib.crc32(body):
            raise ValueError("another checksum")
        found = json.loads(body)
        given = {
            bytes.fromhex(key): GivenVote(number=number, holder=holder, vote=bytes.fromhex(vote))
            for key, (number, holder, vote) in found["given"].items()
        }
        return BallotBox(bytes.fromhex(found["box_id"]), given)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(file, 0, "the votes that the node has given", "other bytes") from error
