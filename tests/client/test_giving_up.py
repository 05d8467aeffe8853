"""Nodes that end a connection, and clients that give up."""

from __future__ import annotations

import logging
import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq.client import connect
from meshq.errors import (
    CallTimeoutError,
    ClosedError,
    ConnectionBrokenError,
    MeshqError,
    RemoteProtocolError,
)
from meshq.wire import BY_NAME, Attached, Authenticated, Frame, FrameType, Refuse, Welcome, encode_map
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, cut_off, until, until_attached

TCP = "tcp://127.0.0.1:1"


# -- the other side ends it


@pytest.mark.parametrize("name", ["stopping", "not_active", "too_many_sessions", "journal_broken", "silent"])
async def test_a_node_that_goes_away_is_come_back_to(node: FakeNode, name: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        node.connections[-1].close(name, "for now")
        await until_attached(client, 2)
        await client.send("a", b"x")
    assert node.bodies == [b"x"]


async def test_a_session_that_was_taken_over_is_taken_back(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        node.connections[-1].close("session_taken", "elsewhere")
        await until_attached(client, 2)
        assert client.statistics().resumed == 1


@pytest.mark.parametrize("resumed", [True, False])
async def test_what_a_stopping_node_does_not_open_is_opened_by_its_successor(node: FakeNode, resumed: bool) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.refuse_call = lambda operation: "not_active"
        results = [Result() for _ in range(3)]
        nursery.start_soon(results[0].of, client.consumer("q").__aenter__)
        nursery.start_soon(results[1].of, client.producer("a").__aenter__)
        nursery.start_soon(results[2].of, client.send, "a", b"x")
        await trio.sleep(1)
        assert not any(result.done for result in results)
        node.refuse_call = lambda operation: None
        node.cut(forget=not resumed)
        await until(lambda: all(result.done for result in results))
        assert [result.error for result in results] == [None] * 3
        assert client.statistics().resumed == resumed
    assert node.bodies == [b"x"]


async def test_what_a_stopping_node_refuses_goes_to_its_successor(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.refuse = lambda frame: "stopping"
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"x")
        await wait_all_tasks_blocked()
        assert not result.done
        node.refuse = lambda frame: None
        node.restart()
        await until(lambda: result.done)
        assert result.error is None
    assert node.bodies == [b"x"]


async def test_what_a_stopping_node_refuses_goes_out_again_if_the_session_is_resumed(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.refuse = lambda frame: "stopping"
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"x")
        await wait_all_tasks_blocked()
        node.refuse = lambda frame: None
        node.cut()
        await until(lambda: result.done)
        assert result.error is None
        assert client.statistics().resumed == 1
    assert node.bodies == [b"x"]


async def test_what_a_stopping_node_refused_goes_before_what_waits_behind_it(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.credit = 1
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.refuse = lambda frame: "stopping"
        nursery.start_soon(client.send, "a", b"1")
        await trio.sleep(1)
        nursery.start_soon(client.send, "a", b"2")
        await trio.sleep(1)
        node.refuse = lambda frame: None
        node.cut()
        await until_attached(client, 2)
        assert client.statistics().waiting_runs == 2
        node.give_credit(1_000)
    assert [(number, body) for _, _, number, body in node.stored] == [(1, b"1"), (2, b"2")]


@pytest.mark.parametrize("name", ["bad_number", "illegal_frame", "bad_checksum"])
async def test_a_node_that_accuses_us_of_a_violation_ends_the_client(node: FakeNode, name: str) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError) as caught:
        async with connect(TCP, env=env):
            node.connections[-1].close(name, "you did")
            await trio.sleep(10)
    assert caught.value.refusal == name


async def test_a_node_that_breaks_the_protocol_is_told_so_and_ends_the_client(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError) as caught:
        async with connect(TCP, env=env):
            node.streams[-1].arrive(b"x" * 100)
            await trio.sleep(10)
    assert caught.value.refusal == "bad_magic"
    assert node.heard_types()[-1] == "CLOSE"


async def test_a_connection_that_ends_inside_a_frame_is_only_lost(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        node.streams[-1].arrive(b"MQ\x01")
        node.streams[-1].end()
        await until_attached(client, 2)
        await client.send("a", b"x")
    # Dialed anew, and not given up as after a broken rule.
    assert node.heard_types().count("HELLO") == 2


# -- giving up


async def test_when_the_attempts_are_used_up_everything_fails(node: FakeNode) -> None:
    env, network = fake_env(node)
    results = [Result() for _ in range(5)]
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(TCP, env=env, reconnect_attempts=3) as client, trio.open_nursery() as nursery:
            await client.send("a", b"1")
            node.stores = node.answers = False
            nursery.start_soon(results[0].of, client.send, "a", b"2")
            nursery.start_soon(results[1].of, client.queue, "a")
            await wait_all_tasks_blocked()
            network.nodes.clear()
            started = trio.current_time()
            node.cut()
            await until(lambda: client.statistics().state == "reconnecting")
            nursery.start_soon(results[2].of, client.send, "a", b"3")
            nursery.start_soon(results[3].of, client.send, "b", b"4")
            nursery.start_soon(results[4].of, client.queue, "a")
            await trio.sleep(1_000)
    assert trio.current_time() - started < 1
    assert isinstance(caught.value.__cause__, ConnectionBrokenError)
    outcomes = [(type(result.error), result.error.outcome) for result in results if result.error is not None]
    unknown, not_done = (ConnectionBrokenError, "unknown"), (ConnectionBrokenError, "not_done")
    assert outcomes == [unknown, unknown, not_done, not_done, not_done]
    with pytest.raises(ConnectionBrokenError):
        await client.send("a", b"5")


async def test_without_reconnecting_a_loss_is_final(node: FakeNode) -> None:
    env, network = fake_env(node)
    with pytest.raises(ConnectionBrokenError):
        async with connect(TCP, env=env, reconnect_attempts=0) as client:
            node.cut()
            await trio.sleep_forever()
    assert len(network.dialed) == 1
    assert client.statistics().state == "closed" or client.statistics().state == "failed"


async def test_a_first_connection_that_can_not_be_made_says_why(node: FakeNode) -> None:
    env, network = fake_env()
    with pytest.raises(ConnectionBrokenError, match="can't be reached") as caught:
        async with connect(TCP, env=env):
            pytest.fail("there is no node")
    assert caught.value.outcome == "not_done"
    assert len(network.dialed) == 1


async def test_the_first_connection_is_tried_as_often_as_allowed() -> None:
    env, network = fake_env()
    started = trio.current_time()
    with pytest.raises(ConnectionBrokenError):
        async with connect(
            "(tcp://127.0.0.1:1,tcp://127.0.0.1:2)?initial_connect_attempts=3", env=env, load_balancing="first_element"
        ):
            pytest.fail("there is no node")
    assert [port for _, _, port in network.dialed] == [1, 2, 1, 2, 1, 2]
    assert [round(at - started, 3) for at, _, _ in network.dialed] == [0, 0, 0.1, 0.1, 0.3, 0.3]


async def test_a_node_that_starts_later_is_found(node: FakeNode) -> None:
    env, network = fake_env()

    async def start() -> None:
        await trio.sleep(5)
        network.nodes["127.0.0.1", 1] = node

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        async with connect(TCP, env=env, initial_connect_attempts=100) as client:
            await client.send("a", b"x")
    assert node.bodies == [b"x"]


async def test_a_client_that_is_closed_while_it_connects_says_so_where_it_was_entered() -> None:
    env, network = fake_env()
    client = connect(TCP, env=env, initial_connect_attempts=math.inf)

    async def enter() -> None:
        with pytest.raises(ClosedError, match="before it was open") as caught:
            async with client:
                pytest.fail("there is no node")
        assert caught.value.outcome == "not_done"

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            await until(lambda: len(network.dialed) > 2)
            await client.close()
    assert client.statistics().state == "closed"


async def test_a_node_without_the_one_mechanism_is_refused(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.mechanisms = ("scram",)
    with pytest.raises(MeshqError, match="asks for a user and a password"):
        async with connect(TCP, env=env):
            pytest.fail("not without authentication")


async def test_a_node_that_is_not_active_counts_as_an_attempt(node: FakeNode) -> None:
    env, network = fake_env(node)
    node.unwelcome = "not_active"
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(TCP, env=env, initial_connect_attempts=2):
            pytest.fail("the node is not active")
    assert len(network.dialed) == 2
    assert caught.value.__cause__ is not None


async def test_sends_that_found_no_connection_in_time_leave_nothing(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env, call_failover_timeout=1) as client:
        await client.send("a", b"1")
        network.nodes.clear()
        node.cut()
        await until(lambda: client.statistics().state == "reconnecting")
        for name in ("a", "new"):
            for _ in range(100):
                with pytest.raises(CallTimeoutError) as caught:
                    await client.send(name, b"never")
                assert caught.value.outcome == "not_done"
        assert client.statistics().unconfirmed < 150
        network.nodes["127.0.0.1", 1] = node
        await until_attached(client, 2)
        await client.send("new", b"2")
        assert client.statistics().unconfirmed == 0
    assert node.bodies == [b"1", b"2"]


# -- a broker in the same process


async def test_a_link_within_the_process_is_never_resumed_but_made_anew(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client, trio.open_nursery() as nursery:
        await client.send("a", b"1")
        node.stores = False
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"2")
        await wait_all_tasks_blocked()
        node.stores = True
        for connection in list(node.connections):
            connection.close()
        await until(lambda: result.done)
        assert result.error is None
        assert client.statistics().renewed == 1
    assert node.bodies == [b"1", b"2"]


async def test_a_broker_that_is_not_there_yet_is_waited_for(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.up = False

    async def start() -> None:
        await trio.sleep(5)
        node.up = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        async with connect("inproc://n", env=env, initial_connect_attempts=100) as client:
            await client.send("a", b"x")
    with pytest.raises(ConnectionBrokenError, match="no broker of this process"):
        async with connect("inproc://m", env=env):
            pytest.fail("there is no such broker")


async def test_a_refusal_of_what_was_not_sent_ends_the_client(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError):
        async with connect(TCP, env=env) as client:
            await client.send("a", b"x")
            header = Refuse(messages=1, code=BY_NAME["usage"].number).encode()
            node.session.say(Frame(FrameType.REFUSE, channel=1, first=1, header=header))
            node.flush()
            await trio.sleep(1)


async def test_a_session_resumed_unasked_ends_the_client(node: FakeNode) -> None:
    env, network = fake_env(node)
    node.mute = True

    async def answer() -> None:
        await trio.sleep(1)
        (connection,) = node.connections
        connection.say(Welcome(version=1, node_id=b"n" * 16, node_name="n", mechanisms=("none",)))
        connection.say(Authenticated())
        connection.say(Attached(session=7, key=b"k" * 16, resumed=True))
        connection.flush()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(RemoteProtocolError):
            async with connect(TCP, env=env):
                pytest.fail("it is not ours")
    assert len(network.dialed) == 1


@pytest.mark.parametrize("version", [0, 2])
async def test_a_version_that_we_do_not_speak_ends_the_client(node: FakeNode, version: int) -> None:
    env, _ = fake_env(node)
    node.version = version
    with pytest.raises(RemoteProtocolError) as caught:
        async with connect(TCP, env=env):
            pytest.fail("it is not ours")
    assert caught.value.refusal == "no_common_version"


async def test_what_waited_again_when_another_session_is_lost_keeps_its_order(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.stores = False
        for number in range(4):
            nursery.start_soon(client.send, "a", b"%d" % number)
            await trio.sleep(0.1)
        async with client.producer("b"):
            pass
        # The next session has credit for one run only, and is lost, too.
        node.credit = 1
        node.restart()
        await until_attached(client, 2)
        assert client.statistics().waiting_runs == 3
        node.stores = True
        node.credit = 1 << 40
        node.restart()
        await until_attached(client, 3)
    assert [(number, body) for _, _, number, body in node.stored] == [(n + 1, b"%d" % n) for n in range(4)]


async def test_a_producer_that_closes_while_the_link_is_away_is_not_opened_again(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.producer("a") as producer:
            await producer.send(b"x")
            await producer.flush()
            await cut_off(client, node, network)
        network.nodes["127.0.0.1", 1] = node
        await until_attached(client, 2)
        await trio.sleep(1)
        assert node.session.producers == {}
        assert client.statistics().producers == 0


EVIL = "all well\n2026-11-23 CRITICAL meshq.store: journal erased \x1b[31m"


async def test_a_node_whose_name_is_none_is_refused_without_a_word_of_it(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    env, network = fake_env(node)
    node.mute = True

    async def answer() -> None:
        await trio.sleep(1)
        (connection,) = node.connections
        values = {"version": 1, "node_id": b"n" * 16, "node_name": EVIL, "mechanisms": ["none"]}
        connection.send(Frame(FrameType.WELCOME, header=encode_map(values)))
        connection.say(Authenticated())
        connection.say(Attached(session=7, key=b"k" * 16))
        connection.flush()

    caplog.set_level(logging.INFO, "meshq")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(RemoteProtocolError) as caught:
            async with connect(TCP, env=env):
                pytest.fail("nobody we know")
    assert len(network.dialed) == 1 and caught.value.refusal == "bad_header"
    assert "CRITICAL" not in f"{caught.value} {caplog.text}"


async def test_a_node_writes_no_lines_of_its_own_into_errors_and_logs(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    env, _ = fake_env(node)
    caplog.set_level(logging.INFO, "meshq")
    with pytest.raises(MeshqError) as caught:
        async with connect(TCP, env=env) as client:
            await client.send("a", b"x")
            code = BY_NAME["usage"].number
            node.connections[-1].send(Frame(FrameType.CLOSE, header=encode_map({"code": code, "text": EVIL})))
            node.flush()
            await trio.sleep(1)
    escaped = EVIL.encode("unicode_escape").decode()
    assert escaped in str(caught.value) and str(caught.value).isprintable()
    assert any(escaped in text for text in caplog.messages)
    assert all(text.isprintable() for text in caplog.messages)


@pytest.mark.parametrize(("said", "cause"), [(None, EOFError), ("silent", MeshqError)])
async def test_a_connection_that_the_other_side_has_ended_has_its_end_as_the_cause(
    node: FakeNode, said: str | None, cause: type[BaseException]
) -> None:
    env, _ = fake_env(node)
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(TCP, env=env, reconnect_attempts=0):
            for connection in list(node.connections):
                connection.close(said)
            await trio.sleep(1_000)
    causes = [caught.value.__cause__]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    ended = [error for error in causes if isinstance(error, cause) and type(error) is not ConnectionBrokenError]
    assert ended, causes
