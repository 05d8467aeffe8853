"""A program that listens is told of each failure of a connection once, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from meshq import Client, ConnectionBrokenError, SecurityError, connect
from meshq.abc import Env, NodeDescription, ToldNode
from meshq.client import ClientSettings, ConnectionEvent
from meshq.client.link._connector import ClientTargets, ConnectTarget, TcpTarget
from meshq.client.link._node_book_machine import NodeBook, ToldPlaceRules
from meshq.client.link._targets_plan import FixedTopology, LastFirst
from meshq.endpoint import Endpoint
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import until_attached

TCP = "tcp://127.0.0.1:1"
TWO = "(tcp://127.0.0.1:1,tcp://127.0.0.1:2)?load_balancing=first_element"


class Listener:
    """What a program writes that wants to hear of failures: of each one its end, and the code of that."""

    def __init__(self) -> None:
        self.heard: list[tuple[bool, str]] = []

    async def listen(self, client: Client, *, task_status: trio.TaskStatus[None]) -> None:
        events = client.events()
        task_status.started()
        async for event in events:
            self.take(event)

    def take(self, event: ConnectionEvent) -> None:
        if event.failed_over is not None:
            self.heard.append((event.failed_over, event.code))


def nodes_of(names: str) -> list[FakeNode]:
    return [FakeNode(name=name, node_id=name.encode() * 16) for name in names]


async def heard_of(client: Client, act: Callable[[], Any]) -> list[tuple[bool, str]]:
    """What a listener hears while something happens to the client, and until it is closed."""
    listener = Listener()
    async with trio.open_nursery() as nursery:
        with suppress(ConnectionBrokenError, SecurityError):
            async with client:
                await nursery.start(listener.listen, client)
                await act()
    return listener.heard


async def test_a_short_cut_is_one_failure_and_the_session_goes_on() -> None:
    (node,) = nodes_of("a")
    env, _ = fake_env(node)
    client = connect(TCP, env=env)

    async def cut_twice() -> None:
        for number in (2, 3):
            node.cut()
            await until_attached(client, number)

    assert await heard_of(client, cut_twice) == [(True, "failover")] * 2
    assert client.statistics().resumed == 2


async def test_a_failover_to_another_node_is_one_failure_that_ended_well() -> None:
    nodes = nodes_of("ab")
    env, _ = fake_env(*nodes)
    client = connect(TWO, env=env)

    async def lose() -> None:
        nodes[0].up = False
        nodes[0].cut()
        await until_attached(client, 2)

    assert await heard_of(client, lose) == [(True, "failover")]
    assert client.statistics().node_name == "b"


@pytest.mark.parametrize("attempts", [0, 1, 5])
async def test_a_failure_without_another_node_is_told_once_as_given_up(attempts: int) -> None:
    (node,) = nodes_of("a")
    env, _ = fake_env(node)

    async def lose() -> None:
        node.up = False
        node.cut()
        await trio.sleep_forever()

    client = connect(TCP, env=env, reconnect_attempts=attempts)
    assert await heard_of(client, lose) == [(False, "disconnect")]


async def test_a_failure_that_ends_at_a_node_that_does_not_believe_the_client_is_told_once_as_given_up() -> None:
    (node,) = nodes_of("a")
    env, _ = fake_env(node)

    async def lose() -> None:
        node.mechanisms = ("scram-sha-256",)
        node.cut()
        await trio.sleep_forever()

    assert await heard_of(connect(TCP, env=env), lose) == [(False, "disconnect")]


async def test_what_is_no_end_of_a_failure_says_neither() -> None:
    (node,) = nodes_of("a")
    env, _ = fake_env(node)
    client = connect(TCP, env=env)
    events = client.events()
    async with client:
        node.up = False
        node.cut()
        seen = [await events.__anext__(), await events.__anext__()]
    assert [(event.code, event.failed_over) for event in seen] == [("connected", None), ("disconnect", None)]


# -- nodes that a client was told of


def client_that_was_told(env: Env, **settings: Any) -> Client:
    """A client whose list has one node, and whose factory was told of two."""

    def connector(endpoint: Endpoint) -> ConnectTarget:
        return TcpTarget(endpoint, env, insecure=False)

    book = NodeBook(ToldPlaceRules(schemes=frozenset({"tcp"}), insecure=False))
    about = [
        NodeDescription(node_id=name.encode() * 16, name=name, primary=f"tcp://127.0.0.1:{port}")
        for port, name in enumerate("abc", 1)
    ]
    book.told([ToldNode(about=one, distance=int(one.name != "a")) for one in about])
    topology = FixedTopology((Endpoint("tcp", "127.0.0.1", 1),))
    targets = ClientTargets(topology=topology, policy=LastFirst(), connector=connector, book=book)
    return Client(targets, ClientSettings.build(settings), env)


async def test_a_told_node_that_does_not_believe_the_client_is_passed_over_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = nodes_of("abc")
    nodes[1].mechanisms = ("scram-sha-256",)
    env, _ = fake_env(*nodes)
    client = client_that_was_told(env)

    async def lose() -> None:
        nodes[0].up = False
        nodes[0].cut()
        await until_attached(client, 2)

    assert await heard_of(client, lose) == [(True, "failover")]
    assert client.statistics().node_name == "c"
    (record,) = [one for one in caplog.records if getattr(one, "event", "") == "told_node_refused"]
    assert record.levelname == "WARNING" and "tcp://127.0.0.1:2" in record.message


async def test_a_listed_node_that_does_not_believe_the_client_ends_it_though_others_might() -> None:
    nodes = nodes_of("abc")
    nodes[0].mechanisms = ("scram-sha-256",)
    env, _ = fake_env(*nodes)
    with pytest.raises(SecurityError):
        async with client_that_was_told(env):
            pass
