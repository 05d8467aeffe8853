"""A node of a pair asks another one: what counts as gone, as silent and as an answer."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from meshq import Broker, ClusterConnection, Message, ReplicationBackup, ReplicationPrimary
from meshq.client import LogPiece
from meshq.client.link._link_end import nobody_there
from meshq.errors import ConnectionBrokenError, RemoteProtocolError
from meshq.ha.replication._own_pauses import OwnPauses
from meshq.ha.replication._reach import Reach, same_place
from meshq.ha.replication._replica_machine import EPOCHS_LEFT, Following
from meshq.ha.replication._replicator_machine import ReplicationBounds, Replicator
from meshq.ha.replication.meeting._asking import Answer, Asker
from meshq.ha.replication.meeting._meeting_plan import gives_way
from meshq.ha.replication.meeting._standpoints import CLAIMED, is_stranger
from meshq.wire import Log, Replicate
from tests.ha.replicated import machines, url_of
from tests.ha.test_replication_faults import told
from tests.ha.test_replication_in_doubt import backup, pair, primary, taken_over

OWN, THEIRS, NODE = b"o" * 16, b"t" * 16, b"n" * 16


# -- a connection that can't be made


@pytest.mark.parametrize(
    ("cause", "gone"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True),
        (TimeoutError("waited"), True),
        (LookupError("no broker"), True),
        (OSError(errno.EMFILE, "no descriptors here"), False),
        (OSError(errno.ENOTCONN, "has closed at once"), False),
        (EOFError("the stream has ended"), False),
    ],
)
def test_only_a_connection_that_can_not_be_made_says_that_nobody_is_there(cause: Exception, gone: bool) -> None:
    error = ConnectionBrokenError("can't be reached", outcome="not_done")
    error.__cause__ = cause
    assert nobody_there(error) is gone
    ended = ConnectionBrokenError("has ended")
    ended.__cause__ = cause
    assert not nobody_there(ended)


def test_a_system_without_descriptors_is_found_behind_the_error_of_all_its_attempts() -> None:
    error, inner = ConnectionBrokenError("can't be reached", outcome="not_done"), OSError("all attempts failed")
    inner.__cause__ = ExceptionGroup("all", [OSError(errno.ECONNREFUSED, "one"), OSError(errno.EMFILE, "other")])
    error.__cause__ = inner
    assert not nobody_there(error)


# -- tries


class TimedLinks:
    """Links that answer in turn, each after its time."""

    def __init__(self, *answers: tuple[float, Log | Exception]) -> None:
        self.answers = list(answers)
        self.nobody = False

    def factory(self, url: str) -> TimedLinks:
        return self

    def log_link(self, wanted: Replicate, *, instance: bytes) -> TimedLinks:
        return self

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        yield

    async def receive(self) -> LogPiece:
        after, answer = self.answers.pop(0)
        await trio.sleep(after)
        if isinstance(answer, Exception):
            self.nobody = isinstance(answer, ConnectionBrokenError) and answer.outcome == "not_done"
            raise answer
        return LogPiece(header=answer, first=0, body=b"")


def asker(*answers: tuple[float, Log | Exception]) -> Asker:
    """Make one whose questions are answered so."""
    return Asker(cast("Reach", TimedLinks(*answers)), OWN, lambda ends: Replicate(instance=OWN, node_name="a"))


async def test_a_slow_way_has_time_for_an_answer_and_each_later_try_has_more() -> None:
    answer = Log(kind="waiting", name="b")
    assert (await asker((2.5, answer)).ask("u")).log == answer
    assert (await asker((5.0, answer), (5.0, answer)).ask("u", patience_s=20)).log == answer


async def test_a_connection_that_is_made_and_closed_is_no_node_that_is_gone() -> None:
    closed = [(0.01, ConnectionBrokenError("has ended the link")) for _ in range(100)]
    found = await asker(*closed).ask("u", patience_s=4)
    assert (found.lives, found.gone) == (True, False)
    found = await asker(closed[0], (0, ConnectionBrokenError("refused", outcome="not_done"))).ask("u", patience_s=4)
    assert (found.lives, found.gone) == (False, True)


async def test_an_answer_of_another_node_at_the_same_place_says_nothing() -> None:
    other, right = Log(kind="waiting", name="c"), Log(kind="waiting", name="b")
    assert (await asker((0, other), (0, right)).ask("u", patience_s=4, name="b")).log == right
    found = await asker(*[(0, other)] * 100).ask("u", patience_s=4, name="b")
    assert found == Answer()


def test_strangers_are_told_from_nodes_of_the_pair() -> None:
    own = Replicate(instance=OWN, node_name="a", node_id=NODE, group="fish")
    assert is_stranger(Log(kind="waiting", instance=OWN, node_id=NODE), own)
    assert is_stranger(Log(kind="waiting", instance=THEIRS, node_id=b"x" * 16, group="fish"), own)
    assert is_stranger(Log(kind="waiting", instance=THEIRS, group="bird"), own)
    assert not is_stranger(Log(kind="waiting", instance=THEIRS, node_id=NODE, group="bird"), own)
    assert not is_stranger(Log(kind="waiting", instance=THEIRS), own)


def test_places_are_compared_as_they_are_read() -> None:
    assert same_place("tcp://A.example:1?insecure=true", "tcp://a.example:1")
    assert not same_place("tcp://a.example:1", "tcp://a.example:2")
    assert not same_place("", "tcp://a.example:2")


# -- pauses


def test_a_node_finds_on_its_clock_how_long_it_stood_still() -> None:
    pauses = OwnPauses(0.0, 0.5)
    for moment in (0.5, 1.0, 1.9):
        pauses.note(moment)
    assert pauses.longest_s(0.0, 2.0) == 0.0
    assert pauses.longest_s(0.0, 6.0) == 3.5
    assert pauses.longest_s(5.9, 6.1) == 3.5
    assert pauses.longest_s(6.0, 6.5) == 0.0
    assert pauses.longest_s(6.4, 10.0) == 3.0


# -- two that serve


def test_of_two_that_serve_in_one_epoch_exactly_one_gives_way() -> None:
    for one, other in (((1, False, OWN), (1, False, THEIRS)), ((2, True, OWN), (2, True, THEIRS))):
        assert gives_way(one, other) is not gives_way(other, one)
    assert not gives_way((1, False, OWN), (1, False, OWN))
    assert gives_way((1, True, THEIRS), (2, False, OWN))
    assert gives_way((1, False, THEIRS), (1, True, OWN))


def test_an_epoch_that_no_node_can_reach_is_refused() -> None:
    # As many takeovers as anybody counts can follow the highest one that is taken.
    Following(1).accepted(CLAIMED - EPOCHS_LEFT - 1)
    for epoch in (CLAIMED - EPOCHS_LEFT, CLAIMED):
        with pytest.raises(RemoteProtocolError):
            Following(1).accepted(epoch)


# -- brokers


async def test_a_replica_gives_in_to_a_primary_in_its_first_life() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        before = trio.current_time()
        ground.network.silence("node", "node")
        ground.threads["b"].close("write")
        async with ground.client_of("a") as client:
            # The replica is slow, and says so when it is asked: confirms wait for no longer than that.
            await client.send("q", b"one")
            assert trio.current_time() - before < 2
        assert first.ha.unprotected and first.state == "active"
        assert second.state == "waiting"


async def test_strangers_and_the_node_itself_hold_up_no_start() -> None:
    async with machines() as (ground, nursery):
        await ground.start(nursery, ground.broker("b", None))
        other = ground.broker("c", ReplicationPrimary(group_name="bird"), cluster={"static_connectors": []})
        await ground.start(nursery, other)
        places = [url_of("b"), url_of("c"), "tcp://localhost:7001"]
        ha = ReplicationPrimary(check_for_live_server=True, group_name="fish", wait_for_activation=False)
        mine = await ground.start(nursery, ground.broker("a", ha, cluster={"static_connectors": places}))
        await mine.ha.wait_for(role="primary", phase="active", timeout=20)


@pytest.mark.parametrize("closes", [True, False])
async def test_a_start_waits_for_a_node_that_takes_connections_and_closes_them_or_says_nothing(closes: bool) -> None:
    async with machines() as (ground, nursery):
        listener = await ground.network.host("node").listen("127.0.0.1", 7002)
        taken: list[Any] = []

        async def take_all() -> None:
            while True:
                # A node that is stopped takes connections, too: its system does.
                taken.append(await listener.accept())
                if closes:
                    taken.pop().close()

        nursery.start_soon(take_all)
        first = await ground.start(nursery, primary(ground))
        await trio.sleep(150)
        assert first.state == "waiting"
        for one in taken:
            one.close()


async def test_a_replica_that_stood_still_for_too_long_does_not_take_over() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        assert second.ha.phase == "in_sync"
        # Half a second is the least after which the other one may have gone on without it.
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(5)
        await ground.crash(first)
        await trio.sleep(10)
        assert second.state == "waiting"


# -- a copy that is on its way to its place


def test_a_replica_that_was_sent_a_copy_has_its_time_and_each_sign_of_work_begins_it_anew() -> None:
    replicator = Replicator(10, ReplicationBounds(sync_s=30, slow_s=5))
    replicator.accept()
    assert replicator.deadline == math.inf
    replicator.expect(10, 100)
    assert (replicator.expired(129), replicator.deadline) == ("", 130)
    replicator.progressed(120, 0)
    assert (replicator.expired(149), replicator.expired(150)) == ("", "sync_timeout")
    replicator.heard(10, 149)
    assert replicator.deadline == math.inf


def test_the_bytes_that_a_replica_lacks_are_counted_from_its_joining_on() -> None:
    replicator = Replicator(0, ReplicationBounds(sync_s=30, slow_s=5))
    replicator.accept()
    replicator.place(1, 0, 100)
    replicator.join(0)
    replicator.place(2, 0, 20)
    replicator.place(4, 0, 3)
    assert replicator.backlog.size_bytes == 23
    replicator.heard(2, 1)
    assert replicator.backlog.size_bytes == 3
    replicator.drop()
    assert replicator.backlog.size_bytes == 0


async def test_a_replica_that_puts_a_copy_in_its_place_answers_signs_of_life_and_has_a_bound() -> None:
    async with machines() as (ground, nursery):
        ha = ReplicationPrimary(initial_replication_sync_timeout=10)
        cluster = {"connection_ttl": 2, "static_connectors": []}
        first = await ground.start(nursery, ground.broker("a", ha, cluster=cluster))
        gate = ground.threads["b"].close("install_copy")
        mine = {"connection_ttl": 2, "static_connectors": [url_of("a")]}
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup(), cluster=mine))
        await second.ha.wait_for(phase="syncing", timeout=5)
        await trio.sleep(7)
        # Longer than the silence that ends a link.
        assert [one.dropped_reason for one in first.ha.replicas] == [""]
        await trio.sleep(4)
        assert [one.dropped_reason for one in first.ha.replicas] == ["sync_timeout"]
        gate.set()
        ground.threads["b"].open()
        await second.ha.wait_for(phase="in_sync", timeout=20)


async def test_a_second_node_with_the_name_and_the_place_of_a_replica_does_not_end_its_link() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        before, seen = first.ha.replicas[0].instance, list[Any]()
        nursery.start_soon(told, first, seen)
        cluster = {"static_connectors": [url_of("a")], "connector": "own"}
        twin = Broker(
            "b",
            data_dir="/data",
            acceptors=[url_of("c")],
            connectors={"own": url_of("b")},
            services=[ClusterConnection("c", password="p", **cluster)],
            ha=ReplicationBackup(),
            env=ground.env("c"),
        )
        await ground.start(nursery, twin)
        await trio.sleep(10)
        (replica,) = first.ha.replicas
        assert (replica.instance, replica.in_sync, second.ha.phase) == (before, True, "in_sync")
        assert not [one for one in seen if one.kind == "replica_dropped"]


async def test_a_primary_whose_copy_was_cut_off_by_a_loss_serves_after_a_turn_as_a_backup() -> None:
    async with machines() as (ground, nursery):
        second = await taken_over(ground, nursery)
        ground.threads["b"].close("_read")
        again = await ground.start(nursery, primary(ground))
        await again.ha.wait_for(phase="syncing", timeout=10)
        await ground.crash(again)
        await ground.crash(second)
        for ha, state, epoch in (
            (ReplicationPrimary(check_for_live_server=True, wait_for_activation=False), "waiting", 2),
            (ReplicationBackup(), "waiting", 2),
            (ReplicationPrimary(check_for_live_server=True, wait_for_activation=False), "active", 3),
        ):
            again = await ground.start(nursery, ground.broker("a", ha, cluster={"static_connectors": [url_of("b")]}))
            await trio.sleep(10)
            assert (again.state, again.ha.epoch <= epoch) == (state, True)
            if state == "waiting":
                await ground.crash(again)
        assert again.ha.epoch == 3


async def test_a_client_sees_the_replica_and_what_it_lacks() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client_of("a") as client:
            assert (await client.ha()).replicas == (("b", url_of("b"), True, 0, 0, ""),)
            await client.send("q", b"first")
            ground.threads["b"].close("write")
            with trio.move_on_after(0.4):
                await client.send("q", b"x" * 1000)
            # The figures are shown anew as often as a node looks for others.
            await trio.sleep(0.8)
            (replica,) = first.ha.replicas
            lacks = (second.ha.records_behind, second.ha.bytes_behind)
            # The answer waits for what the session has sent before.
            status = await client.ha()
            ground.threads["b"].open()
        assert (replica.in_sync, replica.records_behind, lacks[0]) == (True, 1, 1)
        assert min(replica.bytes_behind, lacks[1]) > 1000
        assert status.replicas[0][:2] == ("b", url_of("b"))
        assert status.replicas[0][3:5] == (1, replica.bytes_behind)


async def test_a_primary_that_comes_back_looks_copies_is_in_sync_and_then_serves_with_all_that_was_confirmed() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery, allow_failback=True)
        seen: list[Any] = []
        async with ground.client() as client:
            for number in range(3):
                await client.send("q", Message(b"%d" % number, duplicate_id=f"{number}"))
            await ground.crash(first)
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            await client.send("q", Message(b"3", duplicate_id="3"))
            again = ground.broker("a", ReplicationPrimary(check_for_live_server=True))
            nursery.start_soon(told, second, seen)
            nursery.start_soon(told, again, seen)
            await ground.start(nursery, again)
            assert (again.state, again.ha.epoch) == ("active", 3)
            await second.ha.wait_for(phase="in_sync", timeout=60)
            steps = [(one.kind, getattr(one, "role", ""), getattr(one, "reason", "")) for one in seen]
            wanted = [
                ("sync_begun", "", ""),
                ("sync_done", "", ""),
                ("role_changed", "backup", "failback"),
                ("role_changed", "primary", "failback"),
            ]
            assert [one for one in steps if one in wanted][:4] == wanted
            async with client.consumer("q") as consumer:
                bodies = []
                while (delivery := await consumer.receive(timeout=1)) is not None:
                    bodies.append(bytes(delivery.body))
            assert bodies == [b"0", b"1", b"2", b"3"]


async def test_a_replica_that_has_not_read_yet_that_it_is_in_sync_and_is_to_take_over_lets_nobody_else_serve() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, primary(ground))
        gate = ground.threads["b"].close("remember")
        second = await ground.start(nursery, backup(ground))
        await first.ha.wait_for(in_sync=True, timeout=20)
        nursery.start_soon(first.ha.fail_over)
        await trio.sleep(3)
        assert second.state == "waiting"
        # The last word may be lost with its link; then the other one never claims the role.
        lost = first.state == "active"
        gate.set()
        ground.threads["b"].open()
        acting, other = (first, second) if lost else (second, first)
        await acting.ha.wait_for(role="primary", phase="active", timeout=10)
        await trio.sleep(5)
        assert (acting.state, acting.ha.epoch, other.state) == ("active", 2, "waiting")
