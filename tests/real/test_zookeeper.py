"""A quorum that is an ensemble of ZooKeeper, for real: servers are killed and come back, and holders are stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from meshq import ConnectionBrokenError, RefusedError, SecurityError, SettingsError
from meshq.abc import QuorumRecord, QuorumSession
from meshq.ha.quorum.zookeeper import ZooKeeperSession
from meshq.testing import check_quorum
from tests.real.zookeeper import SESSION_S, TICK_S, ZooKeeperEnsemble, zookeeper

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("zookeeper")]
HOLDER = """
import sys, trio
from meshq import MeshqError, ZooKeeperQuorum
from meshq.abc import QuorumRecord

async def hold(hosts, session, node_id):
    quorum = ZooKeeperQuorum(hosts, session=float(session), retry_interval=0.2)
    async with quorum.session(bytes.fromhex(node_id), b"h" * 16) as held:
        assert await held.acquire()
        assert await held.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1, holder="stopped"))
        print("held", flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            try:
                print(await held.compare_and_set(QuorumRecord(epoch=2), QuorumRecord(epoch=66)), flush=True)
            except MeshqError as error:
                print(type(error).__name__, held.held_until, flush=True)

trio.run(hold, *sys.argv[1:])
"""


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """An ensemble whose servers a test may kill and start."""
    with zookeeper(tmp_path) as found:
        trio.run(found.serves)
        yield found


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as found:
        trio.run(found.serves)
        yield found


def ids() -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        yield number.to_bytes(16, "big")


IDS = ids()


def started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def got(session: QuorumSession, within: float = 20.0) -> bool:
    """Whether a session gets the lock in that time, whatever happens to the servers meanwhile."""
    with trio.move_on_after(within):
        while True:
            try:
                if await session.acquire():
                    return True
            except ConnectionBrokenError:
                pass
            await trio.sleep(0.05)
    return False


async def test_users_share_an_ensemble_and_only_the_one_who_made_the_record_may_change_it(
    ensemble: ZooKeeperEnsemble,
) -> None:
    """The first test of this ensemble: a user makes the node that all have in common."""
    node_id, space, us = next(IDS), "secured", ("mesh", "for tests only")
    one = ensemble.quorum(namespace=space, auth=us)
    other = ensemble.quorum(namespace=space, auth=("mesh", "another"))
    async with one.session(node_id, b"a" * 16) as first, other.session(node_id, b"b" * 16) as second:
        assert await first.acquire()
        assert await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
        for call in (second.acquire, second.read):
            with pytest.raises(SecurityError, match="belongs to another"):
                await call()
        assert first.held_until > 0.0
    # Another user, or none, has another namespace; and nobody but a user of one may make anything there.
    for space, who in (("another", ("mesh", "another")), ("open", None)):
        async with ensemble.quorum(namespace=space, auth=who).session(node_id, b"b" * 16) as second:
            assert await second.acquire()
    async with ensemble.quorum(namespace="secured").session(next(IDS), b"b" * 16) as second:
        with pytest.raises(SecurityError, match="belongs to another"):
            await second.acquire()
    async with ensemble.quorum(namespace="open", auth=us).session(node_id, b"a" * 16) as first:
        with pytest.raises(SecurityError, match="everybody may change"):
            await first.acquire()
    async with ensemble.quorum(namespace="open", auth=us).session(next(IDS), b"a" * 16) as first:
        assert await first.acquire()


async def test_an_ensemble_of_zookeeper_conforms(ensemble: ZooKeeperEnsemble) -> None:
    """F44, F45."""
    await check_quorum(lambda: ensemble.quorum(namespace="conformance"))


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (2 * TICK_S - 0.05, f"at least {2 * TICK_S:g} seconds: 2 to 20 ticks"),
        (20 * TICK_S + 0.5, f"at most {20 * TICK_S:g} seconds: 2 to 20 ticks"),
    ],
)
async def test_a_session_is_of_two_to_twenty_ticks(ensemble: ZooKeeperEnsemble, session: float, text: str) -> None:
    """F47."""
    async with ensemble.quorum(session=session).session(next(IDS), b"a" * 16) as refused:
        for _ in range(2):
            with pytest.raises(SettingsError, match=text):
                await refused.acquire()
        assert refused.held_until == 0.0


async def test_a_holder_outlives_a_member_and_with_two_lost_nobody_gets_the_lock(breakable: ZooKeeperEnsemble) -> None:
    """F49."""
    ensemble = breakable
    node_id, leader = next(IDS), ensemble.leader()
    first_lost, second_lost = (member for member in ensemble.members if member is not leader)
    # The one that holds the lock has its connection to the member that is killed.
    first_to_lose = ensemble.quorum(hosts=f"127.0.0.1:{first_lost.port},127.0.0.1:{leader.port}")
    async with first_to_lose.session(node_id, b"a" * 16) as first:
        assert await first.acquire()
        first_lost.stop()
        assert await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
        await trio.sleep(0.4 * SESSION_S)
        assert first.held_until > trio.current_time()
        second_lost.stop()
        await first.lost()
        async with ensemble.quorum(connection_timeout=1.0, retries=0).session(node_id, b"b" * 16) as second:
            with pytest.raises(ConnectionBrokenError):
                await second.acquire()
            assert first.held_until == second.held_until == 0.0
            leader.stop()
            for member in ensemble.members:
                member.start()
            await ensemble.serves()
            # All three were gone, and what they have kept is there.
            assert await got(second)
            assert first.held_until == 0.0
            assert await second.read() == QuorumRecord(epoch=1)
            assert await second.compare_and_set(QuorumRecord(epoch=1), QuorumRecord(epoch=2))
            with pytest.raises(RefusedError):
                await first.compare_and_set(QuorumRecord(epoch=2), QuorumRecord(epoch=66))


async def test_a_holder_outlives_a_member_that_is_stopped(ensemble: ZooKeeperEnsemble) -> None:
    leader = ensemble.leader()
    followers = {member.port: member for member in ensemble.members if member is not leader}
    hosts = ",".join(f"127.0.0.1:{port}" for port in followers)
    async with ensemble.quorum(hosts=hosts, retry_interval=1.0).session(next(IDS), b"a" * 16) as session:
        assert await session.acquire()
        assert isinstance(session, ZooKeeperSession)
        stopped = followers[session.server[1]]
        stopped.send(signal.SIGSTOP)
        try:
            # What is under way to it is asked at the other one, long before the next try without a lock would be.
            assert await session.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
            await trio.sleep(0.4 * SESSION_S)
            assert session.held_until > trio.current_time()
        finally:
            stopped.send(signal.SIGCONT)
    await ensemble.serves()


async def test_a_holder_that_was_stopped_for_longer_than_its_session_stores_nothing(
    ensemble: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """F48, F51."""
    node_id = next(IDS)
    program = tmp_path / "holder.py"
    program.write_text(HOLDER)
    command = [sys.executable, str(program), ensemble.hosts, str(SESSION_S), node_id.hex()]
    holder = started(command)
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert await trio.to_thread.run_sync(holder.stdout.readline) == "held\n"
        async with ensemble.quorum().session(node_id, b"b" * 16) as session:
            # Stopped for less than the part of its session for which a renewal holds, it keeps the lock.
            holder.send_signal(signal.SIGSTOP)
            await trio.sleep(0.15 * SESSION_S)
            holder.send_signal(signal.SIGCONT)
            await trio.sleep(0.2 * SESSION_S)
            assert not await session.acquire()
            holder.send_signal(signal.SIGSTOP)
            began = trio.current_time()
            assert await got(session)
            # Not before the whole session has passed without a sign of life.
            assert trio.current_time() - began > SESSION_S * 2 / 3
            assert await session.compare_and_set(
                QuorumRecord(epoch=1, holder="stopped"), QuorumRecord(epoch=2, holder="next")
            )
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert await trio.to_thread.run_sync(holder.stdout.readline) == "RefusedError 0.0\n"
            assert await session.read() == QuorumRecord(epoch=2, holder="next")
            assert session.held_until > trio.current_time()
    finally:
        holder.kill()
        holder.communicate()


async def test_when_the_leader_is_killed_no_two_hold_the_lock(ensemble: ZooKeeperEnsemble) -> None:
    """The last test of this ensemble, as it has two members afterwards."""
    node_id, both = next(IDS), 0
    async with (
        ensemble.quorum().session(node_id, b"a" * 16) as first,
        ensemble.quorum().session(node_id, b"b" * 16) as second,
        trio.open_nursery() as nursery,
    ):

        async def watch() -> None:
            nonlocal both
            while True:
                both += first.held_until > 0.0 and second.held_until > 0.0
                await trio.sleep(0.001)

        nursery.start_soon(watch)
        assert await got(first)
        assert await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
        ensemble.leader().stop()
        assert not await got(second, within=0.3 * SESSION_S) or not first.held_until
        await ensemble.serves(2)
        await first.release()
        assert await got(second)
        assert await second.compare_and_set(QuorumRecord(epoch=1), QuorumRecord(epoch=2))
        with pytest.raises(RefusedError):
            await first.compare_and_set(QuorumRecord(epoch=2), QuorumRecord(epoch=66))
        assert both == 0
        nursery.cancel_scope.cancel()
