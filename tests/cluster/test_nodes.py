"""Three nodes in one process on a clock that jumps: who gets what, and what is left when a node goes and comes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import trio

from meshq import AddressFullError, CallTimeoutError, MeshqError, NotActiveError, NotFoundError, UsageError
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.queue._queue_machine import Queue
from meshq.message import Message
from meshq.settings import AddressSettings, JournalSettings
from tests.cluster.kit import Mesh, bodies, ids, mesh, until

NAMES = ("a", "b", "c")


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def create(nodes: Mesh, *names: str, queue: str = "q") -> None:
    for name in names or NAMES:
        async with nodes.client(name) as client:
            await client.create_queue(queue)


async def settled(nodes: Mesh, *names: str) -> dict[str, int]:
    """What is where when no link has anything to do any more."""
    await trio.sleep(1)
    return await nodes.left(*names)


@pytest.mark.parametrize("turn", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 256, 1_000])
async def test_strict_deals_exactly_in_turn_from_any_start(turn: int, count: int) -> None:
    async with mesh(root="simulated", mode="strict") as nodes:
        await create(nodes)
        await nodes.joined()
        await nodes.send("a", numbered(turn))
        before = await settled(nodes)
        await nodes.send("a", numbered(count))
        after = await settled(nodes)
        got = [after.get(f"{name}/q", 0) - before.get(f"{name}/q", 0) for name in NAMES]
        assert sum(got) == count
        assert max(got) - min(got) <= 1
        # Over all that was ever sent, too: the turn goes on.
        total = [after.get(f"{name}/q", 0) for name in NAMES]
        assert max(total) - min(total) <= 1
        assert sum(after.values()) == turn + count


@pytest.mark.parametrize("mode", ["strict", "on_demand", "off"])
@pytest.mark.parametrize("remote", [0, 1, 3])
@pytest.mark.parametrize("local", [0, 1])
async def test_each_mode_sends_where_it_should_and_leaves_nothing(mode: str, remote: int, local: int) -> None:
    async with mesh("abcd", root="simulated", mode=mode) as nodes:
        await create(nodes, *"abcd")
        await nodes.joined(*"abcd")
        before = nodes.burden()
        got: dict[str, list[bytes]] = {}
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def consume(name: str, *, task_status: trio.TaskStatus[None]) -> None:
                    async with nodes.client(name) as client, client.consumer("q") as consumer:
                        task_status.started()
                        async for delivery in consumer:
                            got.setdefault(name, []).append(delivery.body)
                            await delivery.ack()

                consumers = ["a"] * local + list("bcd")[:remote]
                for name in consumers:
                    await nursery.start(consume, name)
                await nodes.known("a").wait_for(nodes=4, queue="q", consumers=len(consumers), timeout=5)
                await nodes.send("a", numbered(600))
                left = await settled(nodes)
                scope.cancel()
        counts = {name: len(found) for name, found in got.items()}
        counts |= {name: number for key, number in left.items() if (name := key.removesuffix("/q")) and key[1:] == "/q"}
        if mode == "strict":
            assert counts == dict.fromkeys("abcd", 150)
        elif mode == "off" or not consumers:
            assert counts == {"a": 600}
        else:
            assert counts == dict.fromkeys(consumers, 600 // len(consumers))
        # Nothing is in any other queue, and nothing came twice.
        assert all(key.endswith("/q") for key in left)
        seen = [body for found in got.values() for body in found]
        assert len(seen) == len(set(seen))
        assert len(seen) + sum(left.values()) == 600
        for name in "abcd":
            await nodes.drain(name)
        await until(lambda: nodes.burden() == before)


async def test_what_a_message_says_of_itself_survives_the_way() -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await create(nodes, "b")
        await nodes.joined("a", "b")
        # Nobody has the queue here, and nobody may make it.
        sent = [
            Message(
                b"%d" % number,
                properties={"n": number, "s": "ü", "f": 1.5, "b": True, "none": None, "raw": b"\0"},
                correlation_id=f"c{number}",
                duplicate_id=b"d%d" % number if number % 2 else None,
                durable=number % 3 != 0,
            )
            for number in range(40)
        ]
        async with nodes.client("a") as client:
            await client.send_many("q", sent)
            # The same ids again, to the same node: known.
            await client.send("q", b"1", duplicate_id="d1")
        here, there = await nodes.drain("a"), await nodes.drain("b")
        got = {delivery.body: delivery for delivery in [*here, *there]}
        assert len(here) + len(there) == len(got) == 40
        assert {len(here), len(there)} == {20}
        for message in sent:
            found = got[bytes(message.body)]
            assert found.properties == message.properties
            assert (found.correlation_id, found.duplicate_id) == (message.correlation_id, message.duplicate_id)
            assert found.durable == message.durable
            assert found.address == "q"
            assert not found.redelivered
        assert len(ids(got.values())) == 40
        stamps = [delivery.timestamp for delivery in there]
        assert all(min(one.timestamp for one in here) - 5 <= stamp for stamp in stamps)
        assert await nodes.left() == {}


@pytest.mark.parametrize("durable", [True, False])
async def test_the_id_of_a_message_is_that_of_its_sender_and_place_in_its_stream(durable: bool) -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await create(nodes, "a", "b")
        await nodes.joined("a", "b")
        async with nodes.client("a") as client, client.producer("q") as producer:
            for number in range(600):
                await producer.send(b"%d" % number, durable=durable)
            await producer.flush()
        got = [delivery for name in "ab" for delivery in await nodes.drain(name)]
        # A producer's messages are numbered from 1 on, whoever delivers them.
        numbers = {int(delivery.body): delivery.message_id.number for delivery in got}
        assert len(ids(got)) == len(got) == 600
        assert len({delivery.message_id.producer for delivery in got}) == 1
        assert numbers == {number: number + 1 for number in range(600)}
        assert all(delivery.durable == durable for delivery in got)


@pytest.fixture(params=["stopped", "killed"])
def end(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


async def go(nodes: Mesh, end: str, *names: str) -> None:
    await (nodes.stop(*names) if end == "stopped" else nodes.kill(*names))


async def test_messages_wait_for_a_node_that_is_down_and_arrive_once(end: str) -> None:
    async with mesh(root="simulated", mode="strict") as nodes:
        await create(nodes)
        await nodes.joined()
        # A node that leaves in peace has no share any more.
        await nodes.kill("b")
        await nodes.send("a", numbered(900))
        left = await settled(nodes, "a", "c")
        assert left == {"a/q": 300, "c/q": 300, f"a/{nodes.forward('b')}": 300}
        assert [peer.waiting for peer in nodes.known("a").peers()] == [300, 0]
        # The sender goes and comes, too, in peace and without.
        for _ in range(2):
            await go(nodes, end, "a")
            await nodes.start("a")
            await nodes.known("a").wait_for(nodes=2, timeout=5)
            assert await settled(nodes, "a", "c") == left
        await nodes.start("b")
        await nodes.joined()
        assert await settled(nodes) == {"a/q": 300, "b/q": 300, "c/q": 300}
        got = [delivery for name in NAMES for delivery in await nodes.drain(name)]
        assert sorted(bodies(got)) == sorted(numbered(900))
        assert set(ids(got).values()) == {1}
        assert await settled(nodes) == {}


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["a", "b"])
async def test_a_node_that_is_killed_in_the_middle_of_a_stream_loses_and_doubles_nothing(victim: str) -> None:
    small = {"journal": JournalSettings(segment_bytes=64 * 1024)}
    async with mesh(root="simulated", mode="strict", broker=small) as nodes:
        await create(nodes)
        await nodes.joined()
        confirmed: list[bytes] = []
        got: list[bytes] = []
        for cut in range(40):
            sent = [b"%d-%d" % (cut, number) for number in range(40)]
            async with trio.open_nursery() as nursery:

                async def stream(sent: list[bytes] = sent) -> None:
                    try:
                        for start in range(0, 40, 4):
                            await nodes.send("a", sent[start : start + 4])
                            confirmed.extend(sent[start : start + 4])
                    except (MeshqError, BaseExceptionGroup):
                        # Its own node was killed: of what was not confirmed nobody knows.
                        assert victim == "a"

                nursery.start_soon(stream)
                for _ in range(cut * 7):
                    await trio.lowlevel.checkpoint()
                await nodes.kill(victim)
            await nodes.start(victim)
            await nodes.joined()
            if cut % 8 == 7:
                for name in NAMES:
                    got += bodies(await nodes.drain(name))
        for name in NAMES:
            got += bodies(await nodes.drain(name))
        assert len(got) == len(set(got)), "stored twice"
        assert not set(confirmed) - set(got), "lost"
        assert await settled(nodes) == {}


async def test_nobody_touches_the_nodes_own_queues() -> None:
    async with mesh("ab", root="simulated") as nodes:
        await nodes.joined("a", "b")
        forward = nodes.forward("b")
        async with nodes.client("a") as client:
            assert (await client.queue(forward)).ready == 0
            for name in (forward, "$meshq.cluster.mine", "$meshq."):
                for call in (
                    lambda name=name: client.send(name, b"x"),
                    lambda name=name: client.send(f"q::{name}", b"x"),
                    lambda name=name: client.create_queue(name),
                    lambda name=name: client.create_queue("mine", address=name),
                    lambda name=name: client.create_address(name, routing="anycast"),
                    lambda name=name: client.delete_queue(name),
                    lambda name=name: client.purge_queue(name),
                ):
                    with pytest.raises(UsageError, match=r"begin with '\$meshq\.'"):
                        await call()
                with pytest.raises(UsageError, match=r"begin with '\$meshq\.'"):
                    async with client.consumer(name):
                        pass
            assert [name for name in await client.queues() if not name.startswith("$meshq.")] == []
        with pytest.raises(UsageError):
            async with nodes.make("a").__class__("other", data_dir=None, queues=["$meshq.x"], env=nodes.env):
                pass


async def test_a_queue_that_is_deleted_while_the_link_is_down_is_gone_afterwards() -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await create(nodes, "a", "b")
        await nodes.joined("a", "b")
        await nodes.kill("b")
        # Without its cluster connection, so that nobody hears of it.
        nodes.own["b"] = {"services": []}
        await nodes.start("b")
        async with nodes.client("b") as client:
            await client.delete_queue("q")
        await nodes.stop("b")
        await nodes.send("a", numbered(10))
        assert (await nodes.left("a"))[f"a/{nodes.forward('b')}"] == 5
        del nodes.own["b"]
        nodes.broker["address_settings"] = {"#": AddressSettings(auto_create_queues=False)}
        await nodes.start("b")
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(10))
        # The five that were on their way found nobody, and went where there is a queue.
        assert await settled(nodes) == {"a/q": 20}
        assert nodes.brokers["b"].statistics().unrouted == 0


async def test_a_consumer_that_comes_and_goes_moves_the_deal() -> None:
    async with mesh("ab", root="simulated") as nodes:
        await create(nodes, "a", "b")
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(10))
        assert await settled(nodes) == {"a/q": 10}
        async with nodes.client("b") as client:
            async with client.consumer("q") as consumer:
                await nodes.known("a").wait_for(queue="q", consumers=1, timeout=5)
                await nodes.send("a", numbered(10, 10))
                got = []
                while len(got) < 10:
                    got += await consumer.receive_many(10, timeout=5)
                await consumer.ack(*got, confirm=True)
                assert bodies(got) == numbered(10, 10)
            await until(lambda: nodes.known("a").consumers("q") == 0)
            await nodes.send("a", numbered(10, 20))
            assert await settled(nodes) == {"a/q": 20}


async def test_waiting_for_nodes_and_consumers_says_how_far_it_came() -> None:
    async with mesh("ab", root="simulated") as nodes:
        await create(nodes, "a", "b")
        await nodes.joined("a", "b")
        connection = nodes.known("a")
        with pytest.raises(CallTimeoutError, match=r"2 of 3 nodes after 0\.5 s"):
            await connection.wait_for(nodes=3, timeout=0.5)
        with pytest.raises(CallTimeoutError, match=r"2 of 2 nodes, 0 of 1 consumers of 'q' after 2 s"):
            await connection.wait_for(nodes=2, queue="q", consumers=1, timeout=2)
        async with nodes.client("a") as here, here.consumer("q"):
            await connection.wait_for(nodes=2, queue="q", consumers=1, timeout=5)
            assert connection.consumers("q") == 1


async def test_waiting_for_nodes_ends_when_the_broker_does() -> None:
    async with mesh("ab", root="simulated") as nodes:
        connection = nodes.known("a")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(NotActiveError):
                    await connection.wait_for(nodes=9)

            nursery.start_soon(wait)
            await trio.sleep(1)
            await nodes.stop("a")
        with pytest.raises(NotActiveError):
            connection.consumers("q")
        with pytest.raises(NotActiveError, match="the cluster connection 'mesh' is not served"):
            connection.topology()


async def test_two_nodes_of_one_id_are_refused_with_both_names(caplog: pytest.LogCaptureFixture) -> None:
    same = bytes(range(16))
    with caplog.at_level(logging.WARNING, "meshq"):
        async with mesh("ab", root="simulated", own={"a": {"node_id": same}, "b": {"node_id": same}}) as nodes:
            await trio.sleep(0.5)
            assert nodes.known("a").nodes() == nodes.known("b").nodes() == 1
            assert [peer.connected for peer in nodes.known("a").peers()] == [False]
            async with nodes.client("a") as client:
                assert [name for name in await client.queues() if name.startswith("$meshq.")] == []
    for event in ("duplicate_node", "peer_lost"):
        texts = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]
        assert texts
        assert all("'a'" in text and "'b'" in text for text in texts)


@pytest.mark.parametrize("where", ["a", "inproc://a"])
async def test_a_node_that_lists_itself_has_no_link_and_says_nothing(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"a": ["b", where], "b": ["a"]}
    with caplog.at_level(logging.WARNING, "meshq"):
        async with mesh("ab", root="simulated", others=others, mode="strict") as nodes:
            await create(nodes, "a", "b")
            await nodes.joined("a", "b")
            assert len(nodes.known("a").peers()) == 1
            await nodes.send("a", numbered(10))
            assert await settled(nodes) == {"a/q": 5, "b/q": 5}
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_node_that_reaches_itself_by_another_name_has_no_link(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "meshq"):
        async with mesh("ab", root="simulated", mode="strict", others={"a": ["b", "inproc://also-a"]}) as nodes:
            nodes.env.local["also-a"] = nodes.env.local["a"]
            await create(nodes, "a", "b")
            await nodes.joined("a", "b")
            await trio.sleep(1)
            assert [peer.connected for peer in nodes.known("a").peers()] == [True, False]
            await nodes.send("a", numbered(10))
            assert await settled(nodes) == {"a/q": 5, "b/q": 5}
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_node_that_is_reached_by_two_connectors_is_linked_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "meshq"):
        async with mesh("ab", root="simulated", mode="strict", others={"a": ["b", "inproc://also-b"]}) as nodes:
            nodes.env.local["also-b"] = nodes.env.local["b"]
            await create(nodes, "a", "b")
            await nodes.joined("a", "b")
            await trio.sleep(1)
            for first in range(0, 1_000, 10):
                await nodes.send("a", numbered(10, first))
            assert await settled(nodes) == {"a/q": 500, "b/q": 500}
            got = bodies(await nodes.drain("a")) + bodies(await nodes.drain("b"))
            assert sorted(got) == sorted(numbered(1_000))
    assert [getattr(record, "event", "") for record in caplog.records] == ["peer_twice"]


@pytest.mark.parametrize("durable", [True, False])
async def test_a_store_that_is_begun_anew_under_the_same_node_id_counts_anew(durable: bool) -> None:
    own = {"a": {"node_id": bytes(range(16))}}
    if not durable:
        own["a"]["data_dir"] = None  # type: ignore[assignment]
    async with mesh("ab", root="simulated", mode="strict", own=own) as nodes:
        await create(nodes, "b")
        await nodes.joined("a", "b")
        for life in range(3):
            await nodes.send("a", numbered(20, 20 * life))
            await until(lambda: nodes.known("a").peers()[0].waiting == 0)
            await nodes.stop("a")
            if durable:
                own["a"]["data_dir"] = f"/data/a-{life}"  # type: ignore[assignment]
            await nodes.start("a")
            await nodes.joined("a", "b")
        got = bodies(await nodes.drain("b"))
        assert len(got) == len(set(got)) == 30


async def test_when_another_node_answers_where_one_was_nothing_new_is_kept_for_the_old_one() -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await create(nodes, "a", "b")
        await nodes.joined("a", "b")
        old = nodes.forward("b")
        await nodes.kill("b")
        await nodes.send("a", numbered(10))
        nodes.own["b"] = {"data_dir": "/data/new"}
        await nodes.start("b")
        await create(nodes, "b")
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(10, 10))
        assert await settled(nodes) == {"a/q": 10, "b/q": 5, f"a/{old}": 5}


@pytest.mark.slow
async def test_the_marks_of_links_outlive_the_segments_of_their_runs() -> None:
    small = {"journal": JournalSettings(segment_bytes=64 * 1024)}
    async with mesh("ab", root="simulated", mode="strict", broker=small) as nodes:
        await create(nodes, "b")
        await nodes.joined("a", "b")
        total, written = 0, set[str]()
        for life in range(4):
            for _ in range(20):
                await nodes.send("a", [b"%d " % number + bytes(2_000) for number in range(total, total + 20)])
                total += 20
                if life % 2:
                    await trio.sleep(0.01)
            got = bodies(await nodes.drain("b")) + bodies(await nodes.drain("a"))
            assert len(got) == 400
            await nodes.kill("b")
            await nodes.send("a", numbered(10))
            await nodes.kill("a")
            await nodes.start("a", "b")
            await nodes.joined("a", "b")
            assert await settled(nodes) == {"a/q": 5, "b/q": 5}
            got = bodies(await nodes.drain("a")) + bodies(await nodes.drain("b"))
            assert sorted(got) == sorted(numbered(10))
            segments = [path for path in nodes.disks["b"].files() if path.endswith(".seg")]
            # Not one that the life before wrote its runs to is left.
            assert not written.intersection(segments)
            written = set(segments)


async def test_a_queue_that_is_not_known_anywhere_is_refused_where_none_may_be_made() -> None:
    settings = {"address_settings": {"#": AddressSettings(auto_create_queues=False)}}
    async with mesh("ab", root="simulated", broker=settings) as nodes:
        await nodes.joined("a", "b")
        async with nodes.client("a") as client:
            with pytest.raises(NotFoundError):
                await client.send("q", b"x")
            await create(nodes, "b")
            await trio.sleep(1)
            await client.send("q", b"x")
        assert await settled(nodes) == {"b/q": 1}


@pytest.mark.slow
async def test_a_message_goes_to_more_queues_of_a_node_than_one_frame_can_name() -> None:
    async with mesh("ab", root=None, mode="strict") as nodes:
        async with nodes.client("b") as client:
            await client.create_address("news", routing="multicast")
            for number in range(2_000):
                await client.create_queue(f"n{number}", address="news", routing="multicast")
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(3), "news")
        await settled(nodes, "a")
        broker = nodes.brokers["b"].statistics()
        assert (broker.ready, nodes.brokers["a"].statistics().ready) == (3 * 2_000, 0)


async def test_a_full_disk_keeps_a_node_from_joining_and_not_from_living(monkeypatch: pytest.MonkeyPatch) -> None:
    rightly, refused = Definitions.forward_queue, []

    def full(self: Definitions, name: str) -> Queue:
        if len(refused) < 5:
            refused.append(name)
            raise AddressFullError("the disk has no room")
        return rightly(self, name)

    monkeypatch.setattr(Definitions, "forward_queue", full)
    settings = {"reconnect_attempts": 1, "max_retry_interval": 1}
    async with mesh("ab", root="simulated", mode="strict", cluster=settings) as nodes:
        await create(nodes, "a", "b")

        def without_room() -> bool:
            (peer,) = nodes.known("a").peers()
            return isinstance(peer.error, AddressFullError) and peer.state == "away"

        await until(without_room)
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(10))
        assert await settled(nodes) == {"a/q": 5, "b/q": 5}
    assert len(refused) == 5
