"""``broker.drain``: all that a node holds goes to another node, which is its successor; cut anywhere, it goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from meshq import (
    AddressFullError,
    BusyError,
    CursorHeldError,
    EventStream,
    MeshqError,
    Message,
    NotActiveError,
    NotFoundError,
    RefusedError,
)
from meshq.node._transfer import LocalTransfer
from meshq.notifications import NodeLeft, Notification
from tests.cluster.kit import Mesh, bodies, until
from tests.cluster.test_transfer import (
    inside,
    known,
    nodes_with_queues,
    numbered,
    recounted,
    taken,
)


async def drained(nodes: Mesh, target: str | None = None) -> Any:
    """Drain the node ``a``."""
    async with nodes.brokers["a"].drain(target) as drain:
        pass
    return drain


async def next_left(events: EventStream[Notification]) -> NodeLeft:
    with trio.fail_after(10):
        async for event in events:
            if isinstance(event, NodeLeft):
                return event
    raise AssertionError("the broker has ended")


async def test_a_drain_leaves_nothing_on_a_node_and_everything_at_the_back_of_the_other_ones_queues() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("b", [b"1", b"3", b"5", b"7", b"9"])
        await nodes.send("b", [b"a1", b"a2"], "r")
        await nodes.send("a", [b"b1", b"b2"], "r")
        await nodes.send("a", [b"2", b"4", b"6", b"8", b"10"])
        async with nodes.client("a") as client:
            await client.send_many("r", [Message(body, durable=False) for body in numbered(5)])
            await client.send("fresh", Message(b"made there", duplicate_id="once"))
        drain = await drained(nodes)
        assert (drain.state, drain.moved, drain.left, drain.queues) == ("transferred", 13, 0, {})
        assert drain.bytes > 0 and inside(nodes).transfer.inventory().empty
        state = await recounted(nodes)
        assert [name for name, (live, _) in state["queues"].items() if live] == []
        assert [rows for _, rows in state["forwarding"].values() if rows] == []
        assert bodies(await taken(nodes, "b")) == [b"1", b"3", b"5", b"7", b"9", b"2", b"4", b"6", b"8", b"10"]
        assert bodies(await taken(nodes, "b", "r")) == [b"a1", b"a2", b"b1", b"b2", *numbered(5)]
        assert bodies(await taken(nodes, "b", "fresh")) == [b"made there"]
        async with nodes.client("b") as client:
            await client.send("fresh", Message(b"again", duplicate_id="once"))
        assert bodies(await taken(nodes, "b", "fresh")) == []


async def test_large_paged_delivered_and_scheduled_messages_move_each_once_and_unchanged() -> None:
    async with nodes_with_queues(broker={"queues": ["q", "r"], "memory_limit": 1 << 20}) as nodes:
        large = b"large" * 30_000
        paged = [b"%d" % number * 3_000 for number in range(100, 300)]
        with suppress(MeshqError):
            async with nodes.client("a") as client, client.consumer("q", window=2) as consumer:
                await client.send("q", large)
                await client.send("q", b"held")
                await client.send("r", Message(b"later", delay=5.0))
                await client.send_many("r", paged)
                assert len(await consumer.receive_many(2, timeout=5)) == 2
                assert nodes.brokers["a"].statistics().paged > 0
                nodes.nursery.start_soon(drained, nodes)
                await trio.sleep_forever()
        await until(lambda: inside(nodes).transfer.inventory().empty)
        found = await taken(nodes, "b")
        assert bodies(found) == [large, b"held"] and all(one.redelivered for one in found)
        assert bodies(await taken(nodes, "b", "r")) == paged
        assert bodies(await nodes.drain("b", "r", quiet=6.0)) == [b"later"]


async def test_the_progress_of_a_drain_goes_from_everything_to_nothing_and_ends() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(1_000))
        seen = []
        async with nodes.brokers["a"].drain() as drain:
            async for progress in drain:
                seen.append(progress)
        assert all(one.target == bytes(nodes.brokers["b"].node_id).hex() for one in seen)
        assert [one.left for one in seen] == sorted((one.left for one in seen), reverse=True)
        assert (seen[-1].state, seen[-1].moved, seen[-1].left, seen[-1].queues) == ("transferred", 1_000, 0, {})
        assert {one.state for one in seen[:-1]} == {"moving"} and seen[0].left == 1_000


async def test_a_node_whose_queues_have_cursors_is_not_drained_and_names_them() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(3))
        async with nodes.client("a") as client, client.cursor("q", "audit"):
            pass
        with pytest.raises(CursorHeldError, match="'audit' of 'q'") as caught:
            await drained(nodes)
        assert (caught.value.queue, caught.value.name) == ("q", "audit")
        async with nodes.client("a") as client, client.cursor("q", "audit") as cursor:
            assert bodies(await cursor.receive_many(3, timeout=5)) == numbered(3)  # type: ignore[arg-type]
        async with nodes.client("a") as client:
            await client.delete_cursor("q", "audit")
        assert (await drained(nodes)).state == "transferred"
        assert bodies(await taken(nodes, "b")) == numbered(3)


async def test_a_node_with_stages_or_a_batch_ledger_is_not_drained_and_names_the_sinks() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as client:
            async with client.stage("nightly", 1) as part:
                await part.send("q", b"1")
            with pytest.raises(BusyError, match="delete_sink them first: 'nightly'"):
                await drained(nodes)
            assert part.stage_id is not None
            await client.commit_batch("nightly", 1, [part.stage_id])
        await until(lambda: not inside(nodes).transfer.inventory().forwarded)
        with pytest.raises(BusyError, match="'nightly'"):
            await drained(nodes)
        async with nodes.client("a") as client:
            await client.delete_sink("nightly")
        assert (await drained(nodes)).state == "transferred"
        assert bodies(await taken(nodes, "b")) == [b"1"]


async def test_a_dry_run_counts_and_changes_nothing() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(20))
        async with nodes.brokers["a"].drain(dry_run=True) as drain:
            found = [progress async for progress in drain]
        assert [(one.state, one.moved, one.left, one.queues) for one in found] == [("looked", 0, 20, {"q": 20})]
        await nodes.send("a", numbered(1, 20))
        assert bodies(await taken(nodes, "a")) == numbered(21)


async def test_without_a_node_that_is_linked_nothing_is_closed_and_the_error_says_so() -> None:
    async with nodes_with_queues("a") as nodes:
        with pytest.raises(NotFoundError, match="no other node is linked that takes over"):
            await drained(nodes)
        await nodes.send("a", [b"taken in"])
        with pytest.raises(NotFoundError, match="no node 'z' is linked"):
            await drained(nodes, "z")


@pytest.mark.parametrize("named", ["name", "connector", "url", "id"])
async def test_a_target_is_named_by_its_name_its_connector_its_url_or_its_id(named: str) -> None:
    async with nodes_with_queues("abc") as nodes:
        await nodes.send("a", numbered(3))
        names = {"url": nodes.urls["c"], "id": bytes(nodes.brokers["c"].node_id).hex()}
        drain = await drained(nodes, names.get(named, "c"))
        assert drain.progress.target == names["id"]
        assert bodies(await taken(nodes, "c")) == numbered(3)


async def test_a_prepared_transaction_goes_along_and_is_decided_at_the_other_node() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as client, client.transaction(xid=b"x") as transaction:
            await transaction.send("q", b"prepared")
            await transaction.prepare()
        assert (await drained(nodes)).state == "transferred"
        assert bodies(await taken(nodes, "b")) == []
        async with nodes.client("b") as client:
            assert await client.recover() == [b"x"]
            await client.commit(b"x")
        assert bodies(await taken(nodes, "b")) == [b"prepared"]


async def test_what_the_other_node_cannot_take_is_named_and_stays() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as here, nodes.client("b") as there:
            await here.create_queue("some")
            await here.send("some", b"any")
            await there.create_queue("some", filter="odd = 1")
            await until(lambda: known(nodes, "some"))
        await nodes.send("a", numbered(3))
        with pytest.raises(RefusedError, match="left are 1 of"):
            await drained(nodes)
        assert bodies(await taken(nodes, "b")) == numbered(3)
        assert inside(nodes).transfer.inventory().messages == {"some": 1}


async def test_the_others_are_told_the_successor_and_give_back_what_waits_for_the_node_that_left() -> None:
    async with nodes_with_queues("abc", mode="strict") as nodes:
        events = nodes.brokers["c"].events()
        await drained(nodes, "b")
        # Dealt to the closed node as to every other one, and stored nowhere there.
        await nodes.send("c", numbered(9))
        await nodes.stop("a")
        left = bytes(nodes.brokers["b"].node_id).hex()
        event = await next_left(events)
        assert (event.node_name, event.reason, event.successor) == ("a", "scaled_down", left)
        await until(lambda: not any(peer.waiting for peer in nodes.known("c").peers()))
        assert sorted(bodies(await taken(nodes, "b") + await taken(nodes, "c"))) == numbered(9)


async def test_a_node_that_stops_in_the_middle_of_its_drain_has_no_successor_and_goes_on_after_its_start() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(1_000))
        events = nodes.brokers["b"].events()
        with pytest.raises(NotActiveError, match="ended in its drain"):
            async with nodes.brokers["a"].drain() as drain:
                async for progress in drain:
                    if progress.moved:
                        await nodes.stop("a")
        assert drain.state == "failed"
        event = await next_left(events)
        assert (event.reason, event.successor) == ("left", "")
        await nodes.ended("a")
        await nodes.start("a")
        await nodes.joined()
        assert (await drained(nodes)).state == "transferred"
        assert bodies(await taken(nodes, "b")) == numbered(1_000)


async def test_a_drain_that_is_cut_by_kills_of_both_nodes_goes_on_and_every_message_is_there_once() -> None:
    async with nodes_with_queues(own={"a": {"data_dir": "/data/a"}, "b": {"data_dir": "/data/b"}}) as nodes:
        await nodes.send("a", numbered(1_500))
        for victim in ("a", "a", "b"):
            try:
                async with nodes.brokers["a"].drain() as drain:
                    async for progress in drain:
                        if progress.moved:
                            await nodes.kill(victim)
                            break
                    if victim == "b":
                        await nodes.start("b")
            except MeshqError:
                assert victim == "a"
            if victim == "a":
                await nodes.ended("a")
                await nodes.start("a")
                await nodes.joined()
        assert drain.state == "transferred"
        assert bodies(await taken(nodes, "b")) == numbered(1_500)


async def test_a_drain_that_is_cut_leaves_the_rest_for_the_next_one() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(1_000))
        with trio.CancelScope() as scope:
            async with nodes.brokers["a"].drain() as drain:
                async for progress in drain:
                    if progress.moved:
                        scope.cancel()
        assert (drain.state, scope.cancelled_caught) == ("cut", True)
        left = inside(nodes).transfer.inventory().messages
        await trio.sleep(0.5)
        assert inside(nodes).transfer.inventory().messages == left != {}
        assert (await drained(nodes)).state == "transferred"
        assert bodies(await taken(nodes, "b")) == numbered(1_000)


async def test_a_target_that_leaves_in_the_middle_is_replaced_unless_it_was_named() -> None:
    async with nodes_with_queues("abc") as nodes:
        await nodes.send("a", numbered(1_000))
        async with nodes.brokers["a"].drain() as drain:
            async for progress in drain:
                if progress.moved and nodes.brokers["b"].state == "active":
                    await nodes.stop("b")
        assert drain.progress.target == bytes(nodes.brokers["c"].node_id).hex()
        there = bodies(await taken(nodes, "c"))
        await nodes.start("b")
        assert sorted(map(int, there + bodies(await taken(nodes, "b")))) == list(range(1_000))


async def test_what_a_target_that_is_down_may_have_stored_goes_nowhere_else() -> None:
    own = {"b": {"data_dir": "/data/b"}}
    async with nodes_with_queues("abc", own=own, cluster={"reconnect_attempts": 1}) as nodes:
        await nodes.send("a", numbered(1_000))
        killed = False
        async with nodes.brokers["a"].drain() as drain:
            async for progress in drain:
                if progress.moved and not killed:
                    killed = True
                    await nodes.kill("b")
                    await until(lambda: "down" in [one.state for one in nodes.known("a").peers()])
                    await trio.sleep(1.0)
                    assert drain.progress.target == bytes(nodes.brokers["b"].node_id).hex()
                    await nodes.start("b")
        assert drain.state == "transferred"
        assert bodies(await taken(nodes, "b")) == numbered(1_000)
        assert bodies(await taken(nodes, "c")) == []


async def test_queues_without_messages_are_made_at_the_other_node_and_subscribers_miss_nothing() -> None:
    both: Any = {"own": {"a": {"data_dir": "/data/a"}, "b": {"data_dir": "/data/b"}}}
    async with nodes_with_queues(**both) as nodes:
        async with nodes.client("a") as client:
            await client.create_queue("quiet", filter="colour = 'red'")
            async with client.subscribe("news", name="mine", durable=True, filter="kind = 'good'"):
                pass
            assert (await client.queue("news::mine")).ready == 0
        await drained(nodes)
        await nodes.stop("a")
        await nodes.kill("b")
        await nodes.start("b")
        async with nodes.client("b") as client:
            assert {"quiet", "news::mine"} <= {*await client.queues()}
            for kind in ("good", "bad"):
                await client.send("news", Message(kind.encode(), properties={"kind": kind}))
                await client.send("quiet", Message(b"red", properties={"colour": "red"}))
            async with client.subscribe("news", name="mine", durable=True, filter="kind = 'good'") as consumer:
                assert bodies(await consumer.receive_many(9, timeout=1.0)) == [b"good"]
        assert bodies(await taken(nodes, "b", "quiet")) == [b"red", b"red"]


async def test_what_is_published_while_the_node_leaves_is_there_for_its_subscriber_at_the_other_node() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as client, client.subscribe("news", name="mine", durable=True):
            pass
        await until(lambda: "news::mine" in [one.queue for one in nodes.known("b").bindings("news")])
        await inside(nodes).transfer.close()
        async with nodes.client("b") as client:
            await client.send("news", b"meanwhile")
            await drained(nodes)
            await client.send("news", b"after")
            await nodes.stop("a")
            await until(lambda: not any(peer.waiting for peer in nodes.known("b").peers()))
            await client.send("news", b"later")
        assert sorted(bodies(await taken(nodes, "b", "news::mine"))) == [b"after", b"later", b"meanwhile"]


async def test_a_queue_that_is_something_else_at_the_other_node_is_named() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as here, nodes.client("b") as there:
            await here.create_queue("one", address="here")
            await there.create_queue("one", address="there")
            await until(lambda: known(nodes, "one"))
        with pytest.raises(RefusedError, match="left are the queue 'one': node b"):
            await drained(nodes)


async def test_an_older_node_that_makes_no_queues_is_told_apart_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshq.broker.session._peering.LINK_FEATURES", "origin counts due queue ids hops prepared")
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as client:
            await client.create_queue("quiet")
        await nodes.send("a", numbered(3))
        with pytest.raises(RefusedError, match=r"node b .* is older, and makes no queues: .* 'quiet'"):
            await drained(nodes)
        assert bodies(await taken(nodes, "a")) == numbered(3)


async def test_what_the_disk_here_has_no_room_for_keeps_nothing_else_and_the_error_does_not_blame_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    move = LocalTransfer.move

    async def full(transfer: LocalTransfer, queue: str, *about: Any) -> int:
        if queue == "q":
            raise AddressFullError("the disk has no room for 9 bytes")
        return await move(transfer, queue, *about)

    monkeypatch.setattr(LocalTransfer, "move", full)
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(3))
        await nodes.send("a", numbered(5), "r")
        with pytest.raises(RefusedError, match="left are 3 of 'q': the disk has no room for 9 bytes"):
            await drained(nodes)
        assert bodies(await taken(nodes, "b", "r")) == numbered(5)
        monkeypatch.undo()
        assert (await drained(nodes)).state == "transferred"
        assert bodies(await taken(nodes, "b")) == numbered(3)
