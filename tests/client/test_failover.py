"""What a lost link does: the table of the public face, row by row, against a node that is cut and restarted."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq.client import connect
from meshq.errors import (
    NotFoundError,
    StaleDeliveryError,
    UnblockedError,
)
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, cut_off, until, until_attached

TCP = "tcp://127.0.0.1:1"


# -- within the TTL on the same node: nothing is lost, nothing comes twice


async def test_a_session_is_resumed_and_a_send_in_flight_is_confirmed_once(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.confirms = False
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"x")
        await wait_all_tasks_blocked()
        node.cut()
        await until_attached(client, 2)
        assert not result.done
        node.release()
        await until(lambda: result.done)
        assert result.error is None
    assert node.bodies == [b"x"]
    assert client.statistics().resumed == 1
    assert client.statistics().renewed == 0


async def test_a_send_that_never_arrived_is_sent_again_by_the_resume(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await client.send("a", b"1")
        node.streams[-1].silent = True
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"2")
        await wait_all_tasks_blocked()
        assert node.bodies == [b"1"]
        node.cut()
        await until(lambda: result.done)
        assert result.error is None
    assert node.bodies == [b"1", b"2"]
    # By its number in the session, not as something that may have been stored.
    assert [frame.flags & 2 for frame in node.heard if frame.type.name == "SEND"] == [0, 0]


async def test_calls_and_deliveries_survive_a_resume(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1", b"2"])
        first = await consumer.receive()
        assert first is not None
        node.answers = False
        async with trio.open_nursery() as nursery:
            result, confirmed = Result(), Result()
            nursery.start_soon(result.of, client.create_queue, "other")
            nursery.start_soon(first.ack)
            await wait_all_tasks_blocked()
            node.cut()
            node.answers = True
            await until_attached(client, 2)
            nursery.start_soon(confirmed.of, lambda: consumer.ack(confirm=True))
            node.release()
            await until(lambda: result.done and confirmed.done)
            assert result.error is None
            assert confirmed.error is None
        second = await consumer.receive()
        assert second is not None
        assert second.body == b"2"
        await second.ack()
        node.deliver("q", [b"3"])
        third = await consumer.receive()
        assert third is not None
        assert third.body == b"3"
    assert node.settled == [("ack", 1, 1), ("ack", 2, 2)]
    assert client.statistics().resumed == 1


async def test_what_is_done_while_the_link_is_away_goes_out_with_the_resume(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1"])
        delivery = await consumer.receive()
        assert delivery is not None
        network.nodes.clear()
        node.cut()
        await until(lambda: client.statistics().state == "reconnecting")
        await delivery.ack()
        results = [Result() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(results[0].of, client.send, "new", b"x")
            nursery.start_soon(results[1].of, client.create_queue, "other")
            nursery.start_soon(results[2].of, client.consumer("other").__aenter__)
            nursery.start_soon(results[3].of, client.producer("other").__aenter__)
            await trio.sleep(1)
            assert not any(result.done for result in results)
            network.nodes["127.0.0.1", 1] = node
            await until(lambda: all(result.done for result in results))
        assert [result.error for result in results] == [None] * 4
        assert client.statistics().resumed == 1
        assert node.settled == [("ack", 1, 1)]
        assert node.bodies == [b"x"]


# -- a new session on the same node


async def test_unconfirmed_sends_are_resent_to_a_restarted_node_and_stored_once(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await client.send("a", b"1")
        node.confirms = False
        stored, lost = Result(), Result()
        nursery.start_soon(stored.of, client.send, "a", b"2")
        await wait_all_tasks_blocked()
        node.stores = False
        nursery.start_soon(lost.of, client.send, "a", b"3")
        await wait_all_tasks_blocked()
        assert node.bodies == [b"1", b"2"]
        node.confirms = node.stores = True
        node.restart()
        await until(lambda: stored.done and lost.done)
        assert stored.error is None
        assert lost.error is None
    assert node.bodies == [b"1", b"2", b"3"]
    sends = [frame for frame in node.heard if frame.type.name == "SEND"]
    # What the node has stored is not even sent; what it has not goes under its old number, marked.
    assert [(frame.first, frame.flags & 2) for frame in sends] == [(1, 0), (2, 0), (3, 0), (3, 2)]
    assert client.statistics().renewed == 1


async def test_a_pipelined_producer_goes_on_over_a_restart(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.producer("a") as producer:
        for number in range(2_000):
            if number in (700, 1_400):
                node.restart()
            await producer.send(b"%d" % number)
    assert node.bodies == [b"%d" % number for number in range(2_000)]
    assert client.statistics().connected == 3


async def test_with_resend_off_an_unconfirmed_send_is_unknown(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, resend=False) as client, trio.open_nursery() as nursery:
        node.stores = False
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"1")
        await wait_all_tasks_blocked()
        node.stores = True
        node.restart()
        await until(lambda: result.done)
        assert type(result.error) is UnblockedError
        assert result.error.outcome == "unknown"
        await client.send("a", b"2")
    assert node.bodies == [b"2"]


async def test_with_resend_off_what_was_stored_is_still_done(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, resend=False) as client, trio.open_nursery() as nursery:
        node.confirms = False
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"1")
        await wait_all_tasks_blocked()
        node.restart()
        await until(lambda: result.done)
        assert result.error is None


async def test_a_node_that_has_forgotten_the_producer_says_so_and_the_send_is_unknown(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.stores = False
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"1")
        await wait_all_tasks_blocked()
        node.stores = True
        node.refuse = lambda frame: "unknown_producer" if frame.flags & 2 else None
        node.restart()
        await until(lambda: result.done)
        assert type(result.error) is UnblockedError
        assert result.error.outcome == "unknown"


# -- another node


async def test_on_another_node_what_has_a_duplicate_id_is_resent_and_the_rest_is_unknown(node: FakeNode) -> None:
    other = FakeNode(name="m", node_id=b"m" * 16)
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.stores = False
        plain, marked = Result(), Result()
        nursery.start_soon(plain.of, client.send, "a", b"1")
        nursery.start_soon(lambda: marked.of(lambda: client.send("a", b"2", duplicate_id="two")))
        await wait_all_tasks_blocked()
        network.nodes["127.0.0.1", 1] = other
        node.cut()
        await until(lambda: plain.done and marked.done)
        assert type(plain.error) is UnblockedError
        assert plain.error.outcome == "unknown"
        assert marked.error is None
    assert other.bodies == [b"2"]
    assert other.ids == [b"two"]
    assert client.statistics().node_name == "m"


async def test_a_run_that_mixes_both_is_split_on_another_node(node: FakeNode) -> None:
    other = FakeNode(name="m", node_id=b"m" * 16)
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client:
        node.stores = False
        with pytest.raises(UnblockedError) as caught:
            async with client.producer("a") as producer:
                for number in range(6):
                    identity = str(number) if number in (1, 2, 4) else None
                    await producer.send(b"%d" % number, duplicate_id=identity)
                await wait_all_tasks_blocked()
                network.nodes["127.0.0.1", 1] = other
                node.cut()
        assert [error is None for error in caught.value.results] == [False, True, True, False, True, False]
        assert {error.outcome for error in caught.value.results if error is not None} == {"unknown"}
        assert caught.value.outcome == "unknown"
    assert other.bodies == [b"1", b"2", b"4"]
    assert [number for _, _, number, _ in other.stored] == [2, 3, 5]


async def test_a_client_with_two_targets_goes_to_the_other_one(node: FakeNode) -> None:
    other = FakeNode(name="m", node_id=b"m" * 16)
    env, _ = fake_env(node, other)
    async with connect("(tcp://127.0.0.1:1,tcp://127.0.0.1:2)", env=env, load_balancing="first_element") as client:
        assert client.statistics().node_name == "n"
        node.up = False
        node.cut()
        await client.send("a", b"x")
        assert client.statistics().node_name == "m"
    assert other.bodies == [b"x"]


# -- calls, acknowledgements, consumers


async def test_any_other_call_in_flight_is_unknown_when_the_session_is_lost(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1"])
        delivery = await consumer.receive()
        assert delivery is not None
        node.answers = False
        results = [Result() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(results[0].of, client.create_queue, "x")
            nursery.start_soon(results[1].of, client.queue, "x")
            nursery.start_soon(results[2].of, client.flush)
            nursery.start_soon(results[3].of, lambda: delivery.ack(confirm=True))
            await wait_all_tasks_blocked()
            node.answers = True
            node.restart()
            await until(lambda: all(result.done for result in results))
        for result in results:
            assert type(result.error) is UnblockedError
            assert result.error.outcome == "unknown"
        await client.create_queue("x")


async def test_a_call_that_was_not_sent_goes_out_in_the_new_session(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await cut_off(client, node, network)
        result = Result()
        nursery.start_soon(result.of, client.create_queue, "x")
        await trio.sleep(2)
        network.nodes["127.0.0.1", 1] = node
        await until(lambda: result.done)
        assert result.error is None
        assert client.statistics().renewed == 1


async def test_consumers_are_made_again_and_what_was_not_handed_over_is_dropped(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1", b"2"])
        first = await consumer.receive()
        assert first is not None
        node.restart()
        await until_attached(client, 2)
        assert await consumer.receive(timeout=0) is None
        node.deliver("q", [b"1", b"2"], counts=(0, 2))
        again = await consumer.receive_many(10)
        assert [(delivery.body, delivery.redelivered) for delivery in again] == [(b"1", True), (b"2", False)]
        await consumer.ack(*again, confirm=True)
    assert node.settled == [("ack", 1, 2)]


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "confirm"])
async def test_settling_an_old_delivery_is_stale_and_not_done(node: FakeNode, how: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1"])
        delivery = await consumer.receive()
        assert delivery is not None
        node.restart()
        await until_attached(client, 2)
        with pytest.raises(StaleDeliveryError) as caught:
            if how == "confirm":
                await delivery.ack(confirm=True)
            else:
                await getattr(delivery, how)()
        assert caught.value.outcome == "not_done"
    assert node.settled == []


async def test_of_old_and_new_deliveries_the_new_ones_are_settled_and_the_old_ones_listed(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1", b"2"])
        old = await consumer.receive_many(10)
        node.restart()
        await until_attached(client, 2)
        node.deliver("q", [b"1", b"2", b"3"])
        new = await consumer.receive_many(10)
        with pytest.raises(StaleDeliveryError, match="2 of 5") as caught:
            await consumer.ack(*old, *new, confirm=True)
        assert [type(error) for error in caught.value.results] == [StaleDeliveryError] * 2 + [type(None)] * 3
    assert node.settled == [("ack", 1, 3)]


async def test_an_ack_gathered_before_the_loss_is_dropped_by_a_new_session(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1", b"2"])
        first, second = await consumer.receive_many(2)
        await cut_off(client, node, network)
        await first.ack()
        async with trio.open_nursery() as nursery:
            result = Result()
            nursery.start_soon(result.of, lambda: second.ack(confirm=True))
            await trio.sleep(1)
            network.nodes["127.0.0.1", 1] = node
            await until(lambda: result.done)
        # It was never sent, so it is known what became of it.
        assert type(result.error) is StaleDeliveryError
        assert result.error.outcome == "not_done"
    assert node.settled == []


async def test_a_queue_that_is_gone_after_the_loss_ends_its_consumer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        with pytest.raises(NotFoundError):
            async with client.consumer("q"):
                node.refuse_call = lambda operation: "not_found" if operation == "consume q" else None
                node.restart()
                await trio.sleep(10)
        await client.send("a", b"the client goes on")


async def test_an_address_that_is_refused_after_the_loss_ends_its_producer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        with pytest.raises(NotFoundError):
            async with client.producer("a") as producer:
                await producer.send(b"1")
                await producer.flush()
                node.refuse_call = lambda operation: "not_found" if operation == "produce a" else None
                node.restart()
                await trio.sleep(10)
        node.refuse_call = lambda operation: None
        await client.send("a", b"the client goes on")


async def test_acks_of_a_consumer_that_closes_while_the_link_is_away_go_out_with_the_resume(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.consumer("q") as consumer, trio.open_nursery() as nursery:
            node.deliver("q", [b"1", b"2"])
            first = await consumer.receive()
            assert first is not None
            network.nodes.clear()
            node.cut()
            await until(lambda: client.statistics().state == "reconnecting")
            await first.ack()
            nursery.start_soon(consumer.close)
            await trio.sleep(1)
            network.nodes["127.0.0.1", 1] = node
        assert client.statistics().resumed == 1
    assert node.settled == [("ack", 1, 1)]
    assert node.left == [(1, 2)]
