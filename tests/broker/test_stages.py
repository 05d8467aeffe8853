"""Stages of a node: written, prepared, committed by batch, placed, dropped and expired, over crashes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshq import limits
from meshq.broker.records import PLACED
from meshq.broker.stages._stage_life import PLACING
from meshq.notifications import BatchCommitted, Notification, StageExpired
from meshq.settings import AddressSettings
from meshq.wire import FrameType
from tests.broker.staging import Staged, Time, bodies, commit, left, next_life, refusal, said, start, two_parts


def test_a_committed_batch_comes_in_the_order_of_its_partitions_and_once() -> None:
    house, client, stages = two_parts()
    assert bodies(house.core) == [] and left(house.core) == dict.fromkeys(stages, "prepared")
    assert commit(client, 0, *stages) == {"already": False, "messages": 4}
    assert bodies(house.core) == [b"a", b"b", b"c", b"d"] and left(house.core) == {}
    assert commit(client, 0, *stages) == {"already": True, "messages": 0}
    assert bodies(house.core) == [b"a", b"b", b"c", b"d"]
    assert sorted(house.core.router.queues) == ["q"]
    house.check()


def test_what_a_commit_does_not_name_is_removed_and_later_batches_stay() -> None:
    house, client = start()
    parts = [
        Staged(client, 1),
        Staged(client, 2, attempt=1),
        Staged(client, 3, batch=1),
        Staged(client, 4, batch=0, partition=5),
    ]
    for part, body in zip(parts, (b"a", b"b", b"later", b"open"), strict=True):
        part.send("q", body)
    numbers = [part.prepare() for part in parts[:3]]
    commit(client, 0, numbers[1])
    assert bodies(house.core) == [b"b"]
    assert left(house.core) == {numbers[2]: "prepared"}
    assert parts[3].prepare() == 0 and refusal(client) == "rolled_back"
    # A zombie of a batch that is committed is removed by whoever says so again.
    late = Staged(client, 5, attempt=7)
    late.send("q", b"zombie")
    late.prepare()
    assert commit(client, 0, numbers[1])["already"]
    assert left(house.core) == {numbers[2]: "prepared"} and bodies(house.core) == [b"b"]


def test_nothing_is_placed_before_the_decision_is_durable() -> None:
    house, client, stages = two_parts()
    house.auto = False
    commit(client, 0, *stages)
    assert left(house.core) == dict.fromkeys(stages, PLACING) and bodies(house.core) == []
    house.core.second_passed()
    assert not house.core.router.queues["q"].last, "nor by the clock"
    house.rest()
    house.core.second_passed()
    assert bodies(house.core) == [b"a", b"b", b"c", b"d"]


def test_a_stage_without_all_its_messages_is_not_prepared_and_is_gone() -> None:
    house, client = start()
    part = Staged(client)
    part.send("q", b"a")
    assert part.prepare(sent=2) == 0 and refusal(client) == "rolled_back"
    assert left(house.core) == {} and part.prepare() == 0 and refusal(client) == "rolled_back"
    part = Staged(client, 2)
    part.sent = 5
    part.send("q", b"a")
    assert refusal(client) == "rolled_back" and left(house.core) == {}
    assert sorted(house.core.router.queues) == ["q"]


def test_a_session_takes_along_what_it_has_not_prepared() -> None:
    house, client = start()
    done, open_ = Staged(client, 1), Staged(client, 2, partition=1)
    done.send("q", b"a")
    open_.send("q", b"b")
    stage = done.prepare()
    client.close()
    assert left(house.core) == {stage: "prepared"}
    assert commit(house.client(), 0, stage)["messages"] == 1 and bodies(house.core) == [b"a"]


def test_a_writer_may_give_its_stage_up() -> None:
    house, client = start()
    part = Staged(client)
    part.send("q", b"a")
    part.roll_back()
    assert left(house.core) == {} and commit(client, 0) == {"already": False, "messages": 0}


def test_a_batch_is_abandoned_unless_it_is_committed() -> None:
    house, client, stages = two_parts()
    assert client.call("abandon_batch", sink="s", batch=0) == {"stages": 2}
    assert left(house.core) == {}
    commit(client, 0, *stages)
    assert refusal(client) == "not_found" and "have expired, were abandoned" in said(client)
    again = Staged(client, 3)
    again.send("q", b"again")
    commit(client, 0, again.prepare())
    assert client.call("abandon_batch", sink="s", batch=0) == {"stages": 0}
    assert bodies(house.core) == [b"again"]


def test_a_stage_expires_and_its_sink_has_an_event() -> None:
    time = Time()
    house, client, stages = two_parts(elapsed_ms=time)
    events: list[Notification] = []
    house.core.settings.event_bus.listen(events.append)
    time.now += 59_999
    house.core.second_passed()
    assert left(house.core) == dict.fromkeys(stages, "prepared")
    time.now += 1
    house.core.second_passed()
    house.rest()
    expired = [event for event in events if isinstance(event, StageExpired)]
    assert [(one.sink, one.partition, one.messages) for one in expired] == [("s", 1, 1), ("s", 0, 3)]
    assert left(house.core) == {} and not house.core.transactions.stages.watched
    commit(client, 0, *stages)
    assert refusal(client) == "not_found"


def test_a_commit_is_told_to_operators() -> None:
    house, client, stages = two_parts()
    events: list[Notification] = []
    house.core.settings.event_bus.listen(events.append)
    commit(client, 0, *stages)
    committed = [event for event in events if isinstance(event, BatchCommitted)]
    assert [(one.sink, one.batch, one.stages, one.messages) for one in committed] == [("s", 0, 2, 4)]


def test_a_stage_that_expires_when_the_disk_has_failed_leaves_the_node_to_its_end() -> None:
    time = Time()
    house, client, stages = two_parts(elapsed_ms=time)
    open_ = Staged(client, 9, partition=9)
    house.log.failed = True
    time.now += 60_000
    house.core.second_passed()
    assert left(house.core)[stages[0]] == "prepared"
    client.close()
    assert left(house.core)[open_.stage] == "dropping", "and that is its last state here"


def test_at_each_cut_of_the_journal_a_batch_is_there_whole_or_not_at_all_and_once() -> None:
    house, client, stages = two_parts()
    prepared = house.log.last
    commit(client, 0, *stages)
    house.rest()
    outcomes = set()
    for cut in range(1, house.log.last + 1):
        later, again = next_life(house, cut)
        found = bodies(later.core)
        outcomes.add(bool(found))
        assert found in ([], [b"a", b"b", b"c", b"d"]), cut
        if found:
            assert left(later.core) == {} and commit(again, 0)["already"]
        elif cut >= prepared:
            assert left(later.core) == dict.fromkeys(stages, "prepared")
            assert commit(again, 0, *stages)["messages"] == 4
            assert bodies(later.core) == [b"a", b"b", b"c", b"d"]
        else:
            commit(again, 0, *stages)
            assert refusal(again) in ("not_found", ""), cut
            assert bodies(later.core) in ([], [b"a", b"b", b"c", b"d"])
        later.check()
    assert outcomes == {True, False}


def test_a_stage_that_was_dropped_is_never_committed_by_a_later_life() -> None:
    house, client, stages = two_parts()
    prepared = house.log.last
    client.call("abandon_batch", sink="s", batch=0)
    for cut in range(prepared, house.log.last + 1):
        later, again = next_life(house, cut)
        for number in stages:
            if left(later.core).get(number) == "prepared":
                queue = later.core.router.by_number[number]
                assert queue.counts.ready == later.core.transactions.stages.ledger.stages[number].facts.messages
        assert set(left(later.core).values()) <= {"prepared"}
        assert again.call("abandon_batch", sink="s", batch=0) is not None
        assert left(later.core) == {}


def test_where_a_staged_message_goes_is_asked_when_it_is_staged() -> None:
    settings = {
        "shut": AddressSettings(auto_create_queues=False),
        "full": AddressSettings(full_policy="fail", max_size_messages=1),
    }
    house, client = start(settings=settings)
    client.put(client.produce("full"), b"x", b"y")
    for number, (address, code) in enumerate(
        (("shut", "not_found"), ("full", "address_full"), ("$meshq.x", "usage")), 1
    ):
        part = Staged(client, number)
        part.send(address, b"a")
        assert refusal(client) == code, address
        part.prepare()
        assert refusal(client) == "rolled_back" or address == "$meshq.x"
    part = Staged(client, 8, partition=1)
    part.send("q", b"a")
    assert part.prepare() and left(house.core)


def test_what_can_not_be_routed_any_more_goes_to_the_dead_letters_or_is_dropped_with_a_warning() -> None:
    for target in ("dead", None):
        settings = {"gone": AddressSettings(auto_create_queues=False, dead_letter_address=target)}
        house, client = start(settings=settings)
        client.call("create_queue", name="gone")
        part = Staged(client)
        part.send("gone", b"a")
        part.send("q", b"b")
        stage = part.prepare()
        client.call("delete_queue", name="gone")
        assert commit(client, 0, stage)["messages"] == 2
        assert bodies(house.core) == [b"b"] and left(house.core) == {}
        assert bodies(house.core, "dead") == ([b"a"] if target else [])
        assert house.core.ingress.unrouted == (0 if target else 1)
        assert [event for event, _ in house.host.warnings] == ([] if target else ["batch_unroutable"])


@pytest.mark.parametrize("policy", ["block", "fail"])
def test_a_committed_batch_waits_for_an_address_that_is_full_and_so_does_the_next_one(policy: Any) -> None:
    settings = {"q": AddressSettings(full_policy=policy, max_size_messages=2)}
    house, client = start(settings=settings)
    part = Staged(client)
    for body in (b"a", b"b", b"c", b"d"):
        part.send("q", body)
    stage = part.prepare()
    commit(client, 0, stage)
    assert bodies(house.core) == [b"a", b"b"] and left(house.core) == {stage: PLACING}
    commit(client, 1)
    assert refusal(client) == "batch_placing" and "1 stages of batch 0" in said(client)
    assert commit(client, 0, stage)["already"]
    reader = client.consume()
    client.settle(reader, (1, 2))
    house.core.second_passed()
    house.rest()
    assert client.bodies(reader) == [b"a", b"b", b"c", b"d"] and left(house.core) == {}
    assert commit(client, 1) == {"already": False, "messages": 0}


def test_an_address_that_drops_drops_of_a_batch_too() -> None:
    house, client = start(settings={"q": AddressSettings(full_policy="drop", max_size_messages=1)})
    part = Staged(client)
    part.send("q", b"a")
    part.send("q", b"b")
    commit(client, 0, part.prepare())
    assert bodies(house.core) == [b"a"] and house.core.ingress.dropped == 1 and left(house.core) == {}


def test_a_large_stage_is_placed_and_removed_in_bounded_steps() -> None:
    house, client = start()
    steps: list[None] = []
    house.host.wake = lambda: steps.append(None)
    for batch in (0, 1):
        part = Staged(client, batch + 1, batch=batch)
        for index in range(12):
            part.send("q", *(b"%d" % (index * 256 + row) for row in range(256)))
        stage = part.prepare()
        if batch:
            client.call("abandon_batch", sink="s", batch=1)
        else:
            commit(client, 0, stage)
        looks = 0
        while left(house.core):
            before = house.core.router.by_number[stage].counts.ready
            house.core.resume()
            house.rest()
            left_here = house.core.router.by_number.get(stage)
            assert before - (left_here.counts.ready if left_here is not None else 0) <= limits.STEP_MESSAGES_MAX + 255
            looks += 1
        assert looks >= 2
        assert bodies(house.core) == [b"%d" % number for number in range(12 * 256)]
    house.check()


def test_a_run_that_needs_room_on_the_disk_waits_for_it_and_the_rest_of_its_stage_behind_it() -> None:
    house, client = start()
    part = Staged(client)
    house.core.release_queue.large_bytes = house.log.large_bytes = 20_000
    part.send("q", bytes(40_000))
    part.send("q", b"small")
    assert len(house.log.asked) == 1
    client.call("prepare_stage", transaction=1, sent=2, acked=0)
    assert left(house.core) == {part.stage: "open"}
    house.log.answer()
    house.rest()
    assert left(house.core) == {part.stage: "prepared"}
    house.core.release_queue.large_bytes = house.log.large_bytes = math.inf
    commit(client, 0, part.stage)
    assert bodies(house.core) == [bytes(40_000), b"small"] and left(house.core) == {}
    # Each call has its answer: two runs, and three calls.
    assert len(client.all(FrameType.ANSWER)) == client.calls


def test_a_full_disk_refuses_what_is_new_and_lets_go_what_is_dropped() -> None:
    house, client, stages = two_parts()
    open_ = Staged(client, 7, partition=7)
    house.log.full = True
    open_.send("q", b"x")
    assert refusal(client) == "address_full"
    Staged(client, 8, partition=8)
    assert refusal(client) == "address_full"
    commit(client, 0, *stages)
    assert refusal(client) == "address_full" and left(house.core) == dict.fromkeys(stages, "prepared")
    assert client.call("abandon_batch", sink="s", batch=0) == {"stages": 2}
    assert left(house.core) == {}
    house.log.full = False
    part = Staged(client, 9)
    part.send("q", b"x")
    stage = part.prepare()
    commit(client, 0)
    part = Staged(client, 10, batch=1)
    part.send("q", b"y")
    stage = part.prepare()
    house.log.full = True
    assert commit(client, 1, stage)["messages"] == 1, "a decision takes the place of the one before it"
    assert left(house.core) == {stage: PLACING}
    house.log.full = False
    house.core.second_passed()
    house.rest()
    assert bodies(house.core) == [b"y"]


def test_a_name_that_is_not_allowed_is_refused_by_name() -> None:
    house, client = start()
    for name, text in (
        ({"sink": ""}, "sink"),
        ({"sink": "x" * 129}, "128 bytes"),
        ({"batch": -1}, "batch"),
        ({"timeout_ms": 5}, "timeout"),
    ):
        assert Staged(client, **name).stage == 0  # type: ignore[arg-type]
        assert refusal(client) == "usage" and text in said(client)
    client.call("open_stage", transaction=1, sink=7, batch=0, partition=0, attempt=0, timeout_ms=60_000)
    assert refusal(client) == "usage" and "open_stage has" in said(client)
    for operation, arguments in (
        ("commit_batch", {"sink": "", "batch": 0, "stages": b""}),
        ("commit_batch", {"sink": "s", "batch": 0, "stages": b"123"}),
        ("abandon_batch", {"sink": "s", "batch": -1}),
    ):
        client.call(operation, **arguments)
        assert refusal(client) == "usage"
    assert left(house.core) == {}


def test_a_sink_is_listed_and_forgotten_when_nothing_of_it_is_under_way() -> None:
    house, client = start(settings={"q": AddressSettings(full_policy="fail", max_size_messages=1)})
    part = Staged(client)
    part.send("q", b"a")
    part.send("q", b"b")
    stage = part.prepare()
    values = client.call("stages", after=0) or {}
    assert (values["stage0"], values["state0"], values["messages0"], values["more"]) == (stage, "prepared", 2, False)
    commit(client, 0, stage)
    assert client.call("sinks") == {"sink0": "s", "user0": "", "batch0": 0, "placing0": 1, "stages0": 0, "more": False}
    client.call("delete_sink", sink="s")
    assert refusal(client) == "usage" and "still being placed" in said(client)
    reader = client.consume()
    client.settle(reader, (1, 1))
    house.core.second_passed()
    house.rest()
    Staged(client, 2, batch=1)
    assert client.call("delete_sink", sink="s") == {} and left(house.core) == {}
    assert client.call("sinks") == {"more": False}
    client.call("delete_sink", sink="s")
    assert refusal(client) == "not_found"
    later, _ = next_life(house)
    assert later.core.transactions.stages.ledger.sinks == {}


def test_a_session_writes_so_many_stages_at_once_and_each_by_its_own_number() -> None:
    _, client = start()
    for number in range(limits.TRANSACTIONS_MAX):
        assert Staged(client, number + 1, partition=number).stage
    assert not Staged(client, 9_999, partition=9_999).stage and refusal(client) == "too_many"


def test_pieces_of_one_message_each_are_placed_once_wherever_the_journal_is_cut() -> None:
    house, client, stages = two_parts()
    # As the simulation does by its failpoint.
    placing = house.core.transactions.stages._placing
    placing._failpoint = lambda name: name == "broker.stage_piece"
    prepared = house.log.last
    commit(client, 0, *stages)
    for _ in range(10):
        house.core.resume()
        house.rest()
    assert bodies(house.core) == [b"a", b"b", b"c", b"d"] and left(house.core) == {}
    assert sum(kind == PLACED for kind in house.log.kinds()[prepared:]) == 4
    for cut in range(prepared, house.log.last + 1):
        later, again = next_life(house, cut)
        commit(again, 0, *stages)
        later.core.second_passed()
        later.rest()
        assert bodies(later.core) == [b"a", b"b", b"c", b"d"] and left(later.core) == {}, cut
        later.check()


def test_a_start_takes_a_stage_up_from_the_index_of_its_segment_too() -> None:
    house, _, stages = two_parts()
    later, again = next_life(house, excerpts=True)
    assert left(later.core) == dict.fromkeys(stages, "prepared")
    commit(again, 0, *stages)
    assert bodies(later.core) == [b"a", b"b", b"c", b"d"]
