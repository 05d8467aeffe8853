"""The content of paged runs, from their records in the journal."""

from __future__ import annotations

import pytest

from meshq.broker import StoredRun, run_contents
from meshq.broker.paging import _reading
from meshq.store import JournalRecord
from meshq.wire import RunBytes, RunView, encode_run

POSITION = 7
WHOLE = encode_run([b"a", b"b", b"c"])


def stored(position: int, content: RunBytes = WHOLE) -> StoredRun:
    run = StoredRun("q", content, durable=True, producer=bytes(16), number=1, stamp=0)
    run.position = position
    return run


def share_of(origin: StoredRun, row: int) -> StoredRun:
    share = stored(0)
    share.origin, share.rows = origin, range(row, row + 1)
    return share


def bodies_of(content: RunBytes) -> list[bytes]:
    return [bytes(RunView(content).body(row)) for row in range(content.rows)]


def test_a_record_is_decoded_once_for_all_shares_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def content_of(kind: int, payload: bytes) -> RunBytes:
        decoded.append(payload)
        return WHOLE

    monkeypatch.setattr(_reading, "content_of", content_of)
    whole = stored(POSITION)
    shares = [share_of(whole, row) for row in range(WHOLE.rows)]
    found = run_contents([*shares, whole], {POSITION: JournalRecord(POSITION, 1, b"record")})
    assert [bodies_of(found[share]) for share in shares] == [[b"a"], [b"b"], [b"c"]]
    assert bodies_of(found[whole]) == [b"a", b"b", b"c"]
    assert decoded == [b"record"]


def test_a_run_whose_record_died_meanwhile_has_what_is_in_memory() -> None:
    run = stored(POSITION, encode_run([b"left"]))
    assert bodies_of(run_contents([run], {})[run]) == [b"left"]
