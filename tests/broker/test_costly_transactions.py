"""What transactions send is put to costly filters in steps, before anything of it is done."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker.queue import _verdicts
from meshq.wire import (
    BY_NAME,
)
from tests.broker.costly import (
    ROWS,
    WANTED,
    Steps,
    numbered,
    read,
    sieve,
    with_k,
)
from tests.broker.kit import House, make_core, make_house
from tests.broker.logs import FakeLog
from tests.broker.preparing import XID, decide, next_life, prepare
from tests.broker.test_transactions import Tx


@pytest.mark.parametrize("how", ["commit", "prepared", "restarted"])
def test_a_commit_puts_all_that_was_sent_to_filters_in_steps_and_then_places_it_at_once(steps: Steps, how: str) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    client.call("create_queue", name="all", address="in", routing="multicast")
    tx = Tx(client)
    for _ in range(3):
        tx.send("in", *numbered(), envelopes=with_k())
    if how != "commit":
        assert prepare(tx) == 0
    if how == "restarted":
        house, client = next_life(house)
        steps.watch(house)
    sieve(client)
    steps.looks = 0
    if how == "commit":
        assert tx.commit() is None
    else:
        assert decide(client, "commit") == -1
    assert steps.looks == 0
    while house.core.pending.fair_scheduler:
        assert house.queue("all").counts.added == 0 == house.queue("some").counts.added, (
            "nothing of it is placed before"
        )
        steps.one(house)
    assert steps.looks == 3 * ROWS, "each message is put to the filter once"
    answer = client.answer(client.calls)
    assert answer is not None and not answer.code
    assert read(house, "some") == WANTED * 3 and len(read(house, "all")) == 3 * ROWS
    assert house.core.transactions.size_bytes == 0
    widest = house.core.memory.used_bytes
    (
        house.queue("all"),
        house.core.acknowledger.purge(house.queue("all")),
        house.core.acknowledger.purge(house.queue("some")),
    )
    assert 0 <= house.core.memory.used_bytes < widest


def test_a_filter_that_comes_while_a_commit_waits_is_asked_too(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    sieve(client)
    tx = Tx(client)
    tx.send("in", *numbered(), envelopes=with_k())
    assert tx.commit() is None
    steps.one(house)
    other.call("create_queue", name="late", address="in", routing="multicast", filter="k = 1 OR k = 2")
    steps.all(house)
    assert read(house, "some") == WANTED == read(house, "late")


@pytest.mark.parametrize("how", ["roll_back", "close", "drop"])
def test_a_commit_that_nobody_waits_for_any_more_stops_at_once(steps: Steps, how: str) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    tx = Tx(client)
    for _ in range(10):
        tx.send("in", *numbered(), envelopes=with_k())
    assert tx.commit() is None
    steps.one(house)
    before = steps.looks
    if how == "roll_back":
        client.call("roll_back", transaction=1)
    elif how == "close":
        client.close()
    else:
        assert client.server.session is not None
        client.server.session.stream.refuse_resume()
        client.drop()
    steps.one(house)
    assert steps.looks == before and not house.core.pending.fair_scheduler
    assert house.queue("some").counts.added == 0 and house.core.transactions.size_bytes == 0
    assert house.core.memory.used_bytes == 0


def test_a_refused_commit_of_what_is_prepared_asks_anew_when_it_is_tried_again(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    tx = Tx(client)
    tx.send("in", *numbered(), envelopes=with_k())
    assert prepare(tx) == -1
    steps.all(house)
    answer = client.answer(client.calls)
    assert answer is not None and not answer.code
    found = house.core.transactions.two_phase.prepared_by(XID, "")
    assert found is not None and not found.judged and found.work[0].run.verdicts == ()
    house.log.full = True
    assert decide(client, "commit") == -1
    steps.all(house)
    answer = client.answer(client.calls)
    house.log.full = False
    if answer is not None and answer.code:
        assert not found.judged and not found.verdict_bytes
        assert decide(client, "commit") == -1
        steps.all(house)
    assert read(house, "some") == WANTED


def test_what_is_prepared_keeps_no_verdicts_for_who_is_gone_and_ages_from_when_it_is_committed(steps: Steps) -> None:
    now = [1_000_000]
    house = steps.watch(House(make_core(FakeLog(), now_ms=lambda: now[0])))
    client, other, third = house.client(), house.client(), house.client()
    sieve(client)
    tx = Tx(client)
    for _ in range(3):
        tx.send("in", *numbered(), envelopes=with_k(x=5_000))
    assert prepare(tx) == -1
    steps.all(house)
    found = house.core.transactions.two_phase.prepared_by(XID, "")
    assert found is not None and not found.verdict_bytes
    used = house.core.memory.used_bytes
    assert decide(other, "commit") == -1
    for _ in range(5):
        steps.one(house)
    assert found.verdict_bytes
    assert decide(third, "commit") == -1
    other.close()
    steps.one(house)
    assert house.queue("some").counts.added == 0
    third.close()
    steps.all(house)
    assert not found.verdict_bytes and not any(work.run.verdicts for work in found.work)
    assert house.core.memory.used_bytes == used and house.queue("some").counts.added == 0
    now[0] += 10_000
    assert decide(client, "commit") == -1
    steps.all(house)
    now[0] += 1_000
    house.core.clock_moved()
    assert read(house, "some") == WANTED * 3


def test_a_commit_that_has_its_turns_is_not_idle_however_long_one_run_takes(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    tx = Tx(client)
    tx.send("in", *numbered(), envelopes=with_k())
    assert tx.commit() is None
    turns = 0
    while house.core.pending.fair_scheduler:
        for _ in range(200):
            house.core.transactions.tick()
        steps.one(house)
        turns += 1
    assert turns > 2
    answer = client.answer(client.calls)
    assert answer is not None and not answer.code and read(house, "some") == WANTED


@pytest.mark.parametrize("how", ["commit", "prepare", "commit_prepared"])
def test_what_filters_say_of_transactions_takes_no_more_memory_than_its_part(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    sieve(client)
    bound = 3 * verdicts_bytes()
    txs = [Tx(client), Tx(other)]
    for tx in txs:
        for _ in range(2):
            tx.send("in", *numbered(), envelopes=with_k())
    if how == "commit_prepared":
        assert prepare(txs[1]) == -1
        steps.all(house)
    house.core.memory.limit_bytes = bound * limits.TRANSACTIONS_MEMORY_SHARE
    assert txs[0].commit() is None
    steps.one(house)
    steps.looks = 0
    codes = {
        "commit": txs[1].commit,
        "prepare": lambda: prepare(txs[1]),
        "commit_prepared": lambda: decide(other, "commit"),
    }
    codes[how]()
    refused = other.answer(other.calls)
    assert refused is not None and "memory" in refused.text and steps.looks == 0
    assert refused.code == BY_NAME["retry_transaction" if how == "commit_prepared" else "address_full"].number
    steps.all(house)
    assert len(read(house, "some")) == 2 * len(WANTED)
    # What the first one took is free again.
    if how != "commit_prepared":
        assert house.core.transactions.size_bytes == 0
        house.core.memory.limit_bytes *= 1_000
        tx = Tx(other)
        for _ in range(2):
            tx.send("in", *numbered(), envelopes=with_k())
        house.core.memory.limit_bytes //= 1_000
        tx.commit()
    else:
        decide(other, "commit")
    steps.all(house)
    answer = other.answer(other.calls)
    assert answer is not None and not answer.code and house.core.transactions._expected_bytes == 0


def verdicts_bytes() -> int:
    """What it takes to know what the one filter at ``in`` says of a run."""
    return (ROWS + 7) // 8 + _verdicts.OVERHEAD_BYTES


def test_a_new_filter_for_which_there_is_no_memory_stops_a_commit_that_waits(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    sieve(client)
    tx = Tx(client)
    tx.send("in", *numbered(), envelopes=with_k())
    house.core.memory.limit_bytes = verdicts_bytes() * limits.TRANSACTIONS_MEMORY_SHARE
    assert tx.commit() is None
    steps.one(house)
    other.call("create_queue", name="late", address="in", routing="multicast", filter="k = 1 OR k = 2")
    steps.all(house)
    answer = client.answer(client.calls)
    assert answer is not None and answer.code == BY_NAME["address_full"].number
    assert not house.core.transactions.size_bytes and not house.core.transactions._expected_bytes
    assert house.core.memory.used_bytes == 0 == house.queue("some").counts.added


def test_what_is_prepared_as_no_id_is_put_to_no_filter_and_can_be_prepared_as_another(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    tx = Tx(client)
    tx.send("in", *numbered(), envelopes=with_k())
    assert prepare(tx, b"") == BY_NAME["usage"].number
    assert steps.looks == 0 and not house.core.pending.fair_scheduler and not house.core.transactions._expected_bytes
    assert prepare(tx) == -1
    steps.all(house)
    answer = client.answer(client.calls)
    assert answer is not None and not answer.code
