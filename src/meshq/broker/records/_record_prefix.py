"""The prefix of each record that a start needs: the head of a run of messages, other records whole.

A paged queue needs no content in memory, so a start need not read the content.  The facts that a start needs stand at
the beginning of a run's record: the producer and the queues.  Duplicate ids stand in the content, and delivery options
in the headers: such runs are read whole, if they live.
"""

from __future__ import annotations

import struct
from typing import Final

from meshq.abc import Buffer
from meshq.broker.records._kinds import PLACED, ROUTED, RUN, WAITING
from meshq.broker.records._rows import _SETTLED_ROW
from meshq.broker.records._runs import _PLACED_HEAD, _ROUTED_HEAD, _ROUTED_TARGET, _RUN_HEAD, _TARGET
from meshq.wire import RUN_ROW_BYTES, has_ids

#: Another number for another way to shorten records: what was kept in the way before is not used, and written anew.
PREFIX_FORM: Final = 1
#: A record that has to be read whole is kept whole if it is so short.
WHOLE_BYTES: Final = 512


def record_prefix(kind: int, payload: Buffer) -> tuple[int, bool]:
    """How many bytes at the beginning of a payload a start needs, and whether these are enough if the record lives."""
    try:
        if kind == RUN:
            head, rows = _run_head(payload, 0)
            table = bytes(payload[head : head + rows * RUN_ROW_BYTES])
            if len(table) == rows * RUN_ROW_BYTES and not has_ids(table):
                return head, True
        elif kind == ROUTED:
            head = _routed_head(payload, 0)
        elif kind == PLACED:
            notes, settled = _PLACED_HEAD.unpack_from(payload)
            head = _routed_head(payload, _PLACED_HEAD.size + notes + settled * _SETTLED_ROW.size)
        elif kind == WAITING:
            # Of a deleted record nothing is needed.
            head = 0
        else:
            return len(payload), True
    except struct.error:
        # Whoever reads it says what is wrong with it.
        return len(payload), True
    return (head, False) if len(payload) > max(head, WHOLE_BYTES) else (len(payload), True)


def _run_head(payload: Buffer, at: int) -> tuple[int, int]:
    """Where the table of a run begins, and how many rows it has."""
    _, _, _, rows, targets, skipped, address = _RUN_HEAD.unpack_from(payload, at)
    return at + _RUN_HEAD.size + address + targets * _TARGET.size + 2 * skipped, rows


def _routed_head(payload: Buffer, at: int) -> int:
    at += _ROUTED_HEAD.size
    _, _, _, _, targets, _, address = _RUN_HEAD.unpack_from(payload, at)
    at += _RUN_HEAD.size + address
    for _ in range(targets):
        remotes = _ROUTED_TARGET.unpack_from(payload, at)[5]
        at += _ROUTED_TARGET.size + 4 * remotes
    return at
