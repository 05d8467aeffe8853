"""Where the messages of a run want their answers."""

from __future__ import annotations

from typing import Final

from meshq import limits
from meshq.wire import KIND_HEADERS, RunBytes, RunView, decode_map, violation

#: The key of ``reply_to``: headers without this byte need not be decoded, however they are encoded.
_KEY: Final = b"r"


def reply_addresses(run: RunBytes) -> list[str]:
    """The different ``reply_to`` of a run, in the order of their first message.

    Raises:
        RemoteProtocolError: headers that may have one can't be read.
    """
    view = RunView(run)
    found: dict[str, None] = {}
    for row in range(run.rows):
        if view.kind(row) & KIND_HEADERS and _KEY in (data := view.headers(row)):
            reply_to = decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False).get("r")
            if reply_to is None:
                continue
            if type(reply_to) is not str:
                raise violation("bad_header", "a message has a reply_to that can't be one")
            found[reply_to] = None
    return list(found)
