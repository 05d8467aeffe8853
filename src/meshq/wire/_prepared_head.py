"""The first and the last part of a prepared transaction on its way to another node: the body of the one row."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from meshq.wire._refusals import violation
from meshq.wire._run import RunBytes, RunView

# when it was prepared (ms)
_HEAD: Final = struct.Struct("<Q")
#: What a part of a prepared transaction may be: its beginning, messages that it sends, and its end.
PREPARED_PARTS: Final = ("prepared", "prepared_sends", "prepared_end")


class PreparedHead(NamedTuple):
    """When a transaction was prepared (ms, by the clock of its node), and by whom."""

    prepared_ms: int
    user: str


def encode_prepared_head(head: PreparedHead) -> bytes:
    """Encode the body of the row."""
    return _HEAD.pack(head.prepared_ms) + head.user.encode()


def decode_prepared_head(content: RunBytes) -> PreparedHead:
    """Decode the one row of a run.

    Raises:
        RemoteProtocolError: the row has no such body.
    """
    data = RunView(content).body(0)
    try:
        (prepared_ms,) = _HEAD.unpack_from(data)
        return PreparedHead(prepared_ms, data[_HEAD.size :].decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise violation("bad_header", "a prepared transaction without the time and the user of its prepare") from error
