"""The end of a link between the nodes of a pair: who says what, and what is believed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from meshq import ReplicationBackup, ReplicationPrimary
from meshq.abc import ReplicaLine, ReplicatedBatch, StepBack
from meshq.client import LogPiece
from meshq.env import real_env
from meshq.errors import ConnectionBrokenError, RefusedError
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._node_directory import BodyFile, NodeDirectory
from meshq.ha.replication._pair_activation import ReplicationActivation
from meshq.ha.replication._reach import Reach
from meshq.ha.replication._replicator_machine import ReplicationBounds, Replicator
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.meeting._asking import QUESTION_S, Asker
from meshq.ha.replication.meeting._standpoints import CLAIMED
from meshq.ids import Position
from meshq.wire import Log, Logged, Replicate
from tests.ha.replicated import machines, url_of
from tests.ha.test_replication_faults import told
from tests.ha.test_replication_in_doubt import backup, pair, primary, taken_over

WANTED = Replicate(instance=bytes(16), node_name="b", place="tcp://b:1")


# -- brokers


async def test_a_node_whose_replica_may_have_taken_over_asks_before_it_confirms_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gone(self: Any, url: str, end: Any) -> bool:
        # As if the other one had been stopped for a while, and goes on now.
        await trio.sleep(0.3)
        return True

    monkeypatch.setattr(ReplicationActivation, "_is_gone", gone)
    async with machines() as (ground, nursery):
        first, second = primary(ground), backup(ground)
        seen: list[Any] = []
        nursery.start_soon(told, first, seen)
        await ground.start(nursery, first)
        await ground.start(nursery, second)
        await second.ha.wait_for(phase="in_sync", timeout=60)
        await first.ha.wait_for(in_sync=True, timeout=60)
        ground.network.reset("node", "node")
        await second.ha.wait_for(role="primary", phase="active", timeout=10)
        await first.ha.wait_for(phase="in_sync", timeout=60)
        alone = [one for one in seen if one.kind == "in_sync_changed" and one.unprotected]
        assert (first.state, second.state, alone) == ("waiting", "active", [])
        reasons = [one.reason for one in seen if one.kind == "role_changed"]
        assert "superseded" in reasons


async def test_a_link_that_blinks_lets_nobody_take_over_and_the_replica_comes_back() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        ground.network.reset("node", "node")
        await trio.sleep(0.2)
        await second.ha.wait_for(phase="in_sync", timeout=60)
        await first.ha.wait_for(in_sync=True, timeout=60)
        assert (first.state, first.ha.epoch, second.state) == ("active", 1, "waiting")


async def test_a_replica_that_can_not_read_what_it_remembers_does_not_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)

        def fails(self: NodeDirectory) -> Any:
            raise OSError(5, "once")

        with monkeypatch.context() as patch:
            patch.setattr(NodeDirectory, "standing", fails)
            await ground.crash(first)
            await trio.sleep(3)
            assert (second.state, second.ha.phase) == ("waiting", "searching")
        await trio.sleep(3)
        assert second.state == "waiting"


async def test_a_replica_whose_disk_fails_once_as_it_reads_what_it_remembers_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        real, failed = NodeDirectory.standing, list[int]()

        def fails(self: NodeDirectory) -> Any:
            if not failed:
                failed.append(1)
                raise OSError(5, "once")
            return real(self)

        monkeypatch.setattr(NodeDirectory, "standing", fails)
        await ground.crash(first)
        await second.ha.wait_for(phase="active", timeout=10)
        assert failed


async def test_a_change_of_a_term_is_not_written_over_what_the_node_remembers_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[Standing] = []

    async def remember(self: Any, standing: Standing) -> bool:
        stored.append(standing)
        return True

    monkeypatch.setattr(ReplicationActivation, "_remember", remember)
    part: Any = object.__new__(ReplicationActivation)
    part._acting, part._remembering, part._standing = SimpleNamespace(term="one"), trio.Lock(), Standing()
    part._directory = SimpleNamespace(is_unsure=False)
    assert await part._change(lambda one: attrs.evolve(one, number=1))
    assert await part._change(lambda one: one)
    async with trio.open_nursery() as nursery:
        await part._remembering.acquire()
        nursery.start_soon(part._change, lambda one: attrs.evolve(one, number=2))
        await trio.testing.wait_all_tasks_blocked()
        part._acting.term = None
        part._remembering.release()
    assert [one.number for one in stored] == [1]


async def test_a_primary_that_asks_nobody_steps_back_when_the_one_that_took_over_asks_it() -> None:
    async with machines() as (ground, nursery):
        second = await taken_over(ground, nursery)
        again = ground.broker("a", ReplicationPrimary(), cluster={"static_connectors": []})
        await ground.start(nursery, again)
        assert (again.state, again.ha.epoch) == ("active", 2)
        await trio.sleep(3)
        assert (again.state, second.state) == ("waiting", "active")


async def test_a_node_meets_others_also_while_it_has_a_replica() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        await ground.crash(first)
        await second.ha.wait_for(role="primary", phase="active", timeout=10)
        again = ground.broker("a", ReplicationPrimary(), cluster={"static_connectors": []})
        spare = ground.broker("c", ReplicationBackup(), cluster={"static_connectors": [url_of("b")]})
        await ground.start(nursery, spare)
        await spare.ha.wait_for(phase="in_sync", timeout=60)
        await second.ha.wait_for(in_sync=True, timeout=60)
        await ground.start(nursery, again)
        await trio.sleep(8)
        assert (again.state, second.ha.in_sync) == ("waiting", ("b", "c"))


async def test_a_replica_that_begins_a_new_life_takes_the_place_of_its_old_one() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        # The old link stays half open: nothing that ends it reaches the primary.
        old = first.ha.replicas[0].instance
        ground.network.silence("node", "node")
        await ground.crash(second)
        again = await ground.start(nursery, backup(ground))
        await again.ha.wait_for(phase="in_sync", timeout=5)
        assert first.ha.replicas[0].in_sync and first.ha.replicas[0].instance != old


async def test_an_order_by_force_hands_over_too() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        await first.ha.fail_over(force=True, timeout=10)
        assert (first.state, second.state, second.ha.epoch) == ("waiting", "active", 2)


# -- a question


class Links:
    """Links that answer in turn: None is silence."""

    def __init__(self, *answers: Log | Exception | None) -> None:
        self.answers = list(answers)
        #: As of a link to a place where nobody listens.
        self.nobody = False

    def factory(self, url: str) -> Links:
        return self

    def log_link(self, wanted: Replicate, *, instance: bytes) -> Links:
        return self

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        yield

    async def receive(self) -> LogPiece:
        answer = self.answers.pop(0)
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            self.nobody = isinstance(answer, ConnectionBrokenError) and answer.outcome == "not_done"
            raise answer
        assert answer is not None
        return LogPiece(header=answer, first=0, body=b"")


def asker(*answers: Log | Exception | None) -> Asker:
    """Make one whose questions are answered so."""
    return Asker(cast("Reach", Links(*answers)), bytes(16), lambda ends: WANTED)


async def test_a_node_that_is_silent_or_refuses_is_asked_again_and_one_that_is_not_there_is_not() -> None:
    accepted = Log(kind="accepted", epoch=CLAIMED)
    assert (await asker(None, RefusedError("full"), None, accepted).ask("u", patience_s=12)).log == accepted
    before = trio.current_time()
    answer = await asker(ConnectionBrokenError("refused", outcome="not_done")).ask("u", patience_s=5)
    assert (answer.log, answer.lives, trio.current_time()) == (None, False, before)
    answer = await asker(*[None] * 20).ask("u", patience_s=5)
    assert (answer.log, answer.lives) == (None, False)
    assert 5 <= trio.current_time() - before < 5 + 2 * QUESTION_S
    answer = await asker(*[RefusedError("full")] * 200).ask("u", patience_s=5)
    assert (answer.log, answer.lives) == (None, True)


# -- the last words of the one that is followed


class Line(ReplicaLine[Log]):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, piece: Log, first: int = 0, body: bytes = b"") -> None:
        self.sent.append(piece.kind)

    def flush(self) -> int:
        return 0

    def end(self, text: str) -> None:
        self.sent.append("end")


def fed() -> tuple[Feeder, Line, ReplicationTerm]:
    """Make a term whose replica is in sync, and its feeder."""
    term, line = ReplicationTerm(1, ReplicationBounds(sync_s=30, slow_s=5)), Line()
    term.replicator = Replicator(0, ReplicationBounds(sync_s=30, slow_s=5))
    term.replicator.accept()
    term.replicator.join(0)
    assert term.replicator.heard(0, 0)
    calls: dict[str, Any] = {"in_sync": lambda: None, "lost": lambda one: None, "over": lambda reason, known: None}
    env = real_env()
    feeder = Feeder(WANTED, line, term, source=cast("Any", None), files=BodyFile(env.disk, "/none"), env=env, **calls)
    feeder.say_in_sync()
    line.sent.clear()
    term.bodies.begin()
    term.taker = feeder.take
    return feeder, line, term


def batch(first: int) -> ReplicatedBatch:
    """Make a batch of one record."""
    return ReplicatedBatch(first=Position(first), last=Position(first), flags=0, rows=[1], parts=[b"x"])  # type: ignore[list-item]


@pytest.mark.parametrize("body", [False, True])
async def test_nothing_is_sent_after_a_large_body_that_was_not_read_and_nothing_is_handed_over(body: bool) -> None:
    feeder, line, term = fed()
    term.place(batch(1))
    if body:
        term.bodies.note("0" * 32 + ".body", made=True)
    term.place(batch(2))
    feeder.leaving()
    assert line.sent == (["batch"] if body else ["batch", "batch", "stopped"])
    # A replica that is in sync and has heard the last word takes over, also if its disk was a little behind.
    assert term.yielded is not body


async def test_a_replica_that_can_not_go_on_after_the_last_word_was_not_handed_the_role() -> None:
    feeder, _, term = fed()
    term.place(batch(1))
    feeder.leaving()
    assert term.yielded
    feeder.heard(Logged(kind="failed", reason="disk"), 0)
    assert not term.yielded


async def test_a_role_is_handed_only_to_a_replica_that_was_told_that_it_is_in_sync_once_that_is_on_the_disk() -> None:
    feeder, line, term = fed()
    feeder.told = False
    feeder.leaving()
    assert (line.sent, term.yielded) == (["stopped"], False)
    feeder, line, term = fed()
    # The disk has not taken it.
    term.noted = False
    feeder.leaving()
    assert (line.sent, term.yielded, term.leaving) == ([], False, True)
    feeder, line, term = fed()
    # It is lost while the disk takes it.
    feeder.end("link")
    feeder.leaving()
    assert (line.sent, term.yielded, term.leaving) == (["dropped", "end"], False, True)


async def test_a_feeder_that_has_ended_takes_no_news_of_the_next_one() -> None:
    feeder, _, term = fed()
    feeder.end("left", known=True)
    term.bodies.begin()
    term.bodies.note("0" * 32 + ".body", made=True)
    await feeder._send_news()
    assert len(term.bodies.news) == 1


async def test_a_journal_that_closes_does_not_wait_for_what_was_placed_behind_the_last_word() -> None:
    feeder, _, term = fed()
    for number in (1, 2):
        term.place(batch(number))
    feeder.leaving()
    term.place(batch(3))
    with trio.move_on_after(30) as waited:
        # The journal is not being closed yet, and would confirm.
        await term.durable_beyond(Position(0))
    assert waited.cancelled_caught
    term.end()
    assert await term.durable_beyond(Position(0)) == 3
    with trio.move_on_after(30) as waited:
        await term.durable_beyond(Position(3))
    assert waited.cancelled_caught


def test_who_hands_over_by_force_acts_until_it_has() -> None:
    term = ReplicationTerm(1, ReplicationBounds(sync_s=30, slow_s=5))
    for reason, acts in (("forced", True), ("failback", True), ("superseded", False)):
        term.order = StepBack(reason=reason, at_once=True)
        assert term.may_act() is acts


async def test_a_role_that_is_given_back_is_taken_at_once() -> None:
    async with machines() as (ground, nursery):
        first, second = primary(ground), backup(ground, allow_failback=True)
        await ground.start(nursery, first)
        await ground.start(nursery, second)
        await second.ha.wait_for(phase="in_sync", timeout=60)
        await first.ha.wait_for(in_sync=True, timeout=60)
        await first.ha.fail_over(timeout=10)
        await first.ha.wait_for(role="primary", phase="active", timeout=20)
        await second.ha.wait_for(phase="in_sync", timeout=20)
        # One change there, and one back.
        assert first.ha.epoch == 3
