"""Two-phase transactions at the broker, in raw frames: prepared means kept, and decided means once."""

from __future__ import annotations

import attrs
import pytest

from meshq import limits
from meshq.settings import AddressSettings, Security
from meshq.wire import BY_NAME, Answer, Envelope
from tests.broker.kit import House, RawClient, make_core, make_house, with_ids
from tests.broker.logs import FakeLog
from tests.broker.preparing import XID, content, decide, next_life, prepare, prepared_house, recovered
from tests.broker.test_transactions import Tx, clean, house_with

ROLLED_BACK, DUPLICATE, USAGE, FULL, RETRY, UNDECIDED, FORBIDDEN, TOO_MANY = (
    BY_NAME[name].number
    for name in (
        "rolled_back",
        "duplicate",
        "usage",
        "address_full",
        "retry_transaction",
        "undecided",
        "forbidden",
        "too_many",
    )
)


def test_what_is_prepared_is_seen_by_nobody_and_belongs_to_no_session() -> None:
    house, client, channel, _ = prepared_house()
    assert "out" not in house.core.router.queues or not house.queue("out").counts.added
    client.close()
    house.check()
    assert house.queue("in").counts.acked_in_transaction == 2
    other = house.client()
    assert recovered(other) == [XID]
    channel = other.consume("in")
    assert other.bodies(channel) == [b"2", b"4"]
    assert decide(other, "commit") == 0
    clean(house)
    assert house.queue("in").counts.acknowledged == 2
    out = other.consume("out")
    assert other.bodies(out) == [b"a", b"b"]
    assert recovered(other) == []


def test_the_answer_to_a_prepare_waits_for_the_disk() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("out", b"a")
    tx.ack(channel, 1, 1)
    house.auto = False
    assert prepare(tx) == -1
    house.rest()
    answer = client.answer(client.calls)
    assert answer == Answer()


def test_a_rollback_gives_back_what_was_held_counted_as_delivered() -> None:
    house, client, channel, _ = prepared_house()
    assert decide(client, "rollback") == 0
    clean(house)
    assert not content(house.core).get("out")
    again = [(got.body, got.delivery_count) for got in client.got(channel)][4:]
    assert again == [(b"1", 2), (b"3", 2)]


def test_a_prepared_transaction_is_never_too_old() -> None:
    house, _, _, _ = prepared_house()
    for _ in range(1_000):
        house.core.transactions.tick()
    assert house.queue("in").counts.acked_in_transaction == 2
    assert len(house.core.transactions) == 0


@pytest.mark.parametrize("what", ["commit", "rollback"])
@pytest.mark.parametrize("lives", [0, 1, 2])
def test_a_decision_has_its_effect_however_many_lives_later(what: str, lives: int) -> None:
    house, client, channel, _ = prepared_house()
    client.leave(channel)
    for _ in range(lives):
        before = house.queue("in").last
        house, client = next_life(house)
        house.check()
        queue = house.queue("in")
        assert (queue.counts.unacked, queue.counts.acked_in_transaction, queue.counts.ready) == (2, 2, 2)
        assert queue.last >= before
        assert recovered(client) == [XID]
        channel = client.consume("in")
        assert client.bodies(channel) == [b"2", b"4"]
        client.leave(channel)
        assert house.core.transactions.size_bytes > 0
    assert decide(client, what) == 0
    clean(house)
    # And it stands, in this life and the next one.
    for _ in range(2):
        channel = client.consume("in")
        bodies = client.bodies(channel)
        assert sorted(bodies) == ([b"2", b"4"] if what == "commit" else [b"1", b"2", b"3", b"4"])
        assert content(house.core).get("out", 0) == (2 if what == "commit" else 0)
        assert recovered(client) == []
        other = "rollback" if what == "commit" else "commit"
        assert decide(client, what) == 0
        assert decide(client, other) == (USAGE if what == "commit" else ROLLED_BACK)
        house, client = next_life(house)
        clean(house)


def test_after_a_restart_only_what_is_durable_is_there() -> None:
    house, client, channel = house_with(b"1")
    client.put(client.produce("in", b"another-producer"), b"fleeting", durable=False)
    tx = Tx(client)
    tx.send("out", b"kept")
    tx.send("out", b"lost", durable=False)
    tx.ack(channel, 1, 2)
    assert prepare(tx) == 0
    house, client = next_life(house)
    assert house.queue("in").counts.acked_in_transaction == 1
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("out")) == [b"kept"]
    clean(house)


def test_while_the_node_lives_all_of_it_is_there() -> None:
    house, client, _ = house_with()
    tx = Tx(client)
    tx.send("out", b"kept")
    tx.send("out", b"fleeting", durable=False)
    assert prepare(tx) == 0
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("out")) == [b"kept", b"fleeting"]
    clean(house)


def test_a_transaction_without_work_can_be_prepared_too() -> None:
    house, client, _ = house_with()
    assert prepare(Tx(client)) == 0
    house, client = next_life(house)
    assert recovered(client) == [XID]
    assert decide(client, "commit") == 0
    clean(house)


def test_the_records_of_a_prepare_and_of_a_decision_stand_together_at_every_cut() -> None:
    """Cut the journal at each place that a crash may leave: it is prepared whole or not, and so it is decided."""
    for what in ("commit", "rollback"):
        log = FakeLog()
        house = make_house(log)
        client = house.client()
        client.put(client.produce("in"), b"1", b"2", b"3", envelopes=with_ids("i1", "i2", "i3"))
        client.put(client.produce("in", b"another-producer"), b"4")
        channel = client.consume("in")
        house.rest()
        house.auto = False
        tx = Tx(client)
        tx.send("out", b"a", b"b", envelopes=with_ids("x", "y"))
        tx.send("news", b"c")
        tx.ack(channel, 1, 3)
        tx.ack(channel, 4, 4)
        assert prepare(tx) == -1
        prepared_at = log.last
        decide(client, what)
        seen = []
        for cut in log.cuts():
            core = make_core(records=log.recovered(cut))
            for queue in core.router.queues.values():
                queue.check()
            known = list(core.transactions.two_phase)
            decision = core.transactions.two_phase.decisions.get(XID)
            there = {name: count for name, count in content(core).items() if count}
            held = core.router.queues["in"].counts.acked_in_transaction
            if cut < prepared_at:
                assert (known, decision, there, held) == ([], None, {"in": 4}, 0)
            elif decision is None:
                assert [one.xid for one in known] == [XID]
                assert (there, held) == ({"in": 4}, 4)
                assert (known[0].transaction.sent, known[0].transaction.acked) == (3, 4)
            else:
                assert (known, held) == ([], 0)
                assert there == ({"out": 2, "news": 1} if what == "commit" else {"in": 4})
            seen.append(decision is not None)
        assert not seen[0]
        assert seen[-1]


def test_recovery_repeated_and_interrupted_finds_the_same() -> None:
    house, _, _, _ = prepared_house()
    first, _ = next_life(house)
    second, client = next_life(first)
    ages = [[attrs.evolve(record) for record in one.log.living()] for one in (first, second)]
    kinds = [sorted(record.kind for record in living) for living in ages]
    assert kinds[0] == kinds[1]
    assert decide(client, "commit") == 0
    clean(second)


def test_nothing_of_a_decided_transaction_stays_in_the_journal_but_the_decision() -> None:
    house, client, _, _ = prepared_house()
    assert decide(client, "rollback") == 0
    kinds = [record.kind for record in house.log.living()]
    assert kinds.count(15) == 1
    assert not {13, 14} & {*kinds}


def test_an_xid_is_used_once_at_a_time_and_again_after_its_decision() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("out", b"a")
    assert prepare(tx) == 0
    again = Tx(client, number=2)
    again.ack(channel, 1, 1)
    assert prepare(again) == USAGE
    # The second one is rolled back, the first one is as it was.
    assert [got.delivery_count for got in client.got(channel)] == [1, 2]
    assert decide(client, "rollback") == 0
    third = Tx(client, number=3)
    third.send("out", b"c")
    assert prepare(third) == 0
    house, client = next_life(house)
    assert recovered(client) == [XID]
    assert len(house.core.transactions.two_phase.decisions) == 0
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("out")) == [b"c"]
    clean(house)


@pytest.mark.parametrize("xid", [b"", b"x" * 129])
def test_an_xid_has_a_bound(xid: bytes) -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    assert prepare(tx, xid) == USAGE
    assert decide(client, "commit", xid) == USAGE
    assert decide(client, "rollback", xid) == USAGE
    tx.roll_back()
    clean(house)


def test_prepared_ones_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREPARED_MAX", 1)
    _, client, _, _ = prepared_house()
    assert prepare(Tx(client, number=2), b"another") == TOO_MANY
    assert decide(client, "commit") == 0
    assert prepare(Tx(client, number=3), b"another") == 0


def test_recover_has_pages() -> None:
    house, client, _ = house_with()
    names = sorted(b"%03d" % number + b"x" * 125 for number in range(70))
    for number, xid in enumerate(names):
        assert prepare(Tx(client, number=number + 1), xid) == 0
    found: list[bytes] = []
    pages = 0
    while True:
        pages += 1
        values = client.call("recover", after=found[-1] if found else b"")
        assert values is not None
        more = values.pop("more")
        found += values.values()
        if not more:
            break
    assert pages > 2
    assert found == names
    assert len(house.core.transactions.two_phase) == 70


def test_what_can_be_refused_is_refused_before_anything_is_prepared() -> None:
    house, client, channel = house_with(b"1")
    client.put(client.produce("out"), b"x", envelopes=with_ids("x"))
    tx = Tx(client)
    tx.send("out", b"a", envelopes=with_ids("x"))
    tx.ack(channel, 1, 1)
    assert prepare(tx) == DUPLICATE
    clean(house)
    tx = Tx(client, number=2)
    tx.send("out", b"a")
    house.log.full = True
    assert prepare(tx) == FULL
    house.log.full = False
    clean(house)
    tx = Tx(client, number=3, sent=1)
    assert prepare(tx) == ROLLED_BACK
    assert recovered(client) == []


def test_a_commit_without_room_leaves_it_prepared() -> None:
    house, client, _, _ = prepared_house()
    house.log.full = True
    assert decide(client, "commit") == RETRY
    assert "no room" in (client.answer(client.calls) or Answer()).text
    assert house.queue("in").counts.acked_in_transaction == 2
    house.log.full = False
    assert decide(client, "commit") == 0
    clean(house)


def test_a_full_disk_takes_a_rollback() -> None:
    house, client, _, _ = prepared_house()
    house.log.full = True
    assert decide(client, "rollback") == 0
    clean(house)


def test_a_full_address_leaves_it_prepared() -> None:
    settings = {"out": AddressSettings(full_policy="fail", max_size_messages=1)}
    house, client, _, _ = prepared_house(settings=settings)
    client.put(client.produce("out"), b"full")
    assert decide(client, "commit") == RETRY
    channel = client.consume("out")
    client.settle(channel, (1, 1))
    assert decide(client, "commit") == 0
    assert client.bodies(channel) == [b"full", b"a", b"b"]
    clean(house)


def test_a_queue_that_went_with_its_life_is_made_anew_if_it_may_be() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="out", durable=False)
    tx = Tx(client)
    tx.send("out", b"a", b"b")
    assert prepare(tx) == 0
    house, client = next_life(house)
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("out")) == [b"a", b"b"]
    clean(house)


def test_a_queue_that_may_not_be_made_is_waited_for() -> None:
    settings = {"gone": AddressSettings(auto_create_queues=False)}
    house = make_house(FakeLog(), settings=settings)
    client = house.client()
    client.call("create_queue", name="gone", durable=False)
    tx = Tx(client)
    tx.send("gone::gone", b"a")
    assert prepare(tx) == 0
    house, client = next_life(house, settings=settings)
    assert decide(client, "commit") == RETRY
    assert recovered(client) == [XID]
    client.call("create_queue", name="gone")
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("gone")) == [b"a"]
    clean(house)


def test_an_id_that_became_known_meanwhile_is_left_out_and_the_rest_is_stored() -> None:
    house, client, _, _ = prepared_house()
    client.put(client.produce("out"), b"first", envelopes=with_ids("x"))
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("out")) == [b"first", b"a"]
    clean(house)


def test_a_queue_of_which_something_is_prepared_is_not_deleted() -> None:
    house, client, _, _ = prepared_house()
    client.call("delete_queue", name="in")
    answer = client.answer(client.calls)
    assert answer is not None
    assert answer.code == UNDECIDED
    assert "order-7" in answer.text
    # Whoever consumes from it goes on.
    assert client.call("purge_queue", name="in") == {"removed": 0}
    client.leave(1 + 1)
    assert client.call("purge_queue", name="in") == {"removed": 2}
    assert house.queue("in").counts.acked_in_transaction == 2
    assert decide(client, "rollback") == 0
    assert client.call("delete_queue", name="in") == {"removed": 2}
    clean(house)


def test_only_its_user_sees_and_decides_it_and_a_program_everything() -> None:
    security = Security(users={"app": "x", "other": "y"})
    house = make_house(FakeLog(), security=security)

    def user(name: str) -> RawClient:
        client = house.client()
        assert client.attached is not None
        house.sessions.by_number[client.attached.session].principal.owner = ("client", name)
        return client

    app, other, inside = user("app"), user("other"), house.client()
    tx = Tx(app)
    tx.send("out", b"a")
    assert prepare(tx) == 0
    assert (recovered(app), recovered(other), recovered(inside)) == ([XID], [], [XID])
    for _ in range(2):
        # Prepared or decided: nobody takes another one's for committed, or uses its xid.
        assert decide(other, "commit") == FORBIDDEN
        assert decide(other, "rollback") == FORBIDDEN
        assert prepare(Tx(other)) == FORBIDDEN
        assert decide(inside, "commit") == 0
    assert decide(app, "commit") == 0
    house, _ = next_life(house, security=security)
    assert decide(user("other"), "commit") == FORBIDDEN
    assert decide(user("app"), "commit") == 0


def test_an_operator_sees_what_is_prepared() -> None:
    now = 1_000_000
    house, client, _, _ = prepared_house(now_ms=lambda: now)
    now += 2_500
    row = {"xid0": XID.hex(), "user0": "", "age0": 2.5, "sent0": 2, "acked0": 2}
    assert client.call("prepared") == {**row, "more": False}
    house, client = next_life(house, now_ms=lambda: now + 1_000)
    assert client.call("prepared") == {**row, "age0": 3.5, "more": False}


def test_the_memory_of_what_is_prepared_counts_also_after_a_restart() -> None:
    house, client, _ = house_with(memory=400_000)
    tx = Tx(client)
    tx.send("out", bytes(60_000))
    assert prepare(tx) == 0
    for _ in range(2):
        used = house.core.memory.used_bytes
        assert used > 60_000
        answer = Tx(client, number=9).send("out", bytes(60_000))
        assert answer is not None
        assert answer.code == FULL
        house, client = next_life(house, memory=400_000)
    assert decide(client, "rollback") == 0
    assert house.core.memory.used_bytes == house.core.transactions.size_bytes == 0


def test_a_node_without_a_journal_prepares_for_as_long_as_it_lives() -> None:
    house = House(make_core())
    client = house.client()
    client.put(client.produce("in"), b"1")
    channel = client.consume("in")
    tx = Tx(client)
    tx.send("out", b"a")
    tx.ack(channel, 1, 1)
    assert prepare(tx) == 0
    assert recovered(client) == [XID]
    assert decide(client, "rollback") == 0
    assert decide(client, "commit") == ROLLED_BACK
    assert [got.delivery_count for got in client.got(channel)] == [1, 2]
    clean(house)


def test_a_large_one_is_prepared_and_committed_in_a_batch_each() -> None:
    house, client, channel = house_with(*[b"%d" % n for n in range(50)])
    client.call("create_address", name="all", routing="multicast")
    for number in range(20):
        client.call("create_queue", name=f"all{number}", address="all", routing="multicast")
    tx = Tx(client)
    tx.send("all", *[b"x"] * 256)
    tx.send("out", *[b"x"] * 10, envelopes=[Envelope((n % 10) << 8, b"", b"", b"") for n in range(10)])
    for _ in range(30):
        tx.send("out", b"y")
    for tag in range(1, 50, 2):
        tx.ack(channel, tag, tag)
    assert prepare(tx) == 0
    assert len(house.log.groups) == 1
    house, client = next_life(house)
    assert decide(client, "commit") == 0
    assert len(house.log.groups) == 1
    clean(house)


def test_the_run_of_a_prepared_transaction_is_not_copied() -> None:
    house, client, _ = house_with()
    tx = Tx(client)
    tx.send("out", bytes(10_000))
    (open_one,) = house.core.transactions._open
    body = open_one.work[0].run.content.body
    assert prepare(tx) == 0
    (prepared,) = house.core.transactions.two_phase
    assert prepared.transaction.work[0].run.content.body is body


@pytest.mark.parametrize("first", ["commit", "rollback"])
def test_what_somebody_else_has_decided_is_told_when_it_is_durable(first: str) -> None:
    """Whoever is told, and looks again after a crash, is told the same."""
    house, client, _, _ = prepared_house()
    other = house.client()
    house.auto = False
    assert decide(client, first) == -1
    second, code = ("rollback", USAGE) if first == "commit" else ("commit", ROLLED_BACK)
    assert decide(other, second) == -1
    house.rest()
    answer = other.answer(other.calls)
    assert answer is not None and answer.code == code
