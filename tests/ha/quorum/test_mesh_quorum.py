"""A quorum of witnesses keeps the contract of providers, also when witnesses are gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from meshq import BusyError, ConnectionBrokenError, DamagedError, RefusedError, SecurityError, SettingsError
from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode
from meshq.store import Journal
from meshq.testing import QUORUM_CHECKS, MakeQuorum
from tests.ha.quorum.ensemble import ensemble

pytestmark = pytest.mark.slow
ID = b"i" * 16
URLS = [f"tcp://127.0.0.1:{port}" for port in (7700, 7701, 7702)]


@pytest.mark.parametrize("check", QUORUM_CHECKS)
async def test_a_quorum_of_witnesses_conforms(check: Callable[[MakeQuorum], Awaitable[None]]) -> None:
    async with ensemble() as world:
        await check(world.quorum)


async def test_with_one_witness_lost_all_goes_on_and_with_two_lost_nobody_gets_the_lock() -> None:
    """F49."""
    async with ensemble() as world:
        async with world.quorum().session(ID, b"a" * 16) as first:
            assert await first.acquire()
            await world.stop("w0")
            assert await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
            await trio.sleep(5.0)
            assert first.held_until > trio.current_time()
            await world.stop("w1")
            await first.lost()
        async with world.quorum("c1").session(ID, b"b" * 16) as second:
            for _ in range(3):
                with pytest.raises(ConnectionBrokenError, match="2 are needed"):
                    await second.acquire()
                assert second.held_until == 0.0
            await world.start("w1")
            await trio.sleep(4.0)
            assert await second.acquire()
            assert await second.read() == QuorumRecord(epoch=1)


async def test_a_lock_lasts_for_its_session_also_when_the_witnesses_start_anew() -> None:
    """F51: no sooner than the session is a lock free whose holder is not heard of any more."""
    async with ensemble() as world:
        one, other = world.quorum().session(ID, b"a" * 16), world.quorum("c1").session(ID, b"b" * 16)
        async with one as first, other as second:
            assert await first.acquire()
            world.network.partition(["c0"], ["c1", *world.names])
            until = first.held_until
            for name in world.names:
                await world.stop(name)
            for name in world.names:
                await world.start(name)
            began = trio.current_time()
            await trio.sleep(1.0)
            assert not await second.acquire()
            await trio.sleep_until(began + 2.9)
            assert not await second.acquire()
            assert first.held_until == 0.0
            await trio.sleep_until(began + 3.5)
            assert await second.acquire()
            assert until < trio.current_time()


async def test_the_first_claim_of_a_node_id_needs_all_witnesses() -> None:
    async with ensemble() as world:
        await world.stop("w2")
        async with world.quorum().session(ID, b"a" * 16) as session:
            with pytest.raises(ConnectionBrokenError, match="the first claim of a node id needs all of them"):
                await session.acquire()
            await world.start("w2")
            await trio.sleep(0.5)
            assert await session.acquire()


async def test_another_set_of_witnesses_is_refused_with_both_sets_named() -> None:
    async with ensemble() as world:
        async with world.quorum().session(ID, b"a" * 16) as session:
            assert await session.acquire()
        for name in ("w3", "w4"):
            await world.start(name)
        others = ["tcp://w0:7700", "tcp://w3:7700", "tcp://w4:7700"]
        async with world.quorum("c1", servers=others).session(ID, b"b" * 16) as session:
            with pytest.raises(
                RefusedError, match=r"quorum of w0/\w+, w1/\w+, w2/\w+, and this session has answers of w0/"
            ):
                await session.acquire()


async def test_two_urls_of_one_witness_are_refused() -> None:
    async with ensemble() as world:
        await world.start("again", acceptors=["tcp://again:7700"])
        await world.stop("again")
        servers = ["tcp://w0:7700", "tcp://w0:7701", "tcp://w1:7700"]
        await world.stop("w0")
        await world.start("w0", acceptors=["tcp://w0:7700", "tcp://w0:7701"])
        async with world.quorum(servers=servers).session(ID, b"a" * 16) as session:
            await trio.sleep(0.5)
            with pytest.raises(RefusedError, match="are one witness, 'w0'"):
                await session.acquire()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"ensemble": "other"}, RefusedError, "'other' here and 'meshq' there"),
        ({"password": "wrong"}, SecurityError, "another password"),
        ({"user": "nobody"}, SecurityError, "another password"),
        ({"session": 0.9}, SettingsError, "1 to 10 seconds, 2 to 20 ticks of the witness"),
        ({"session": 10.1}, SettingsError, "1 to 10 seconds, 2 to 20 ticks of the witness"),
    ],
    ids=str,
)
async def test_a_session_that_the_witnesses_do_not_take_is_told_why(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with ensemble() as world, world.quorum(**settings).session(ID, b"a" * 16) as session:
        with pytest.raises(error, match=text):
            await session.acquire()
        assert all(not node.statistics().node_ids for node in world.nodes.values())


async def test_namespaces_have_locks_of_their_own() -> None:
    async with ensemble() as world:
        one, other = world.quorum(namespace="one"), world.quorum("c1", namespace="other")
        async with one.session(ID, b"a" * 16) as first, other.session(ID, b"b" * 16) as second:
            assert await first.acquire()
            assert await second.acquire()
        assert world.nodes["w0"].statistics().node_ids == 2
        assert world.nodes["w0"].state == "running"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        *[({"servers": value}, "servers") for value in (URLS[:1], URLS[:2], [*URLS, URLS[0]], [URLS[0]] * 3, URLS[0])],
        ({"servers": ["tcp://a:1", "tcp://b:1", "tcp://c:1"]}, "servers"),
        ({"servers": ["inproc://a", "inproc://b", "inproc://c"]}, "servers"),
        *[({"session": value}, "session") for value in (0.01, 1_201, "18")],
        *[({"session_percent": value}, "session_percent") for value in (0, 91)],
        *[({"retries": value}, "retries") for value in (-1, 1_001, 1.5)],
        ({"connection_timeout": 0}, "connection_timeout"),
        ({"retry_interval": 0}, "retry_interval"),
    ],
    ids=str,
)
def test_a_setting_out_of_its_bounds_is_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        MeshQuorum(settings.pop("servers", URLS), password="x", **settings)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"name": ""}, "name"), ({"tick": 0}, "tick"), ({"tick": 61}, "tick"), ({"acceptors": []}, "acceptors")],
    ids=str,
)
def test_a_setting_of_a_node_out_of_its_bounds_is_refused(settings: dict[str, Any], name: str) -> None:
    given: dict[str, Any] = {"name": "w", "data_dir": "/x", "acceptors": ["tcp://127.0.0.1:0"], "password": "x"}
    with pytest.raises(SettingsError, match=name):
        QuorumNode(**given | settings)


async def test_a_directory_has_one_node_at_a_time() -> None:
    async with ensemble() as world:
        with pytest.raises(BusyError, match="is open already"):
            await world.start("w0", acceptors=["tcp://w0:7800"])


async def test_an_address_that_is_taken_is_named() -> None:
    async with ensemble() as world:
        with pytest.raises(ConnectionBrokenError, match=r"tcp://w0:7700 can't be bound"):
            await world.start("w0", data_dir="/another")


async def test_a_promise_that_can_not_be_read_stops_the_start() -> None:
    async with ensemble() as world:
        await world.stop("w0")
        async with Journal("/quorum", env=world.env("w0")) as journal:
            await journal.append(b"no promise")
        with pytest.raises(DamagedError, match="what a witness has promised"):
            await world.start("w0")


async def test_a_node_in_a_block_says_its_state_and_its_urls() -> None:
    async with ensemble() as world:
        node = QuorumNode(
            "w9", data_dir="/w9", acceptors=["tcp://w9:7700"], password="x", insecure=True, env=world.env("w9")
        )
        assert (node.state, node.urls) == ("new", [])
        async with node:
            assert (node.state, node.urls) == ("running", ["tcp://w9:7700"])
        assert node.state == "stopped"


def test_no_password_is_shown() -> None:
    assert "secret" not in repr(MeshQuorum(URLS, password="secret"))
