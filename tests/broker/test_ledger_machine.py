"""The batch ledger, without a broker: which stages a commit names, which do not count, and what is refused."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from meshq import limits
from meshq.broker.stages._ledger_machine import LedgerMachine, SinkFacts, StageFacts, StageMachine
from meshq.errors import (
    BusyError,
    InvariantError,
    NotFoundError,
    SecurityError,
    SettingsError,
    TransactionRolledBackError,
    UsageError,
)
from meshq.ids import check_sink

FACTS = StageFacts(number=1, sink="s", batch=0, partition=0, attempt=0, timeout_ms=60_000)


def ledger(*stages: dict[str, Any]) -> LedgerMachine:
    """A ledger with stages, numbered from 1; prepared unless they say otherwise."""
    made = LedgerMachine()
    for number, changed in enumerate(stages, 1):
        facts = attrs.evolve(FACTS, number=number, **{"prepared": True, **changed})
        made.stages[number] = StageMachine(facts, 0)
    return made


def commit(made: LedgerMachine, batch: int, *numbers: int, user: str = "", sink: str = "s") -> bool:
    """Commit a batch; return whether it was committed before."""
    verdict = made.verdict(sink, batch, numbers, user)
    if not verdict.already:
        order = tuple(stage.facts.number for stage in verdict.winners)
        made.decided(SinkFacts(sink=sink, user=user, batch=batch, placing=order), 9, verdict)
    return verdict.already


def placed(made: LedgerMachine) -> None:
    """All that is committed has reached its addresses."""
    for stage in made.moving:
        stage.life.on("placed")
        del made.stages[stage.facts.number]


def test_a_batch_is_committed_once_and_so_is_every_one_before_it() -> None:
    made = ledger({"partition": 1}, {"partition": 0}, {"partition": 0, "attempt": 1})
    verdict = made.verdict("s", 0, [1, 2], "")
    assert [stage.facts.number for stage in verdict.winners] == [2, 1], "in the order of the partitions"
    assert [stage.facts.number for stage in verdict.losers] == [3]
    assert not commit(made, 0, 1, 2)
    assert [stage.facts.number for stage in made.placing("s")] == [2, 1]
    assert commit(made, 0, 1, 2) and commit(made, 0) and commit(made, 0, 77), "whatever is named the second time"
    placed(made)
    assert not commit(made, 5), "an empty batch is recorded, too, and some may be left out"
    assert commit(made, 3) and commit(made, 5)


def test_a_batch_waits_for_the_one_before_it_to_be_placed() -> None:
    made = ledger({}, {"batch": 1})
    commit(made, 0, 1)
    with pytest.raises(BusyError, match="1 stages of batch 0 of the sink 's'") as caught:
        commit(made, 1, 2)
    assert caught.value.refusal == "batch_placing"
    placed(made)
    assert not commit(made, 1, 2)


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ([1, 9], NotFoundError, "no stages 9 for batch 0"),
        ([11, 12, 13, 14, 15, 16, 17], NotFoundError, "11, 12, 13, 14, 15 and 2 more"),
        ([2], UsageError, "the stage 2 is of batch 1 of the sink 's'"),
        ([3], UsageError, "the stage 3 is not prepared: it is open"),
        ([4], UsageError, "the stage 4 is of another sink than 's'$"),
        ([1, 5], UsageError, "the stages 1 and 5 are attempts 0 and 1 of one partition 0"),
        ([1, 1], UsageError, "one partition 0"),
        ([6], NotFoundError, "no stages 6"),
        (range(limits.BATCH_STAGES_MAX + 1), UsageError, "at most 900 stages, not 901"),
    ],
)
def test_a_commit_names_stages_that_are_there_prepared_and_one_of_a_partition(
    numbers: list[int], error: type[Exception], text: str
) -> None:
    made = ledger({}, {"batch": 1}, {"prepared": False}, {"sink": "other"}, {"attempt": 1}, {"dropped": True})
    with pytest.raises(error, match=text):
        commit(made, 0, *numbers)
    assert made.sinks == {} and not made.placing("s")


@pytest.mark.parametrize("sink", ["", "é" * 65, "a\nb", 7, None, b"s"])
def test_a_sink_has_a_name_that_can_be_printed_and_kept(sink: Any) -> None:
    with pytest.raises(SettingsError, match="printable text of 1 to 128 bytes"):
        check_sink(sink)
    assert check_sink("é" * 64)


@pytest.mark.parametrize(("name", "value"), [("batch", -1), ("partition", 1 << 63), ("attempt", True)])
def test_the_numbers_of_a_stage_are_whole_and_from_0(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        LedgerMachine().check_open(attrs.evolve(FACTS, **{name: value}))


@pytest.mark.parametrize("timeout_ms", [999, 7 * 86_400_000 + 1])
def test_a_stage_waits_from_a_second_to_a_week(timeout_ms: int) -> None:
    with pytest.raises(SettingsError, match=r"timeout.*seconds from 1 to 604800"):
        LedgerMachine().check_open(attrs.evolve(FACTS, timeout_ms=timeout_ms))


def test_stages_and_sinks_of_a_node_have_a_number_each_that_is_named() -> None:
    made = ledger(*({"partition": index} for index in range(limits.STAGES_MAX)))
    with pytest.raises(UsageError, match="2048 stages"):
        made.check_open(attrs.evolve(FACTS, batch=1))
    made = ledger()
    for index in range(limits.SINKS_MAX):
        made.sinks[f"s{index}"] = SinkFacts(sink=f"s{index}", batch=0), 1
    with pytest.raises(UsageError, match="10000 sinks: delete some"):
        made.check_open(FACTS)
    with pytest.raises(UsageError, match="10000 sinks"):
        made.verdict("s", 0, [], "")
    made.check_open(attrs.evolve(FACTS, sink="s5"))


def test_two_stages_of_one_attempt_are_refused_until_the_first_is_decided() -> None:
    made = ledger({})
    with pytest.raises(UsageError, match="attempt 0 of partition 0 in batch 0: take another attempt"):
        made.check_open(FACTS)
    made.stages[1].life.on("drop")
    made.check_open(FACTS)


def test_a_sink_is_its_users() -> None:
    made = ledger({"user": "ann"})
    for call in (
        lambda: made.check_open(attrs.evolve(FACTS, attempt=1, user="bob")),
        lambda: made.verdict("s", 0, [1], "bob"),
        lambda: made.check_abandon("s", 0, "bob"),
    ):
        with pytest.raises(SecurityError, match="another user's"):
            call()
    assert not commit(made, 0, 1, user="ann")
    placed(made)
    with pytest.raises(SecurityError):
        commit(made, 1, user="bob")
    assert not commit(made, 1), "a client inside the program may do everything"


def test_a_stage_expires_when_nobody_has_used_it_for_its_time_unless_it_is_decided() -> None:
    made = ledger({"prepared": False}, {"partition": 1})
    made.stages[1].added(3, 1_000)
    assert made.overdue(59_999) == []
    assert [stage.facts.number for stage in made.overdue(60_999)] == [2]
    made.stages[1].prepare(61_000)
    assert made.stages[1].facts.messages == 3 and made.stages[1].facts.prepared
    commit(made, 0, 1)
    assert [stage.facts.number for stage in made.overdue(1e9)] == [2]
    with pytest.raises(TransactionRolledBackError, match="takes no messages"):
        made.stages[1].added(1, 0)
    with pytest.raises(InvariantError):
        made.stages[1].life.on("drop")


def test_only_what_is_not_decided_is_abandoned() -> None:
    made = ledger({}, {"partition": 1, "prepared": False}, {"batch": 1})
    assert [stage.facts.number for stage in made.check_abandon("s", 0, "")] == [1, 2]
    commit(made, 0, 1)
    made.stages[2].life.on("drop")
    assert made.check_abandon("s", 0, "") == []


def test_a_start_goes_on_with_winners_and_drops_what_lost_its_writer_or_its_batch() -> None:
    made = ledger({}, {"attempt": 1}, {"batch": 2}, {"batch": 3, "prepared": False}, {"dropped": True})
    made.sinks["s"] = SinkFacts(sink="s", batch=1, placing=(1, 8)), 4
    assert [stage.facts.number for stage in made.restored()] == [2, 4]
    assert [stage.facts.number for stage in made.placing("s")] == [1], "the stage 8 is placed"
    assert [stage.life.state for stage in made.moving] == ["placing", "dropping"]
    assert made.watched and not LedgerMachine().watched
