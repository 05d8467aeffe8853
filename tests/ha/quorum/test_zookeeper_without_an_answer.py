"""A session at ZooKeeper whose server stands still: who holds the lock keeps it, by a model of the ensemble."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from kazoo.exceptions import AuthFailedError, ConnectionDropped

from meshq import ConnectionBrokenError, MeshqError, SecurityError, SettingsError, ZooKeeperQuorum
from meshq.abc import QuorumRecord, Threads
from meshq.env import real_env
from meshq.ha.quorum.zookeeper import ZooKeeperSession
from meshq.ha.quorum.zookeeper import _lock_node_machine as zk
from meshq.ha.quorum.zookeeper._kazoo import EnsembleSettings, KazooSession
from tests.ha.quorum.test_zookeeper_quorum import EXAMPLE, PATH, Tree

SESSION_S = 3.0
LEASE_S = SESSION_S * 0.33
ZERO, ONE, TWO = QuorumRecord(), QuorumRecord(epoch=1), QuorumRecord(epoch=2)


class Servers:
    """The way to a model of an ensemble, whose answers may stay away, one after another, or until a moment."""

    def __init__(self, settings: EnsembleSettings, threads: Threads, ended: Callable[[], None]) -> None:
        self.tree = Tree()
        self.refusal: MeshqError | None = None
        self.server = ("", 0)
        self.wrote_at = 0.0
        #: For each question from now on: whether it arrives, and no answer comes.
        self.silent: list[bool] = []
        #: Until then nobody can be connected.
        self.gone_until = 0.0
        #: When something was asked.
        self.asked: list[float] = []

    def start(self) -> None:
        """There is nothing to connect."""

    async def stop(self, seconds: float) -> None:
        self.tree.expire(1)

    async def ask(self, request: zk.Request, *, connect_s: float, answer_s: float) -> zk.Answer:
        began = trio.current_time()
        self.asked.append(began)
        await trio.lowlevel.checkpoint()
        if self.gone_until > began + connect_s:
            await trio.sleep(connect_s)
            raise ConnectionBrokenError("nobody there", outcome="not_done")
        await trio.sleep(max(0.0, self.gone_until - began))
        if self.silent:
            if self.silent.pop(0):
                self.tree.answer(1, request)
            await trio.sleep(answer_s)
            raise ConnectionBrokenError("nothing heard", outcome="unknown")
        if isinstance(request, zk.Write):
            self.wrote_at = trio.current_time()
        return self.tree.answer(1, request)


@asynccontextmanager
async def held(retries: int = 1, retry_interval: float = 1.0) -> AsyncIterator[tuple[ZooKeeperSession, Servers]]:
    """A session that has the lock."""
    quorum = ZooKeeperQuorum(EXAMPLE, session=SESSION_S, retries=retries, retry_interval=retry_interval)
    made: list[Servers] = []

    def servers(settings: EnsembleSettings, threads: Threads, ended: Callable[[], None]) -> Servers:
        made.append(Servers(settings, threads, ended))
        return made[0]

    session = ZooKeeperSession(quorum, PATH, b"a" * 16, real_env(), servers)
    async with trio.open_nursery() as nursery:
        await nursery.start(session.run)
        assert await session.acquire()
        yield session, made[0]
        await session.end()


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("after", [0.0, 0.3, 0.6])
async def test_a_record_under_way_to_a_server_that_stands_still_costs_no_lock(arrives: bool, after: float) -> None:
    async with held() as (session, servers):
        await trio.sleep(after * LEASE_S)
        servers.silent = [arrives]
        began = trio.current_time()
        assert await session.compare_and_set(ZERO, ONE)
        # Not a whole pause later: the next server answers.
        assert trio.current_time() - began < LEASE_S / 2
        assert session.held_until - trio.current_time() > LEASE_S * 0.9
        await trio.sleep(5 * SESSION_S)
        assert session.held_until > trio.current_time()
        assert await session.read() == ONE and len(servers.tree.changed_by) == 1


async def test_a_question_to_a_server_that_stands_still_costs_no_lock_either() -> None:
    async with held() as (session, servers):
        servers.silent = [False]
        assert await session.read() == ZERO
        assert session.held_until - trio.current_time() > LEASE_S * 0.9
        # And what another one has stored is told, with the lock renewed.
        assert await session.compare_and_set(ZERO, ONE)
        servers.silent = [False]
        assert not await session.compare_and_set(ZERO, TWO)
        assert session.held_until - trio.current_time() > LEASE_S * 0.9


async def test_while_nobody_answers_a_holder_asks_again_before_its_lease_ends() -> None:
    async with held(retries=2, retry_interval=0.5) as (session, servers):
        began, servers.asked = trio.current_time(), []
        servers.gone_until = began + 60.0
        with pytest.raises(ConnectionBrokenError):
            await session.compare_and_set(ZERO, ONE)
        # While the lock is held a question follows a twelfth of a lease after one without an answer.
        of_holder = [moment - began for moment in servers.asked if moment < began + LEASE_S]
        gaps = [later - earlier for earlier, later in pairwise(of_holder)]
        assert gaps and max(gaps) <= LEASE_S * (1 / 3 + 1 / 12) + 1e-6
        assert session.held_until == 0.0


async def test_a_short_interval_between_tries_stays_short() -> None:
    async with held(retry_interval=0.001) as (session, servers):
        servers.silent, servers.asked = [False], []
        assert await session.compare_and_set(ZERO, ONE)
        assert servers.asked[1] - servers.asked[0] == pytest.approx(LEASE_S / 3 + 0.001)


def client(**settings: Any) -> KazooSession:
    given = {"session_s": SESSION_S, "connection_timeout_s": 1.0, "retry_interval_s": 1.0, "auth": None, "tls": None}
    return KazooSession(EnsembleSettings(hosts=EXAMPLE, **given | settings), real_env().threads, lambda: None)


def granted(session_s: float) -> Callable[[], tuple[float, float]]:
    """A login at a server that gives a session of that length, as kazoo tells it: two thirds, in milliseconds."""
    return lambda: (session_s * 2_000 / 3, 0.0)


def test_what_a_server_has_refused_counts_until_one_takes_the_session() -> None:
    ensemble = client()

    def refused() -> None:
        raise AuthFailedError

    for login, kind in ((granted(SESSION_S + 1), SettingsError), (granted(SESSION_S - 1), SettingsError)):
        ensemble.login(login)
        assert type(ensemble.refusal) is kind
        ensemble.login(granted(SESSION_S))
        assert ensemble.refusal is None
    # kazoo would connect no more.
    with pytest.raises(ConnectionDropped):
        ensemble.login(refused)
    assert type(ensemble.refusal) is SecurityError
    ensemble.login(granted(SESSION_S))
    assert ensemble.refusal is None


def test_a_server_that_has_said_nothing_is_left_out_once() -> None:
    ensemble, dialed = client(), []

    class Stream:
        def __init__(self, address: tuple[str, int]) -> None:
            dialed.append(address)

        def shutdown(self, how: int) -> None:
            """It is cut."""

    def create(address: tuple[str, int], **_: Any) -> Stream:
        return Stream(address)

    first, second = ("127.0.0.1", 1), ("127.0.0.1", 2)
    ensemble.dial(create, first)
    ensemble.leave()
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.1:1 has just said nothing"):
        ensemble.dial(create, first)
    ensemble.dial(create, first)
    ensemble.leave()
    ensemble.dial(create, second)
    # Whoever takes the session ends that.
    ensemble.login(granted(SESSION_S))
    ensemble.dial(create, first)
    assert dialed == [first, first, second, first]
