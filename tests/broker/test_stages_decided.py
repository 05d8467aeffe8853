"""Decisions about batches of stages that come close together, late, or between two lives of a node."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker.stages._ledger_machine import LedgerMachine, StageMachine
from meshq.broker.stages._stage_life import PLACING
from meshq.wire import BY_NAME, Answer, FrameType, header_of
from tests.broker.kit import make_house
from tests.broker.staging import Staged, bodies, commit, left, next_life, refusal, start
from tests.broker.test_access import client_of, house_with


def test_empty_batches_are_committed_before_the_sync_of_the_one_before() -> None:
    house, client = start()
    part = Staged(client, 1, batch=2)
    part.send("q", b"a")
    stage = part.prepare()
    house.auto = False
    for batch in (0, 1):
        commit(client, batch)
    between = house.log.last
    commit(client, 2, stage)
    house.log.sync(between)
    assert left(house.core) == {stage: PLACING} and bodies(house.core) == [], "batch 2 is not durable"
    house.rest()
    assert bodies(house.core) == [b"a"] and left(house.core) == {}
    # Nor does an entry that is forgotten and written anew meanwhile confuse the node.
    for _ in range(2):
        client.call("delete_sink", sink="s")
        commit(client, 0)
    house.rest()
    assert house.core.transactions.stages.ledger.sinks["s"][0].batch == 0


def test_half_of_a_stage_is_never_committed_when_its_sink_is_deleted_while_a_start_removes_it() -> None:
    house, client = start()
    commit(client, 0)
    late = Staged(client, 1, attempt=7)
    for _ in range(12):
        late.send("q", *[b"late"] * 256)
    stage = late.prepare()
    log = house.log.after_crash()
    later = make_house(log, records=log.recovered())
    # It is of a batch that was committed without it: the first step, and no more, has removed a part of it.
    later.host.wake = lambda: None
    later.core.second_passed()
    assert 0 < later.core.router.by_number[stage].counts.ready < 12 * 256
    assert later.client().call("delete_sink", sink="s") == {}
    for cut in range(house.log.last, later.log.last + 1):
        last, again = next_life(later, cut)
        commit(again, 0, stage)
        assert bodies(last.core) == [] and left(last.core) == {}, cut


def test_to_drop_a_stage_is_no_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    house, client = start()
    for number in range(1, 9):
        assert Staged(client, number, partition=number).prepare()
    looks: list[LedgerMachine] = []

    def moving(ledger: LedgerMachine) -> list[StageMachine]:
        looks.append(ledger)
        return []

    monkeypatch.setattr(LedgerMachine, "moving", property(moving))
    assert client.call("abandon_batch", sink="s", batch=0) == {"stages": 8}
    assert left(house.core) == {} and looks == []


def test_who_may_send_nowhere_opens_no_stage_and_has_no_sink() -> None:
    house = house_with("q")
    reader = client_of(house, "reader")
    assert Staged(reader).stage == 0 and refusal(reader) == "forbidden"
    commit(reader, 0)
    assert refusal(reader) == "forbidden"
    ledger = house.core.transactions.stages.ledger
    assert (ledger.stages, ledger.sinks) == ({}, {})
    writer = client_of(house, "writer")
    part = Staged(writer)
    part.send("q", b"a")
    commit(writer, 0, part.prepare())
    assert bodies(house.core) == [b"a"] and ledger.sinks["s"][0].user == "writer"


def test_where_nothing_is_paged_a_stage_is_refused_when_memory_is_scarce() -> None:
    house, client = start(memory=limits.MIB)
    part = Staged(client)
    for _ in range(20):
        part.send("q", bytes(limits.MIB // 16), durable=False)
    assert refusal(client) == "rolled_back"
    memory = house.core.memory
    assert memory.used_bytes < limits.MIB and left(house.core) == {}
    codes = [header_of(frame, Answer).code for frame in client.all(FrameType.ANSWER)]
    assert codes.count(BY_NAME["address_full"].number) == 1 and not part.prepare()
    # What the journal has can be paged.
    part = Staged(client, 2)
    part.send("q", b"a")
    assert part.prepare()


def test_runs_that_wait_for_memory_go_on_in_their_order_and_before_their_stage_is_prepared() -> None:
    house, client = start(memory=limits.MIB)
    house.core.pager.spills = True
    client.put(client.produce("other"), bytes(limits.MIB), durable=False)
    assert house.core.memory.used_bytes >= limits.MIB
    parts = [Staged(client, number, partition=number) for number in range(1, 4)]
    for part in parts:
        part.send("q", b"%d" % part.number, durable=False)
        part.send("q", b"%d" % (10 * part.number), durable=False)
        client.call("prepare_stage", transaction=part.number, sent=2, acked=0)
    assert set(left(house.core).values()) == {"open"}
    parts[1].roll_back()
    client.call("purge_queue", name="other")
    house.rest()
    stages = [parts[0].stage, parts[2].stage]
    assert left(house.core) == dict.fromkeys(stages, "prepared")
    line = house.core.transactions.stages.memory_line
    assert line.granted_bytes == line.sent_bytes and not house.core.memory.waiting
    commit(client, 0, *stages)
    assert bodies(house.core) == [b"1", b"10", b"3", b"30"]


def test_a_stage_is_nothing_that_was_kept_for_a_node_of_its_number() -> None:
    house, client = start()
    part = Staged(client)
    part.send("q", b"a")
    stage = part.prepare()
    client.call("give_back", node_id=str(stage), force=True)
    house.rest()
    assert refusal(client) == "not_found" and bodies(house.core) == []
    assert left(house.core) == {stage: "prepared"} and house.core.router.by_number[stage].counts.ready == 1


def test_runs_that_wait_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_WAITING_BYTES_MIN", limits.MIB)
    house, client = start(memory=limits.MIB)
    house.core.pager.spills = True
    client.put(client.produce("other"), bytes(limits.MIB), durable=False)
    line = house.core.transactions.stages.memory_line
    part = Staged(client)
    for _ in range(4):
        part.send("q", bytes(limits.MIB // 4), durable=False)
    assert refusal(client) == "address_full" and 0 < line.waiting_bytes <= limits.MIB
    client.call("purge_queue", name="other")
    house.rest()
    assert line.waiting_bytes == 0 and left(house.core) == {}
