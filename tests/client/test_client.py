"""Sends, calls and what a client says of itself."""

from __future__ import annotations

import pytest
import trio

from meshq import limits
from meshq.client import Client, QueueStatistics, connect
from meshq.errors import (
    AddressFullError,
    ClosedError,
    ConnectionBrokenError,
    NotFoundError,
    SettingsError,
    UsageError,
)
from meshq.message import Message
from meshq.wire import Call, FrameType, header_of
from tests.client._server import FakeNode, fake_env

URLS = pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "inproc://n"])


@URLS
async def test_a_send_returns_when_it_is_confirmed(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    async with connect(url, env=env) as client, trio.open_nursery() as nursery:
        node.confirms = False
        sent = False

        async def send() -> None:
            nonlocal sent
            await client.send("a", b"x", properties={"n": 1}, duplicate_id="d", durable=False)
            sent = True

        nursery.start_soon(send)
        await trio.sleep(10)
        assert node.bodies == [b"x"]
        assert not sent
        node.release()
        await trio.sleep(0.001)
        assert sent
    frame = next(frame for frame in node.heard if frame.type is FrameType.SEND)
    assert frame.flags == 0
    assert node.ids == [b"d"]


async def test_the_messages_of_an_address_are_numbered_by_one_producer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client:
        for body in (b"1", b"2", b"3"):
            await client.send("a", body)
        await client.send("b", b"4")
        await client.send_many("a", [b"5", b"6"])
    assert [(address, number) for address, _, number, _ in node.stored] == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 1),
        ("a", 4),
        ("a", 5),
    ]
    assert len({producer for _, producer, _, _ in node.stored}) == 2
    assert all(len(producer) == 16 for _, producer, _, _ in node.stored)


async def test_producers_of_send_are_few_and_the_oldest_one_leaves_when_it_is_done(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client:
        for number in range(100):
            await client.send(f"a{number}", b"x")
        await trio.sleep(1)
        assert client.statistics().producers == 64
        assert len(node.session.producers) == 64
        # The first one was closed; it begins again with another identity.
        await client.send("a0", b"y")
        await client.send("a99", b"z")
    producers = [producer for address, producer, _, _ in node.stored if address == "a0"]
    assert len(producers) == len(set(producers)) == 2


async def test_a_producer_of_send_that_is_busy_leaves_only_when_it_is_done(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client, trio.open_nursery() as nursery:
        node.confirms = False
        for number in range(70):
            nursery.start_soon(client.send, f"a{number}", b"x")
        await trio.sleep(1)
        assert client.statistics().producers == 70
        node.release()
        await trio.sleep(1)
        node.confirms = True
        # The next producer that is opened finds them done.
        await client.send("b", b"x")
        assert client.statistics().producers == 64
    assert len(node.bodies) == 71


@URLS
async def test_many_messages_are_one_frame_if_they_fit_and_several_if_not(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    big = bytes(100_000)
    async with connect(url, env=env) as client:
        await client.send_many("a", [])
        await client.send_many("a", [b"x"] * 256)
        await client.send_many("a", [b"x"] * 257)
        await client.send_many("a", [big] * 5)
        await client.send_many("a", [Message(b"1"), Message(b"2", durable=False), b"3"])
        await client.send_many("a", (b"%d" % n for n in range(2)))
        await client.send_many("a", [bytes(limits.MESSAGE_BYTES_MAX)])
    counts = [(frame.count, frame.flags) for frame in node.heard if frame.type is FrameType.SEND]
    assert counts == [(256, 4), (256, 4), (1, 4), (2, 4), (2, 4), (1, 4), (1, 4), (1, 0), (1, 4), (2, 4), (1, 4)]


async def test_messages_carry_what_they_were_given(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client:
        await client.send_many(
            "a", [b"0", Message(b"1", duplicate_id="one"), Message(b"2", properties={"n": 2}, duplicate_id=b"two")]
        )
    assert node.ids == [b"", b"one", b"two"]


async def test_an_error_about_many_lists_them_all(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client:
        node.refuse = lambda frame: "address_full" if frame.first == 257 else None
        with pytest.raises(AddressFullError, match="256 of 600 messages") as caught:
            await client.send_many("a", [b"x"] * 600)
        failed = [error is not None for error in caught.value.results]
        assert failed == [False] * 256 + [True] * 256 + [False] * 88
        assert caught.value.outcome == "unknown"
        node.refuse = lambda frame: "address_full"
        with pytest.raises(AddressFullError) as caught:
            await client.send_many("a", [b"x"] * 3)
        assert len(caught.value.results) == 3
        assert caught.value.outcome == "not_done"


@pytest.mark.parametrize(
    ("name", "error"), [("address_full", AddressFullError), ("usage", UsageError), ("not_found", NotFoundError)]
)
async def test_a_send_that_is_refused_says_why_and_the_next_one_goes_on(
    node: FakeNode, name: str, error: type[Exception]
) -> None:
    env, _ = fake_env(node)
    async with connect("tcp://127.0.0.1:1", env=env) as client:
        node.refuse = lambda frame: name
        with pytest.raises(error) as caught:
            await client.send("a", b"x")
        assert caught.value.outcome == "not_done"  # type: ignore[attr-defined]
        node.refuse = lambda frame: None
        await client.send("a", b"y")
    assert node.bodies == [b"y"]


async def test_an_address_that_is_refused_is_asked_for_again_by_the_next_send(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("tcp://127.0.0.1:1", env=env) as client:
        node.refuse_call = lambda operation: "usage" if operation == "produce a" else None
        for _ in range(2):
            with pytest.raises(UsageError, match="produce a is refused"):
                await client.send("a", b"x")
        node.refuse_call = lambda operation: None
        await client.send("a", b"y")
    assert node.bodies == [b"y"]


async def test_what_is_not_allowed_is_refused_before_anything_is_sent(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client:
        before = len(node.heard)
        for keywords in (
            {"priority": 10},
            {"ttl": -1},
            {"delay": "1"},
            {"group": b"g"},
            {"durable": "yes"},
            {"duplicate_id": ""},
            {"properties": {"a": []}},
            {"reply_to": "::"},
        ):
            with pytest.raises(SettingsError):
                await client.send("a", b"x", **keywords)  # type: ignore[arg-type]
        for address in ("", "a::", "a\n", 7, ["a"], None):
            with pytest.raises(SettingsError):
                await client.send(address, b"x")  # type: ignore[arg-type]
            with pytest.raises(SettingsError):
                client.producer(address)  # type: ignore[arg-type]
            with pytest.raises(SettingsError):
                client.consumer(address)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await client.send("a", "text")  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await client.send("a", 7)  # type: ignore[arg-type]
        for messages in (b"x", "x", Message(b"x"), [b"x", "y"], [b"x", 7]):
            with pytest.raises(SettingsError):
                await client.send_many("a", messages)  # type: ignore[arg-type]
        for keywords in (
            {"filter": "a == 1"},
            {"filter": 1},
            {"filter": ""},
            {"browse": 1},
            {"browse": True, "priority": 1},
            {"browse": True, "exclusive": True},
            {"priority": 128},
            {"priority": -129},
            {"priority": True},
            {"exclusive": 1},
            {"window": 0},
            {"window": 1.5},
            {"window_bytes": 0},
            {"window_bytes": 2**31},
            {"ack": "never"},
        ):
            with pytest.raises(SettingsError):
                client.consumer("q", **keywords)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            client.producer("a", window=0)
        with pytest.raises(SettingsError):
            await client.create_queue("q", filter="a = = 1")
        with pytest.raises(SettingsError):
            await client.create_queue("q", routing="anycats")
        with pytest.raises(SettingsError):
            await client.create_queue("q", durable=1)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await client.create_address("")
        assert len(node.heard) == before
        assert client.statistics().producers == 0


async def test_calls_carry_their_arguments_and_return_their_answers(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.answer_values = {
        "purge_queue": {"removed": 7},
        "queue": {"name": "q", "ready": 3, "routing": "anycast", "something_new": 1},
        "queues": {"queue0": "a", "queue1": "b", "more": False},
    }
    async with connect("tcp://127.0.0.1:1", env=env) as client:
        await client.create_address("m", routing="multicast")
        await client.create_queue("q", address="m", routing="multicast", durable=False)
        await client.create_queue("r")
        await client.delete_queue("q")
        assert await client.purge_queue("q") == 7
        assert await client.queue("q") == QueueStatistics(name="q", ready=3, routing="anycast")
        assert await client.queues() == ["a", "b"]
        await client.flush()
    calls = [header_of(frame, Call) for frame in node.heard if frame.type is FrameType.CALL]
    assert [(call.operation, call.named) for call in calls] == [
        ("create_address", {"name": "m", "routing": "multicast"}),
        ("create_queue", {"name": "q", "address": "m", "routing": "multicast", "durable": False}),
        ("create_queue", {"name": "r", "address": None, "routing": "anycast", "durable": True}),
        ("delete_queue", {"name": "q"}),
        ("purge_queue", {"name": "q"}),
        ("queue", {"name": "q"}),
        ("queues", {"after": ""}),
        ("flush", {}),
    ]


async def test_a_call_that_is_refused_says_why(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.refuse_call = lambda operation: "not_found" if operation == "queue" else None
    async with connect("tcp://127.0.0.1:1", env=env) as client:
        with pytest.raises(NotFoundError) as caught:
            await client.queue("q")
        assert caught.value.outcome == "not_done"


async def test_no_more_calls_are_in_flight_than_a_session_may_have(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.answers = False
    async with connect("tcp://127.0.0.1:1", env=env) as client, trio.open_nursery() as nursery:
        for _ in range(limits.CALLS_MAX + 50):
            nursery.start_soon(client.queue, "q")
        await trio.sleep(1)
        assert node.heard_types().count("CALL") == limits.CALLS_MAX
        node.answers = True
        node.release()
        await trio.sleep(1)
        assert node.heard_types().count("CALL") == limits.CALLS_MAX + 50


async def test_a_cancelled_call_that_was_not_sent_is_never_sent(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect("tcp://127.0.0.1:1", env=env) as client:
        network.nodes.clear()
        node.cut()
        await trio.sleep(1)
        with trio.move_on_after(1):
            await client.create_queue("q")
        with trio.move_on_after(1):
            await client.send("a", b"x")
        with trio.move_on_after(1):
            await client.send_many("a", [b"x", b"y"])
        network.nodes["127.0.0.1", 1] = node
        await trio.sleep(5)
        assert "CALL" not in node.heard_types()
        assert client.statistics().unconfirmed == 0
    assert node.bodies == []


async def test_without_credit_sends_wait_in_their_order(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.credit = 0
    async with connect("tcp://127.0.0.1:1", env=env, call_timeout=2) as client, trio.open_nursery() as nursery:

        async def send_in_turn() -> None:
            for number in range(4):
                nursery.start_soon(client.send, "a", b"%d" % number)
                await trio.sleep(0.1)

        await send_in_turn()
        # Overload is waited out: no timeout runs while nothing may be sent.
        await trio.sleep(100)
        assert node.bodies == []
        node.give_credit(1)
        await trio.sleep(0.1)
        assert node.bodies == [b"0"]
        node.give_credit(300)
        await trio.sleep(0.1)
        assert node.bodies == [b"0", b"1", b"2", b"3"]


async def test_a_send_given_up_without_credit_leaves_no_hole_in_the_numbers(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.credit = 0
    async with connect("tcp://127.0.0.1:1", env=env) as client, trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await client.send("a", b"0")
        nursery.start_soon(client.send, "a", b"1")
        await trio.sleep(1)
        node.give_credit(1000)
        await trio.sleep(1)
        assert client.statistics().unconfirmed == 0
    assert [(number, body) for _, _, number, body in node.stored] == [(1, b"1")]


async def test_runs_wait_while_the_confirmation_window_is_full(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("tcp://127.0.0.1:1", env=env, confirmation_window=4096) as client:
        node.confirms = False
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(client.send, "a", bytes(1_000))
            await trio.sleep(1)
            sent = len(node.bodies)
            assert 3 < sent < 7
            assert client.statistics().kept_bytes > 4096
            assert client.statistics().waiting_runs == 10 - sent
            # The node reports what it has received with whatever it says.
            node.confirms = True
            node.release()
            await trio.sleep(1)
    assert len(node.bodies) == 10


async def test_much_that_comes_in_is_reported_even_if_nothing_goes_out(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("tcp://127.0.0.1:1", env=env, confirmation_window=8192) as client, client.consumer("q"):
        for _ in range(10):
            node.deliver("q", [bytes(1_000)])
            await trio.sleep(0.1)
        assert node.heard_types().count("RECEIVED") >= 3
        assert node.session.outgoing.kept_bytes < 4_000


async def test_flush_waits_for_what_has_no_credit_yet(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.credit = 0
    async with connect("tcp://127.0.0.1:1", env=env) as client, trio.open_nursery() as nursery:
        flushed = False

        async def flush() -> None:
            nonlocal flushed
            await client.flush()
            flushed = True

        nursery.start_soon(client.send, "a", b"x")
        async with client.producer("b") as producer:
            await producer.send(b"y")
            nursery.start_soon(flush)
            await trio.sleep(10)
            assert not flushed
            assert "CALL" not in node.heard_types()
            node.give_credit(1000)
            await trio.sleep(1)
            assert flushed
    types = node.heard_types()
    assert types.index("CALL") > max(index for index, name in enumerate(types) if name == "SEND")


async def test_another_session_is_another_connection(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect("tcp://127.0.0.1:1?client_id=me", env=env) as client, client.session() as other:
        await client.send("a", b"1")
        await other.send("a", b"2")
        assert len(network.dialed) == 2
        assert client.statistics().session != other.statistics().session
        await client.close()
        await other.send("a", b"3")
    assert node.bodies == [b"1", b"2", b"3"]


async def test_a_client_shows_its_state(node: FakeNode) -> None:
    env, network = fake_env(node)
    client = connect("tcp://127.0.0.1:1", env=env)
    assert client.statistics().state == "new"
    async with client:
        assert repr(client) == "<Client connected peer='127.0.0.1:1' session=1 epoch=1>"
        network.nodes.clear()
        node.cut()
        await trio.sleep(1)
        assert client.statistics().state == "reconnecting"
    assert client.statistics().state == "closed"
    assert client.statistics().node_name == "n"
    with pytest.raises(ConnectionBrokenError):
        network.nodes["127.0.0.1", 1] = node
        async with connect("tcp://127.0.0.1:1", env=env, reconnect_attempts=0) as client:
            node.cut()
            await trio.sleep(1)
    assert client.statistics().state == "failed"


async def test_the_label_goes_along(node: FakeNode) -> None:
    from meshq.wire import Hello

    env, _ = fake_env(node)
    async with connect("tcp://127.0.0.1:1?client_id=me", env=env):
        assert header_of(node.heard[0], Hello).label == "me"


async def test_a_client_over_links_of_a_broker_in_this_process(node: FakeNode) -> None:
    env, _ = fake_env()
    async with Client.over(lambda: node.connect_local(""), env=env, call_timeout=1) as client:
        await client.send("a", b"x")
    with pytest.raises(SettingsError):
        Client.over(lambda: node.connect_local(""), env=env, cal_timeout=1)
    with pytest.raises(ClosedError):
        await client.send("a", b"x")


async def test_sends_that_are_confirmed_at_once_still_let_others_run(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client, trio.open_nursery() as nursery:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count)
        for _ in range(640):
            await client.send("a", b"x")
        assert turns >= 8
        nursery.cancel_scope.cancel()
        with pytest.raises(trio.Cancelled):
            for _ in range(64):
                await client.send("a", b"not sent, or sent: but cancelled")
