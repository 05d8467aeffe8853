"""Duplicate ids: which of a run are new to an address, and which only a broker may send under."""

from __future__ import annotations

from meshq import limits
from meshq.broker.catalog._router import Address
from meshq.broker.queue._run import StoredRun
from meshq.errors import UsageError
from meshq.ids import NETWORK_MARK
from meshq.wire import KIND_HEADERS, KIND_ID, RunBytes, RunView, decode_map, duplicate_ids, path_of


def check_network_ids(content: RunBytes, kinds: int) -> None:
    """See that each id of a network stands on a message that a broker has forwarded.

    A subscriber sees the id of a message; were it taken from anybody, the message itself would be left out where it
    comes later.
    Raises:
        UsageError: a message has such an id, and has come over no broker.
    """
    if not kinds & KIND_ID:
        return
    view = RunView(content)
    for row, duplicate_id in enumerate(duplicate_ids(content)):
        if duplicate_id.startswith(NETWORK_MARK):
            headers = view.headers(row) if kinds & KIND_HEADERS else b""
            if not headers or not path_of(decode_map(headers, limits.ENVELOPE_BYTES_MAX, lists=False)).steps:
                raise UsageError(f"a duplicate id that begins with {NETWORK_MARK!r} is one of a network of brokers")


def judge_ids(run: StoredRun, address: Address) -> tuple[list[bytes], tuple[int, ...]]:
    """Return the ids of a run that are new to the address, and the rows whose ids are not.

    To a durable run the ids of messages are new that are not durable.
    """
    if not RunView(run.content).has_ids():
        return [], ()
    ids = duplicate_ids(run.content)
    rows = address.duplicates.fresh_rows(ids, durable=run.durable)
    if rows is None:
        return [duplicate_id for duplicate_id in ids if duplicate_id], ()
    kept = dict.fromkeys(rows)
    skipped = tuple(row for row in range(len(ids)) if row not in kept)
    return [ids[row] for row in rows if ids[row]], skipped
