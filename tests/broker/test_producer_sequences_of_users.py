"""Producers' ids are in every message, so anybody may know them: what one user does under one is nothing to another."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq import limits
from meshq.broker.ingress import _producer_sequences
from meshq.broker.ingress._producer_sequences import ProducerSequences
from meshq.broker.records import (
    PRODUCERS,
    USER_PRODUCERS,
    UserProducersRecord,
    decode_user_producers,
    encode_user_producers,
)
from meshq.errors import DamagedError, UsageError
from meshq.permissions import Permissions
from meshq.settings import Security
from meshq.wire import BY_NAME, FLAG_DURABLE, FLAG_RESENT, FrameType, Transact, encode_run
from tests.broker.kit import PRODUCER, FakeLog, House, RawClient, as_user, make_core

OTHER = b"another-producer"
USERS = ("owner", "thief", "third")
SECURITY = Security(
    users=dict.fromkeys(USERS, "canary"),
    roles={name: {"all"} for name in USERS},
    permissions={
        "#": Permissions(send={"all"}, consume={"all"}, create={"all"}),
    },
)


def house_of(log: FakeLog | None = None) -> House:
    house = House(make_core(log or FakeLog(), security=SECURITY))
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    return house


def restarted(house: House) -> House:
    log = house.log.after_crash(house.log.durable)
    records = house.log.recovered(house.log.durable)
    return House(make_core(log, records=records, security=SECURITY))


def bodies(house: House) -> list[bytes]:
    client = as_user(house, "third")
    return sorted(client.bodies(client.consume()))


def transact(client: RawClient, number: int, body: bytes, xid: bytes = b"") -> None:
    """Commit a message of the thief's, under the owner's id; with an xid in two phases."""
    run = encode_run([body], None)
    header = Transact(transaction=1, address="q", producer=PRODUCER, number=number, sent=0)
    client.calls += 1
    client.send(
        FrameType.TRANSACT, header, first=client.calls, count=1, flags=FLAG_DURABLE, table=run.table, body=run.body
    )
    if xid:
        client.call("prepare", transaction=1, sent=1, acked=0, xid=xid)
        client.call("commit_prepared", xid=xid)
    else:
        client.call("commit", transaction=1, sent=1, acked=0)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("way", ["send", "transaction", "two phases"])
def test_what_is_sent_under_another_users_id_confirms_nothing_of_the_owner(
    restart: bool, checkpoint: bool, way: str
) -> None:
    house = house_of()
    owner = as_user(house, "owner")
    owner.put(owner.produce(), b"1")
    thief = as_user(house, "thief")
    if way == "send":
        thief.put(thief.produce(), b"stolen", first=50)
    else:
        transact(thief, 50, b"stolen", b"x" if way == "two phases" else b"")
    if checkpoint:
        house.log.checkpoint(house.core.checkpoint())
        house.log.sync()
    if restart:
        house = restarted(house)
    owner = as_user(house, "owner")
    channel = owner.produce()
    assert owner.numbers[channel] == 1
    # Whatever it sends is stored, also marked as sent before; and what is, is not stored again.
    for number in (1, 2, 3):
        owner.put(channel, b"%d" % number, first=number, flags=FLAG_RESENT)
    assert owner.refused() == [] and owner.confirmed[-1] == (channel, 3)
    assert bodies(house) == [b"1", b"2", b"3", b"stolen"]


def test_runs_of_one_id_by_two_users_in_turns_are_told_apart_after_a_crash() -> None:
    house = house_of()
    owner, thief = as_user(house, "owner"), as_user(house, "thief")
    free = house.client()
    clients = {"owner": owner, "thief": thief, "": free}
    channels = {name: client.produce() for name, client in clients.items()}
    sent = dict.fromkeys(clients, 0)
    for name in ("owner", "thief", "thief", "", "owner", "", "thief", "owner"):
        sent[name] += 3
        clients[name].put(channels[name], b"a", b"b", b"c")
        if name == "":
            house.log.checkpoint(house.core.checkpoint())
    house.rest()
    for _ in range(3):
        house = restarted(house)
        found = {name: house.core.ingress.producers.get(PRODUCER, name) for name in clients}
        assert found == sent


def test_a_prepared_transaction_is_its_users_in_the_next_life_too() -> None:
    house = house_of()
    thief = as_user(house, "thief")
    run = encode_run([b"x"], None)
    header = Transact(transaction=1, address="q", producer=PRODUCER, number=50, sent=0)
    thief.calls += 1
    thief.send(
        FrameType.TRANSACT, header, first=thief.calls, count=1, flags=FLAG_DURABLE, table=run.table, body=run.body
    )
    thief.call("prepare", transaction=1, sent=1, acked=0, xid=b"x")
    house = restarted(house)
    as_user(house, "thief").call("commit_prepared", xid=b"x")
    assert house.queue().counts.ready == 1
    for found in (house, restarted(house)):
        assert found.core.ingress.producers.get(PRODUCER, "thief") == 50
        assert found.core.ingress.producers.get(PRODUCER, "owner") is None


@pytest.mark.parametrize("checkpoint", [False, True])
def test_marks_of_a_store_that_knew_no_users_are_honoured_for_whoever_comes(checkpoint: bool) -> None:
    """Until now no record said whose a producer is."""
    log = FakeLog()
    house = House(make_core(log))
    client = house.client()
    channel = client.produce()
    client.put(channel, b"1", b"2")
    house.log.full = True
    client.put(channel, b"3")
    house.log.full = False
    client.put(channel, b"4")
    if checkpoint:
        house.log.checkpoint(house.core.checkpoint())
        house.log.sync()
        assert house.log.kinds()[-1] == PRODUCERS
    assert USER_PRODUCERS not in house.log.kinds()
    house = restarted(house)
    thief = as_user(house, "thief")
    thief.put(thief.produce(), b"stolen", first=50)
    for _ in range(2):
        owner = as_user(house, "owner")
        channel = owner.produce()
        assert owner.numbers[channel] == (2 if house.queue().counts.ready == 4 else 5)
        for number in (1, 3, 4, 5):
            owner.put(channel, b"%d" % number, first=number, flags=FLAG_RESENT)
        assert owner.refused() == [] and owner.confirmed[-1] == (channel, 5)
        house.rest()
        house = restarted(house)
    assert bodies(house) == [b"1", b"2", b"3", b"4", b"5", b"stolen"]


def test_what_is_written_for_users_is_not_written_for_who_was_not_asked() -> None:
    house = House(make_core(FakeLog()))
    client = house.client()
    client.put(client.produce(), b"1")
    house.log.checkpoint(house.core.checkpoint())
    assert USER_PRODUCERS not in house.log.kinds()


def test_whose_the_runs_are_is_said_once() -> None:
    house = house_of()
    owner = as_user(house, "owner")
    channel = owner.produce()
    for _ in range(10):
        owner.put(channel, b"x")
    assert house.log.kinds().count(USER_PRODUCERS) == 1
    house.log.checkpoint(house.core.checkpoint())
    owner.put(channel, b"x")
    assert house.log.kinds().count(USER_PRODUCERS) == 2
    (said,) = [decode_user_producers(payload) for _, payload in house.core.checkpoint()]
    assert said == ("owner", True, False, ((PRODUCER, 11, True),), ())


# -- bounds


def test_who_claims_many_ids_has_its_own_forgotten() -> None:
    marks = ProducerSequences(capacity=20, of_user=10)
    marks.raise_to(PRODUCER, 1, 5, "owner")
    for number in range(100):
        marks.raise_to(b"%16d" % number, 1, 1, "thief")
    assert marks.get(PRODUCER, "owner") == 5 and not marks.forgets("owner")
    assert len(marks) == 11 and marks.forgets("thief")
    # All of them together are bounded, too: who has most loses first.
    for user in ("third", "fourth", "fifth"):
        for number in range(100):
            marks.raise_to(b"%16d" % number, 1, 1, user)
    assert len(marks) == 20 and marks.get(PRODUCER, "owner") == 5 and not marks.forgets("owner")


def test_what_holds_for_everybody_says_nothing_of_a_producer_that_its_user_had_forgotten() -> None:
    marks = ProducerSequences(capacity=20, of_user=2)
    # Of a version that did not tell users apart.
    marks.restore(PRODUCER, 5)
    marks.raise_to(PRODUCER, 6, 10, "owner")
    for number in range(2):
        marks.raise_to(b"%16d" % number, 1, 1, "owner")
    # Messages 6 to 10 are stored: whoever sends them again must not hear that 5 is the last.
    assert marks.get(PRODUCER, "owner") is None and marks.forgets("owner")
    assert marks.whole(PRODUCER, "owner") == 0
    assert marks.get(PRODUCER, "another") == marks.whole(PRODUCER, "another") == 5
    marks.raise_to(PRODUCER, 11, 11, "owner")
    assert marks.get(PRODUCER, "owner") == marks.whole(PRODUCER, "owner") == 11
    assert not marks.lacks(PRODUCER, 6, 10, "owner")
    again = ProducerSequences(capacity=20, of_user=2)
    again.restore(PRODUCER, 5)
    again.restore_forgotten("owner")
    again.restore(PRODUCER, 5, "owner")
    assert again.get(PRODUCER, "owner") == 5


def test_gaps_that_one_user_makes_are_its_own_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_producer_sequences, "GAPS_MAX", 10)
    marks = ProducerSequences()
    marks.raise_to(PRODUCER, 2, 2, "owner")
    for number in range(100):
        marks.raise_to(b"%16d" % number, 2, 2, "thief")
    assert marks.lacks(PRODUCER, 1, 1, "owner")


def test_a_producer_with_a_channel_is_not_forgotten() -> None:
    marks = ProducerSequences(capacity=10, of_user=5)
    for _ in range(2):
        marks.open(PRODUCER, "owner")
    marks.raise_to(PRODUCER, 1, 5, "owner")
    for number in range(100):
        marks.raise_to(b"%16d" % number, 1, 1, "owner")
    assert marks.get(PRODUCER, "owner") == 5
    marks.close(PRODUCER, "owner")
    for number in range(100):
        marks.raise_to(b"%16d" % number, 1, 1, "owner")
    # It has one more.
    assert marks.get(PRODUCER, "owner") == 5 and len(marks) == 5
    marks.close(PRODUCER, "owner")
    for number in range(100):
        marks.raise_to(b"%16d" % number, 1, 1, "owner")
    assert marks.get(PRODUCER, "owner") is None and len(marks) == 5


def test_a_channel_through_which_nothing_came_leaves_nothing() -> None:
    house = house_of()
    thief = as_user(house, "thief")
    for number in range(20):
        thief.produce(producer=b"%16d" % number)
    assert len(house.core.ingress.producers) == 20
    assert house.core.checkpoint() == []
    thief.leave(1)
    assert len(house.core.ingress.producers) == 19
    session = next(iter(house.sessions.by_number.values()))
    session.end()
    assert len(house.core.ingress.producers) == 0


def test_one_user_has_so_many_producers_open_and_others_still_have_theirs() -> None:
    marks = ProducerSequences(capacity=8, of_user=6)

    def take(user: str) -> int:
        for number in range(100):
            try:
                marks.check_open(b"%16d" % number, user)
            except UsageError as error:
                assert error.refusal == "too_many"
                return number
            marks.open(b"%16d" % number, user)
        raise AssertionError("no bound")

    assert take("thief") == 6
    assert take("third") == 4
    # Who comes last has a share, too; what is open already may be opened again.
    assert take("owner") == 2
    marks.check_open(b"%16d" % 0, "thief")
    assert limits.PRODUCERS_OF_USER_MAX < limits.PRODUCERS_MAX


def test_the_refusal_reaches_who_asks() -> None:
    house = house_of()
    house.core.ingress.producers._of_user = 3
    thief, owner = as_user(house, "thief"), as_user(house, "owner")
    for number in range(3):
        thief.produce(producer=b"%16d" % number)
    thief.produce(producer=b"%16d" % 3)
    answer = thief.answer(thief.calls)
    assert answer is not None
    assert answer.code == BY_NAME["too_many"].number and "at most 3 producers" in answer.text
    assert owner.put(owner.produce(), b"1") == 1 and not owner.refused()


# -- the record

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "producers.md"
IDS = st.binary(min_size=16, max_size=16)
NUMBERS = st.integers(0, 2**63 - 1)


def test_the_examples_of_the_page_are_what_is_written_and_read() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    found = [bytes.fromhex("".join(line.removeprefix("16  ") for line in block.splitlines())) for block in blocks]
    checkpoint = UserProducersRecord("app", True, False, ((PRODUCER, 7, True),), ((PRODUCER, 4, 5),))
    turn = UserProducersRecord("app", False, False, ((PRODUCER, 0, True),), ())
    assert found == [encode_user_producers(checkpoint), encode_user_producers(turn)]
    assert [decode_user_producers(payload) for payload in found] == [checkpoint, turn]


@pytest.mark.slow
@given(
    st.builds(
        UserProducersRecord,
        st.text(max_size=20),
        st.booleans(),
        st.booleans(),
        st.lists(st.tuples(IDS, NUMBERS, st.booleans()), max_size=5).map(tuple),
        st.lists(st.tuples(IDS, NUMBERS, NUMBERS), max_size=5).map(tuple),
    )
)
def test_what_is_written_is_read_and_nothing_else_is(record: UserProducersRecord) -> None:
    payload = encode_user_producers(record)
    assert decode_user_producers(payload) == record
    for wrong in (payload + b"x" * 32, payload[:-1], payload[:11], payload[:2] + b"\xff\xff" + payload[4:]):
        with pytest.raises(DamagedError):
            decode_user_producers(wrong)


def test_a_user_with_many_open_producers_has_others_forgotten_at_no_more_cost() -> None:
    def work(open_count: int) -> int:
        marks = ProducerSequences(capacity=4_000, of_user=2_000)
        for number in range(open_count):
            marks.open(b"open%12d" % number, "thief")
        for number in range(2_000 - open_count):
            marks.raise_to(b"idle%12d" % number, 1, 1, "thief")
        calls = [0]

        def count(*_: object) -> None:
            calls[0] += 1

        sys.setprofile(count)
        try:
            for number in range(100):
                producer = b"more%12d" % number
                marks.open(producer, "thief")
                marks.raise_to(producer, 1, 1, "thief")
                marks.close(producer, "thief")
        finally:
            sys.setprofile(None)
        assert len(marks) == 2_000
        return calls[0]

    assert work(1_999) < 2 * work(1)
