"""What a start needs of each record, and what it does without the rest."""

from __future__ import annotations

import pytest

from meshq.broker import records
from meshq.errors import DamagedError, InvariantError
from meshq.settings import AddressSettings
from meshq.store import JournalRecord
from meshq.wire import RunView, encode_run, has_ids
from tests.broker.kit import GIB, House, excerpted, make_core, make_house, with_ids
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePages

BODIES = [b"%d" % row + bytes(300) for row in range(4)]


def _sent(*, ids: bool = False, **options: object) -> FakeLog:
    """The log of a broker with a queue that has three runs."""
    log = FakeLog()
    house = House(make_core(log, **options))
    client = house.client()
    client.call("create_queue", name="q")
    channel = client.produce("q")
    for number in range(3):
        envelopes = with_ids(*(f"{number}.{row}" for row in range(4))) if ids else None
        client.put(channel, *BODIES, envelopes=envelopes)
        house.rest()
    return log


def _kinds(log: FakeLog, kind: int) -> list[JournalRecord]:
    return [record for record in log.recovered() if record.kind == kind]


def test_of_a_run_without_ids_its_head_is_enough() -> None:
    for record in _kinds(_sent(), records.RUN):
        kept, enough = records.record_prefix(record.kind, memoryview(record.payload))
        whole = records.decode_run(record.payload)
        assert enough and kept == len(record.payload) - len(whole.content.table) - len(whole.content.body) < 120
        short = records.decode_run(record.payload[:kept], len(record.payload) - kept)
        assert short == whole._replace(content=whole.content._replace(table=b"", body=b""))


def test_a_run_with_ids_is_read_whole_if_it_lives() -> None:
    for record in _kinds(_sent(ids=True), records.RUN):
        kept, enough = records.record_prefix(record.kind, record.payload)
        assert not enough and kept < 120
        assert excerpted(record) == record
        records.decode_run(record.payload[:kept], len(record.payload) - kept)


def test_everything_that_brings_no_messages_is_kept_whole() -> None:
    for record in _sent().recovered():
        if record.kind != records.RUN:
            assert records.record_prefix(record.kind, record.payload) == (len(record.payload), True)
    assert records.record_prefix(records.PREPARED, bytes(9_000)) == (9_000, True)
    # What waits for a decision is messages, too.
    assert records.record_prefix(records.WAITING, bytes(9_000)) == (0, False)
    assert records.record_prefix(200, b"of another version") == (18, True)


def test_what_can_not_be_read_is_kept_for_who_says_so() -> None:
    for kind in (records.RUN, records.ROUTED, records.PLACED):
        assert records.record_prefix(kind, b"cut") == (3, True)
    run = _kinds(_sent(), records.RUN)[0].payload
    assert records.record_prefix(records.RUN, run[:60]) == (60, True)
    # An address of 65,535 bytes.
    long = run[:36] + b"\xff\xff\xff\xff" + run[40:] + bytes(1_000)
    assert records.record_prefix(records.RUN, long) == (len(long), True)
    for missing in (0, 1):
        with pytest.raises(DamagedError):
            records.decode_run(run[:-1] if not missing else run, missing)


def test_what_has_ids_is_seen_by_its_table() -> None:
    assert not has_ids(encode_run([b"", b"one", b""]).table)
    assert not has_ids(encode_run([b"one"], with_ids("")).table)
    assert has_ids(encode_run([b"", b"one"], with_ids("", "x")).table)
    assert has_ids(encode_run([b"", b"one"], with_ids("x", "")).table)


def test_a_queue_that_is_paged_comes_up_without_content_and_gives_all_of_it() -> None:
    log = _sent()
    house = make_house(log.after_crash(), records=log.recovered(), excerpts=True)
    queue = house.queue()
    assert queue.paged[0] == queue.counts.ready == 12
    whole = make_house(log.after_crash(), records=log.recovered())
    freed = sum(view.run.paged for view in queue.runs())
    assert house.core.memory.used_bytes == whole.core.memory.used_bytes - freed
    pages = FakePages(house)
    client = house.client()
    channel = client.consume("q")
    pages.rest()
    assert client.bodies(channel) == BODIES * 3
    assert queue.paged[0] == 0
    assert house.core.memory.used_bytes == whole.core.memory.used_bytes


def test_a_queue_that_is_not_paged_has_its_content_at_once() -> None:
    blocking = {"#": AddressSettings(full_policy="block", max_size_bytes=GIB)}
    log = _sent(settings=blocking)
    house = make_house(log.after_crash(), records=log.recovered(), settings=blocking, excerpts=True)
    whole = make_house(log.after_crash(), records=log.recovered(), settings=blocking)
    assert house.queue().paged == (0, 0)
    bodies = [RunView(view.run.content).body(row) for view in house.queue().runs() for row in range(4)]
    assert bodies == BODIES * 3
    assert house.core.memory.used_bytes == whole.core.memory.used_bytes
    (mine,), (other,) = (list(one.core.router.quotas.values()) for one in (house, whole))
    assert mine.bytes == other.bytes > 3 * 4 * 300


def test_who_can_not_read_may_not_leave_out() -> None:
    blocking = {"#": AddressSettings(full_policy="block")}
    log = _sent(settings=blocking)
    with pytest.raises(InvariantError):
        make_core(log.after_crash(), settings=blocking).recovery().take(map(excerpted, log.recovered()))


def test_content_that_nobody_needs_is_not_read() -> None:
    """Every message was settled, and the record is behind the checkpoint: nothing of it has to be in memory."""
    blocking = {"#": AddressSettings(full_policy="block")}
    log = FakeLog()
    house = House(make_core(log, settings=blocking))
    client = house.client()
    client.call("create_queue", name="q")
    client.put(client.produce("q"), *BODIES)
    house.rest()
    channel = client.consume("q")
    client.settle(channel, (1, 4))
    house.rest()
    later = make_house(log.after_crash(), records=log.recovered(), settings=blocking, excerpts=True)
    assert later.queue().counts.ready == 0
