"""What every call of a client raises when its answer does not come: one rule for all of them, told by their class.

The calls are those whose docstring says ``see the class``, and ``flush``; a new one is among them by itself.
"""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq.client import Client, connect
from meshq.errors import CallTimeoutError, ClosedError, ConnectionBrokenError, MeshqError, UnblockedError
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until
from tests.documented_errors import pairs
from tests.node.all_calls import CALLS
from tests.node.ground import Ground

TCP = "tcp://127.0.0.1:1"
#: Every call that has an answer of its own and is sent once.
ASKING = sorted({pair.callable for pair in pairs() if pair.see == "Client"} | {"Client.flush"})
MAKE = {name: call.make for call in CALLS for name in call.name.split()}

every_call = pytest.mark.parametrize("name", ASKING)


async def ask(name: str, client: Client) -> None:
    """Make a call: the fake node needs nothing to be prepared."""
    await MAKE[name](cast(Ground, _OnlyClient(client)), None)


class _OnlyClient:
    """All of the ground that these calls stand on."""

    def __init__(self, client: Client) -> None:
        self.client = client


def said(error: MeshqError | None, kind: type[MeshqError], outcome: str, text: str) -> None:
    """The error is of exactly this kind, says what became of the call, and what has happened."""
    assert type(error) is kind, error
    assert error.outcome == outcome
    assert text in str(error)


#: What calls of several operations ask first.
FIRST = {"cluster_queue": "cluster_nodes"}


def operation(name: str) -> str:
    called = name.partition(".")[2]
    return FIRST.get(called, called)


@every_call
async def test_a_call_that_is_not_answered_in_time_is_unknown(node: FakeNode, name: str) -> None:
    env, _ = fake_env(node)
    node.answers = False
    async with connect(TCP, env=env, call_timeout=2) as client:
        with pytest.raises(CallTimeoutError) as caught:
            await ask(name, client)
        said(caught.value, CallTimeoutError, "unknown", f"{operation(name)} was not answered in time")


@pytest.mark.parametrize("connected", [True, False])
async def test_a_flush_has_its_time_also_while_sends_are_in_line_before_it(node: FakeNode, connected: bool) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env, call_timeout=2, call_failover_timeout=3) as client:
        if connected:
            node.answers = False
        else:
            network.nodes.clear()
            node.cut()
            await until(lambda: client.statistics().state == "reconnecting")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            sends = [Result() for _ in range(2)]
            for number, result in enumerate(sends):
                nursery.start_soon(result.of, client.send, f"a{number}", b"1")
            await wait_all_tasks_blocked()
            with pytest.raises(CallTimeoutError) as caught:
                await client.flush()
        said(caught.value, CallTimeoutError, "unknown", "flush was not answered in time")
        assert trio.current_time() - began < 4
        assert [type(result.error) for result in sends] == [CallTimeoutError] * 2
        # What was waited for comes later, and nobody minds.
        network.nodes["127.0.0.1", 1] = node
        node.answers = True
        node.restart()
        await client.flush()


@every_call
async def test_a_call_that_finds_no_connection_in_time_is_not_done(node: FakeNode, name: str) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env, call_timeout=2) as client:
        network.nodes.clear()
        node.cut()
        await until(lambda: client.statistics().state == "reconnecting")
        with pytest.raises(CallTimeoutError) as caught:
            await ask(name, client)
        said(caught.value, CallTimeoutError, "not_done", f"{operation(name)} found no connection in time")
        network.nodes["127.0.0.1", 1] = node


@every_call
async def test_a_call_whose_session_is_lost_is_unknown_and_the_next_one_is_answered(node: FakeNode, name: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, ask, name, client)
        await wait_all_tasks_blocked()
        node.answers = True
        node.restart()
        await until(lambda: result.done)
        said(result.error, UnblockedError, "unknown", f"{operation(name)} was cut off: its session was lost")
        await client.create_queue("q")


@every_call
async def test_when_the_connection_is_given_up_a_call_under_way_is_unknown_and_a_later_one_not_done(
    node: FakeNode, name: str
) -> None:
    env, network = fake_env(node)
    result = Result()
    with pytest.raises(ConnectionBrokenError):
        async with connect(TCP, env=env, reconnect_attempts=1) as client, trio.open_nursery() as nursery:
            node.answers = False
            nursery.start_soon(result.of, ask, name, client)
            await wait_all_tasks_blocked()
            network.nodes.clear()
            node.cut()
            await trio.sleep(1_000)
    said(result.error, ConnectionBrokenError, "unknown", "all attempts to connect are used up")
    with pytest.raises(ConnectionBrokenError) as caught:
        await ask(name, client)
    said(caught.value, ConnectionBrokenError, "not_done", "all attempts to connect are used up")


@every_call
async def test_when_the_client_is_closed_a_call_under_way_is_unknown_and_a_later_one_not_done(
    node: FakeNode, name: str
) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, ask, name, client)
        await wait_all_tasks_blocked()
        await client.close()
        await until(lambda: result.done)
        said(result.error, ClosedError, "unknown", "the client is closed")
        with pytest.raises(ClosedError) as caught:
            await ask(name, client)
        said(caught.value, ClosedError, "not_done", "the client is closed")


def test_every_such_call_can_be_made_here() -> None:
    missing = set(ASKING) - MAKE.keys()
    assert not missing, f"add them to tests/node/calls.py: {missing}"
    assert len(ASKING) > 15
