"""A pair, or peers, whose nodes ask a quorum provider: who serves, with which copy, and from when on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from meshq import (
    Broker,
    ClusterConnection,
    MajorityVote,
    RefusedError,
    ReplicationBackup,
    ReplicationPrimary,
    SettingsError,
)
from meshq.ha.quorum import node_id_of
from meshq.ha.replication import _quorum_activation
from tests.ha.provided import SESSION_S, active, pairs
from tests.ha.replicated import url_of


async def test_the_counters_of_a_pair_grow_once_with_each_activation_and_each_node_that_is_left_behind() -> None:
    async with pairs() as pair:
        first = await pair.start("a", pair.first())
        await active(first)
        pair.node_id = bytes(first.node_id)
        # Alone 1.
        assert pair.figures == (1, ("a",)) and pair.counter("a") == 1
        second = await pair.start("b", pair.second())
        await pair.in_sync(first)
        # In sync 1 and 1.
        assert pair.figures == (1, ("a", "b")) and (pair.counter("a"), pair.counter("b")) == (1, 1)
        await pair.kill(first)
        await active(second)
        # The backup alone after a takeover 2.
        assert pair.figures == (2, ("b",)) and (pair.counter("a"), pair.counter("b")) == (1, 2)
        await pair.kill(second)
        second = await pair.start("b", pair.second())
        await active(second)
        # Restarted alone 3.
        assert pair.figures == (3, ("b",)) and pair.counter("b") == 3
        first = await pair.start("a", pair.first())
        await pair.in_sync(second)
        # The other one as its replica 3; and alone again 4.
        assert pair.figures == (3, ("b", "a")) and (pair.counter("a"), pair.counter("b")) == (3, 3)
        await pair.ground.crash(first)
        await trio.sleep(1)
        assert second.ha.in_sync == ("b",)
        assert pair.figures == (4, ("b",)) and (pair.counter("a"), pair.counter("b")) == (3, 4)
        assert pair.record.epoch == second.ha.epoch == 3 and second.ha.unprotected


async def test_a_backup_takes_over_when_the_session_has_run_out_and_at_once_when_the_role_was_given_up() -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        async with pair.ground.client() as client:
            await client.send("q", b"kept")
        began = trio.current_time()
        await pair.kill(first)
        # The last renewal may be one third of a lease old.
        assert SESSION_S - pair.quorum.lease_s / 3 <= await active(second) - began <= SESSION_S + 1
        assert second.ha._board.report.reason == "crash"
        first = await pair.start("a", pair.first())
        await pair.in_sync(second)
        await second.stop()
        began = trio.current_time()
        assert await active(first) - began < 0.5
        async with pair.ground.client() as client:
            assert (await client.queue("q")).ready == 1


async def test_a_silent_primary_is_noticed_by_the_silence_and_its_role_is_taken_after_the_session() -> None:
    for ttl in (2.0, 12.0):
        async with pairs() as pair:
            cluster = {"connection_ttl": ttl}
            first = await pair.start("a", pair.first(), cluster=cluster)
            await active(first)
            second = await pair.start("b", pair.second(), cluster=cluster)
            await pair.in_sync(first)
            # It hears nobody, and nobody hears it, and no connection is closed.
            pair.ground.network.cut("node", "node")
            pair.quorum.cut(pair.quorum.place(pair.node_id).holder)
            began = trio.current_time()
            taken = await active(second) - began
            assert max(SESSION_S, ttl) - 1 <= taken <= max(SESSION_S, ttl) + 2
            assert first.state == "waiting" and first.ha._board.report.reason == "lease_lost"


async def test_a_primary_serves_only_with_the_lock_and_the_newest_copy() -> None:
    async with pairs() as pair:
        peers = {"node_id": b"n" * 16}
        pair.node_id = peers["node_id"]
        cut = pair.quorum
        real, cut.reaches = cut.reaches, lambda instance: False  # type: ignore[method-assign]
        first = await pair.start("a", pair.first(), **peers)
        await trio.sleep(30)
        # Without the quorum it waits.
        assert first.state == "waiting" and "the quorum can't be reached" in first.ha.last_error
        cut.reaches = real  # type: ignore[method-assign]
        await active(first)
        second = await pair.start("b", pair.second())
        await pair.in_sync(first)
        await pair.kill(first)
        await active(second)
        await pair.ground.crash(second)
        first = await pair.start("a", pair.first(), **peers)
        await trio.sleep(30)
        # Its copy is an older one.
        assert first.state == "waiting" and "a is not among the nodes in sync: b" in first.ha.last_error
        second = await pair.start("b", pair.second())
        await active(second)
        await first.ha.wait_for(phase="in_sync", timeout=60)
        assert first.ha.last_error == ""


@pytest.mark.slow
async def test_a_node_whose_lock_is_held_by_another_one_follows_it_and_never_serves() -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        await trio.sleep(3 * SESSION_S)
        assert (first.state, second.state, second.ha.phase) == ("active", "waiting", "in_sync")
        # A cut between the two is no reason: the lock is held.
        pair.ground.network.cut("node", "node")
        await trio.sleep(90)
        assert (first.state, second.state) == ("active", "waiting")
        assert first.ha.in_sync == ("a",) and pair.figures == (2, ("a",))
        pair.ground.network.heal()
        await pair.in_sync(first)


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_primary_that_returns_gets_its_role_back_without_looking_where_the_backup_allows_it(
    allowed: bool,
) -> None:
    """F72."""
    async with pairs() as pair:
        # It is not allowed unless that is said.
        first, second = await (pair.both(allow_failback=True) if allowed else pair.both())
        await pair.kill(first)
        await active(second)
        # ``check_for_live_server`` is False.
        first = await pair.start("a", pair.first())
        if allowed:
            await active(first)
            assert first.ha._board.report.reason == "failback"
            await second.ha.wait_for(phase="in_sync", timeout=60)
            assert (first.ha.role, second.ha.role, second.state) == ("primary", "backup", "waiting")
        else:
            await pair.in_sync(second)
            await trio.sleep(3)
            assert (first.state, second.state) == ("waiting", "active")


async def test_nothing_is_confirmed_without_a_replica_before_the_quorum_has_left_it_out() -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        async with pair.ground.client() as client:
            await client.send("q", b"by both")
            holder = pair.quorum.place(pair.node_id).holder
            pair.quorum.cut(holder)
            await pair.ground.crash(second)
            confirmed = trio.Event()

            async def send() -> None:
                await client.send("q", b"alone")
                confirmed.set()

            pair.nursery.start_soon(send)
            # Shorter than the lock is held.
            await trio.sleep(pair.quorum.lease_s / 2)
            assert not confirmed.is_set() and pair.figures == (1, ("a", "b"))
            assert first.ha.in_sync == ("a",) and first.state == "active"
            pair.quorum.heal(holder)
            with trio.fail_after(2):
                await confirmed.wait()
            assert pair.figures == (2, ("a",)) and pair.counter("a") == 2


async def test_a_replica_is_in_sync_only_once_the_quorum_knows_it() -> None:
    async with pairs() as pair:
        first = await pair.start("a", pair.first())
        await active(first)
        pair.node_id = bytes(first.node_id)
        second = await pair.start("b", pair.second())
        await second.ha.wait_for(phase="syncing", timeout=60)
        holder = pair.quorum.place(pair.node_id).holder
        pair.quorum.cut(holder)
        await trio.sleep(pair.quorum.lease_s / 2)
        assert pair.figures == (1, ("a",)) and (first.ha.in_sync, second.ha.phase) == (("a",), "syncing")
        with pytest.raises(RefusedError):
            await first.ha.fail_over()
        pair.quorum.heal(holder)
        await pair.in_sync(first)
        await second.ha.wait_for(phase="in_sync", timeout=60)
        assert pair.figures == (1, ("a", "b"))


async def test_a_node_that_loses_its_session_steps_back_before_the_other_one_serves() -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        pair.quorum.cut(pair.quorum.place(pair.node_id).holder)
        began = trio.current_time()
        await first.ha.wait_for(phase="searching", timeout=60)
        assert trio.current_time() - began <= pair.quorum.lease_s + 0.1
        assert first.ha._board.report.reason == "lease_lost" and second.state == "waiting"
        assert await active(second) - began >= SESSION_S - pair.quorum.lease_s / 3
        await first.ha.wait_for(phase="in_sync", timeout=60)


async def test_a_node_that_loses_its_session_does_not_wait_for_a_replica_that_has_not_everything() -> None:
    async with pairs() as pair:
        first, _second = await pair.both()
        pair.ground.threads["b"].close("write")
        async with pair.ground.client_of("a") as client:
            sent = trio.CancelScope()

            async def send() -> None:
                with sent:
                    await client.send("q", b"not confirmed")

            pair.nursery.start_soon(send)
            await trio.sleep(0.1)
            pair.quorum.cut(pair.quorum.place(pair.node_id).holder)
            began = trio.current_time()
            await first.ha.wait_for(phase="searching", timeout=60)
            took_s = trio.current_time() - began
            sent.cancel()
            pair.ground.threads["b"].open()
        assert took_s <= pair.quorum.lease_s + 0.1 and first.ha._board.report.reason == "lease_lost"


async def test_of_two_peers_one_serves_and_the_other_one_is_in_sync_and_only_the_newest_starts_again() -> None:
    async with pairs() as pair:
        peers = [await pair.start(name, pair.peer()) for name in "ab"]
        await trio.sleep(3)
        winner, loser = sorted(peers, key=lambda one: one.state)
        assert (winner.state, loser.state) == ("active", "waiting")
        await pair.in_sync(winner)
        assert pair.node_id == node_id_of("peer-journal-001") and len(pair.node_id) == 16
        await pair.ground.crash(loser)
        async with pair.ground.client() as client:
            await client.send("q", b"newer")
        await winner.stop()
        loser = await pair.start(loser.name, pair.peer())
        await trio.sleep(30)
        assert loser.state == "waiting" and "is not among the nodes in sync" in loser.ha.last_error
        winner = await pair.start(winner.name, pair.peer())
        await active(winner)
        await pair.in_sync(winner)
        await loser.ha.wait_for(phase="in_sync", timeout=60)
        # Whoever acts stays.
        assert (winner.state, loser.ha.phase) == ("active", "in_sync")
        async with pair.ground.client() as client:
            assert (await client.queue("q")).ready == 1


async def test_a_new_primary_has_one_node_id_however_often_it_starts_before_it_has_a_store() -> None:
    async with pairs() as pair:
        pair.quorum.reaches = lambda instance: False  # type: ignore[method-assign]
        cluster = {"static_connectors": [url_of("b")]}
        await pair.start("b", pair.second())
        found = []
        for _ in range(2):
            first = await pair.start("a", pair.first(), node_id=None, cluster=cluster)
            await trio.sleep(10)
            found.append(list(pair.quorum._places))
            await pair.ground.crash(first)
        assert found[0] == found[1] and len(found[0]) == 1


@pytest.mark.parametrize("with_provider", ["a", "b"])
async def test_a_node_without_a_provider_and_one_with_a_provider_are_no_pair(with_provider: str) -> None:
    async with pairs() as pair:
        vote: dict[str, Any] = {"quorum": MajorityVote()}
        first = await pair.start("a", pair.first(**({} if with_provider == "a" else vote)))
        await active(first)
        policy = pair.second() if with_provider == "b" else ReplicationBackup(**vote)
        second = await pair.start("b", policy)
        await trio.sleep(10)
        assert "only one of them asks a quorum provider" in second.ha.last_error
        assert first.ha.unprotected and second.ha.phase == "searching"


@pytest.mark.slow
async def test_a_replica_with_the_name_of_its_primary_is_refused() -> None:
    async with pairs() as pair:
        first = await pair.start("a", pair.first())
        await active(first)
        about: dict[str, Any] = {"acceptors": [url_of("b")], "env": pair.ground.env("b"), "data_dir": "/data"}
        services = [ClusterConnection("c", password="p", static_connectors=[url_of("a")])]
        twin = Broker("a", ha=pair.second(), services=services, **about)
        await pair.ground.start(pair.nursery, twin)
        await trio.sleep(10)
        assert "a quorum tells nodes by name" in twin.ha.last_error


async def test_a_store_of_another_node_id_is_refused_where_peers_have_one_in_common() -> None:
    async with pairs() as pair:
        first = await pair.start("a", ReplicationPrimary())
        await pair.ground.crash(first)
        with pytest.raises(SettingsError, match="coordination_id"):
            await pair.ground.broker("a", pair.peer()).run()
        with pytest.raises(SettingsError, match="node_id"):
            await pair.ground.broker("b", pair.peer(), node_id=b"n" * 16).run()


async def test_a_provider_is_told_to_be_experimental_and_settings_of_votes_to_mean_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pairs() as pair:
        given = {"check_for_live_server": True, "vote_on_replication_failure": True}
        await active(await pair.start("a", pair.first(**given)))
        events = [getattr(one, "event", "") for one in caplog.records if one.levelno == logging.WARNING]
        assert (events.count("quorum_experimental"), events.count("settings_ignored")) == (1, 1)
        assert "check_for_live_server and vote_on_replication_failure" in caplog.text


async def test_a_silence_that_ends_no_link_is_refused_with_a_provider() -> None:
    async with pairs() as pair:
        broker = pair.ground.broker("a", pair.first(), cluster={"connection_ttl": float("inf")})
        with pytest.raises(SettingsError, match="connection_ttl"):
            await broker.run()


async def test_the_end_of_a_term_does_not_forget_a_counter_that_is_being_stored() -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        gate = pair.ground.threads["a"].close("remember")
        await pair.ground.crash(second)
        await trio.sleep(1)
        # The counter waits for the disk, and the node is told to stop.
        assert pair.record.claimed == 2
        acting: Any = first.ha._board.replicas
        acting.term.yielded = True
        later = pair.ground.threads["a"].close("remember")
        pair.nursery.start_soon(first.stop)
        await trio.sleep(3)
        gate.set()
        await trio.sleep(1)
        later.set()
        await trio.sleep(1)
        assert first.state == "stopped" and pair.counter("a") == 2


async def test_a_node_whose_checked_hosts_all_are_silent_gives_its_role_up_and_takes_none_before_one_answers() -> None:
    async with pairs() as pair:
        # Only a's questions: the network of the test has one host.
        checked = {"check_hosts": ["127.0.0.1:7777"], "check_hosts_period": 1.0, "check_hosts_timeout": 0.5}
        answers = True

        async def any_answers(*about: object) -> bool:
            await trio.lowlevel.checkpoint()
            return answers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_quorum_activation, "any_answers", any_answers)
            first = await pair.start("a", pair.first(**checked))
            second = await pair.start("b", pair.second())
            await pair.in_sync(first)
            answers = False
            began = trio.current_time()
            await active(second)
            # Two rounds, and at once then: the role is given up.
            assert trio.current_time() - began <= 3.0
            await first.ha.wait_for(phase="isolated", timeout=10)
            assert first.ha._board.report.reason == "isolated"
            await pair.kill(second)
            await trio.sleep(3 * SESSION_S)
            assert (first.state, first.ha.phase) == ("waiting", "isolated")
            answers = True
            await trio.sleep(2)
            assert first.ha.phase != "isolated"
