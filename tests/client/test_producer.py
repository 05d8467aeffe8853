"""Pipelined producers: runs, windows, what fails."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq import limits
from meshq.client import connect
from meshq.errors import AddressFullError, ClosedError, ConnectionBrokenError, SettingsError
from meshq.wire import FLAG_DURABLE, Frame, FrameType
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until

TCP = "tcp://127.0.0.1:1"
URLS = pytest.mark.parametrize("url", [TCP, "inproc://n"])


def runs(node: FakeNode) -> list[Frame]:
    return [frame for frame in node.heard if frame.type is FrameType.SEND]


@URLS
async def test_a_loop_of_sends_makes_full_runs(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    async with connect(url, env=env) as client, client.producer("a") as producer:
        for number in range(10_000):
            await producer.send(b"%d" % number)
    assert node.bodies == [b"%d" % number for number in range(10_000)]
    assert [frame.count for frame in runs(node)] == [256] * 39 + [16]
    assert [frame.first for frame in runs(node)] == list(range(1, 10_001, 256))


async def test_a_run_that_does_not_grow_any_more_goes_out_by_itself(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        for number in range(10):
            await producer.send(b"%d" % number)
        assert node.bodies == []
        await trio.sleep(0.001)
        assert len(node.bodies) == 10
        assert [frame.count for frame in runs(node)] == [10]
        await producer.send(b"x")
        await trio.sleep(0.001)
        assert [frame.count for frame in runs(node)] == [10, 1]


async def test_a_message_now_and_then_goes_out_in_the_next_turn(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        await producer.send(b"0")
        await trio.sleep(0.001)
        turns = []
        for number in range(1, 20):
            await trio.sleep(0.001)
            await producer.send(b"%d" % number)
            turns.append(0)
            while len(node.bodies) <= number:
                await trio.lowlevel.checkpoint()
                turns[-1] += 1
        assert max(turns) <= 2


async def test_a_run_that_grows_slowly_for_ever_goes_out_too(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        for _ in range(100):
            await producer.send(b"x")
            await trio.lowlevel.checkpoint()
        assert len(node.bodies) > 50
        assert len(runs(node)) < 40


async def test_messages_with_and_without_envelopes_share_runs(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        for number in range(300):
            if number % 3:
                await producer.send(b"%d" % number)
            else:
                await producer.send(b"%d" % number, duplicate_id=f"id{number}", properties={"n": number})
    assert node.bodies == [b"%d" % number for number in range(300)]
    assert node.ids == [b"" if number % 3 else b"id%d" % number for number in range(300)]
    assert [frame.count for frame in runs(node)] == [256, 44]


async def test_a_run_is_of_one_durability(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        for number in range(10):
            await producer.send(b"%d" % number, durable=number < 4 or number > 7)
    assert node.bodies == [b"%d" % number for number in range(10)]
    assert [(frame.count, bool(frame.flags & FLAG_DURABLE)) for frame in runs(node)] == [
        (4, True),
        (4, False),
        (2, True),
    ]


async def test_a_run_has_a_bound_in_bytes_and_one_message_always_fits(node: FakeNode) -> None:
    env, _ = fake_env(node)
    sizes = [100_000, 100_000, 100_000, limits.RUN_BYTES_TARGET, 1, 300_000, limits.MESSAGE_BYTES_MAX, 1, 1]
    async with connect(TCP, env=env, confirmation_window=1 << 30) as client, client.producer("a") as producer:
        for size in sizes:
            await producer.send(bytes(size))
        for _ in range(5):
            await producer.send(b"", properties={"x": "y" * 60_000, "z": "y" * 5_000}, duplicate_id="d" * 255)
        await producer.send(bytearray(b"copied"))  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await producer.send(bytes(limits.MESSAGE_BYTES_MAX + 1))
    assert [len(body) for body in node.bodies] == [*sizes, 0, 0, 0, 0, 0, 6]
    assert [frame.count for frame in runs(node)] == [2, 1, 1, 1, 1, 1, 6, 2]


@URLS
async def test_no_more_than_the_window_is_unconfirmed(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    node.confirms = False
    async with connect(url, env=env) as client, client.producer("a", window=1_000) as producer:
        with trio.move_on_after(10) as scope:
            for _ in range(5_000):
                await producer.send(b"x")
        assert scope.cancelled_caught
        assert producer.unconfirmed == len(node.bodies) == 1_000
        node.release()
        await trio.sleep(1)
        assert producer.unconfirmed == 0
        node.confirms = True
        for _ in range(5_000):
            await producer.send(b"x")
    assert len(node.bodies) == 6_000


async def test_a_window_smaller_than_a_run_sends_what_it_has(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.producer("a", window=10) as producer:
            for _ in range(100):
                await producer.send(b"x")
        async with client.producer("b", window=1) as producer:
            for _ in range(5):
                await producer.send(b"x")
    assert len(node.bodies) == 105


async def test_without_credit_a_producer_holds_a_run_and_no_more(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.credit = 0
    async with connect(TCP, env=env) as client, client.producer("a", window=1_000_000) as producer:
        with trio.move_on_after(10) as scope:
            while True:
                await producer.send(bytes(1_000))
        assert scope.cancelled_caught
        assert producer.unconfirmed <= 2 * limits.RUN_MESSAGES_MAX
        node.give_credit(1 << 30)
        await producer.flush()
        assert producer.unconfirmed == 0


async def test_many_tasks_share_a_producer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a", window=300) as producer:

        async def send(task: int) -> None:
            for number in range(500):
                await producer.send(b"%d %d" % (task, number), durable=task != 2)

        async with trio.open_nursery() as nursery:
            for task in range(4):
                nursery.start_soon(send, task)
        await producer.flush()
    assert len(node.bodies) == len(set(node.bodies)) == 2_000
    for task in range(4):
        mine = [int(body.split()[1]) for body in node.bodies if body.startswith(b"%d " % task)]
        assert mine == list(range(500))


async def test_flush_returns_when_everything_taken_is_confirmed(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        await producer.send(b"1")
        await producer.flush()
        assert node.bodies == [b"1"]
        node.confirms = False
        await producer.send(b"2")
        with trio.move_on_after(5) as scope:
            await producer.flush()
        assert scope.cancelled_caught
        assert node.bodies == [b"1", b"2"]
        node.release()
        await producer.flush()


async def test_leaving_the_block_means_that_all_is_confirmed(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.confirms = False
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        left = False

        async def produce() -> None:
            nonlocal left
            async with client.producer("a") as producer:
                await producer.send(b"x")
            left = True

        nursery.start_soon(produce)
        await trio.sleep(10)
        assert not left
        node.release()
        await trio.sleep(1)
        assert left
        assert len(node.left) == 1


async def test_what_was_refused_is_listed_when_the_block_is_left(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.refuse = lambda frame: "address_full" if frame.first == 257 else None
    async with connect(TCP, env=env) as client:
        with pytest.raises(AddressFullError, match=r"256 of [0-9]+ messages") as caught:
            async with client.producer("a") as producer:
                for number in range(800):
                    await producer.send(b"%d" % number)
        # From the first that failed to the last one taken; one of the sends after the refusal has raised.
        results = caught.value.results
        assert [error is not None for error in results[:256]] == [True] * 256
        assert not any(results[256:])
        assert node.bodies == [b"%d" % number for number in [*range(256), *range(512, 256 + len(results))]]
        assert caught.value.outcome == ("unknown" if results[256:] else "not_done")
        assert {error.outcome for error in results if error is not None} == {"not_done"}
        await trio.sleep(0.001)
        assert len(node.left) == 1
        await client.send("a", b"the client goes on")


async def test_the_next_send_says_what_was_refused_and_has_not_taken_its_message(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        node.refuse = lambda frame: "address_full"
        await producer.send(b"1")
        await producer.send(b"2")
        await trio.sleep(1)
        node.refuse = lambda frame: None
        with pytest.raises(AddressFullError) as caught:
            await producer.send(b"3")
        assert len(caught.value.results) == 2
        assert caught.value.outcome == "not_done"
        # It is said once.
        await producer.send(b"4")
        await producer.flush()
    assert node.bodies == [b"4"]


async def test_flush_says_what_was_refused(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        node.refuse = lambda frame: "address_full"
        await producer.send(b"1")
        with pytest.raises(AddressFullError, match="no") as caught:
            await producer.flush()
        assert len(caught.value.results) == 1
        await producer.flush()


async def test_a_message_that_is_not_allowed_is_not_taken_and_the_producer_goes_on(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        await producer.send(b"1")
        for keywords in ({"priority": 10}, {"ttl": -1}, {"delay": "0"}, {"group": ""}, {"durable": 1}):
            with pytest.raises(SettingsError):
                await producer.send(b"x", **keywords)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await producer.send("x")  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await producer.send(b"x", properties={"a": []})  # type: ignore[dict-item]
        await producer.send(b"2")
    assert node.bodies == [b"1", b"2"]


async def test_when_the_client_fails_what_was_unconfirmed_is_listed(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(TCP, env=env, reconnect_attempts=0) as client, client.producer("a") as producer:
            for _ in range(10):
                await producer.send(b"x")
            await producer.flush()
            node.confirms = False
            for _ in range(5):
                await producer.send(b"y")
            await trio.sleep(1)
            await producer.send(b"z")
            node.cut()
            await trio.sleep_forever()
    outcomes = [error.outcome for error in caught.value.results if error is not None]
    assert len(outcomes) == 6
    assert outcomes[:5] == ["unknown"] * 5
    assert caught.value.outcome == "unknown"


async def test_a_cancelled_block_lets_what_was_taken_go_on_its_way(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.confirms = False
    async with connect(TCP, env=env) as client:
        with trio.move_on_after(1):
            async with client.producer("a") as producer:
                for _ in range(10):
                    await producer.send(b"x")
                await trio.sleep_forever()
        assert len(node.bodies) == 10
        assert node.left == []
        node.release()
        await trio.sleep(1)
        # It leaves when the last one is confirmed.
        assert len(node.left) == 1
        assert client.statistics().producers == 0


async def test_sends_that_never_wait_still_let_others_run(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer, trio.open_nursery() as nursery:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count)
        for _ in range(6_400):
            await producer.send(b"x")
        assert turns >= 90
        nursery.cancel_scope.cancel()


async def test_a_producer_shows_its_state(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        producer = client.producer("a")
        assert repr(producer) == "<Producer 'a' closed unconfirmed=0>"
        async with producer:
            await producer.send(b"x")
            assert repr(producer) == "<Producer 'a' open unconfirmed=1>"
            statistics = producer.statistics()
            assert (statistics.sent, statistics.unconfirmed, statistics.state) == (1, 1, "open")
        assert producer.statistics().state == "closed"


async def test_closing_a_producer_ends_the_sends_of_other_tasks_at_once(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.confirms = False
    async with (
        connect(TCP, env=env) as client,
        client.producer("a", window=1) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(b"first")
        second, closed = Result(), Result()
        nursery.start_soon(second.of, producer.send, b"second")
        await wait_all_tasks_blocked()
        nursery.start_soon(closed.of, producer.close)
        await wait_all_tasks_blocked()
        assert isinstance(second.error, ClosedError)
        assert not closed.done
        node.release()
        await until(lambda: closed.done)
        assert closed.error is None
    assert node.bodies == [b"first"]
