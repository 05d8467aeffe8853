"""What a node that leaves hands over besides messages nobody has touched: counts, delays, queues and duplicate ids."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from meshq import Delivery, MeshqError, Message, abc
from meshq.settings import AddressSettings
from tests.cluster import kit
from tests.cluster.kit import Mesh, bodies, until
from tests.cluster.test_transfer import inside, inside_moved, known, nodes_with_queues, numbered, taken, to

pytestmark = pytest.mark.slow

#: Few enough attempts that a test can use them up.
ATTEMPTS = {"broker": {"queues": ["q", "r", "dead"], "address_settings": {
    "q": AddressSettings(max_delivery_attempts=4, dead_letter_address="dead"),
}}}  # fmt: skip
LATER = {"broker": {"queues": ["q", "r"], "address_settings": {"q": AddressSettings(redelivery_delay=60.0)}}}
#: A window of three ids.
SMALL_WINDOW = {"broker": {"queues": ["q", "r"], "address_settings": {"q": AddressSettings(duplicate_id_cache_size=3)}}}
FEATURES = "meshq.broker.session._peering.LINK_FEATURES"


class Wall(abc.WallClock):
    """The time of day, by the clock of the test."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1_000)


@pytest.fixture
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the time of day pass as the time of the test."""
    made = kit.simulated
    monkeypatch.setattr(kit, "simulated", lambda: attrs.evolve(made(), wall=Wall()))


async def returned(nodes: Mesh, count: int, *, times: int = 1, name: str = "a") -> None:
    """Have a consumer give the first messages of ``q`` back, so many times."""
    async with nodes.client(name) as client, client.consumer("q", window=count) as consumer:
        for _ in range(times):
            got = await consumer.receive_many(count, timeout=5)
            assert len(got) == count
            await consumer.nack(*got)


async def first(nodes: Mesh, name: str, queue: str = "q", count: int = 1) -> list[Delivery]:
    """Receive the first messages of a queue, and let these go unacknowledged."""
    async with nodes.client(name) as client, client.consumer(queue, window=count) as consumer:
        return await consumer.receive_many(count, timeout=5)


async def all_moved(nodes: Mesh, queue: str = "q") -> None:
    """Move all of a queue, and see it stored."""
    while await inside(nodes).transfer.move(queue, to(nodes), 256):
        pass
    assert inside(nodes).transfer.inventory().messages.get(queue, 0) == 0
    await until(lambda: not inside(nodes).transfer.inventory().forwarded)


async def restarted(nodes: Mesh, *names: str) -> None:
    for name in names:
        await nodes.kill(name)
        await nodes.start(name)
    await nodes.joined()


async def test_a_message_that_came_back_goes_with_its_count_over_crashes_of_both_nodes() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(6))
        await returned(nodes, 3, times=2)
        while await inside(nodes).transfer.move("q", to(nodes), 256):
            pass
        await restarted(nodes, "a")
        await until(lambda: not inside(nodes).transfer.inventory().forwarded)
        await restarted(nodes, "b")
        found = await first(nodes, "b", count=6)
        assert bodies(found) == numbered(6)
        assert [one.delivery_count for one in found] == [3, 3, 3, 1, 1, 1]
        assert [one.redelivered for one in found] == [True] * 3 + [False] * 3


async def test_returns_at_both_nodes_count_together_against_the_attempts_of_a_queue() -> None:
    async with nodes_with_queues(**ATTEMPTS) as nodes:
        await nodes.send("a", [b"bad", b"good"])
        await returned(nodes, 1, times=3)
        await all_moved(nodes)
        await returned(nodes, 1, name="b")
        assert bodies(await taken(nodes, "b")) == [b"good"]
        assert bodies(await taken(nodes, "b", "dead")) == [b"bad"]


async def test_a_message_that_may_have_been_delivered_before_a_restart_is_redelivered_at_the_other_node() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(3))
        with pytest.raises(MeshqError):
            async with nodes.client("a") as client, client.consumer("q", window=3) as consumer:
                assert await consumer.receive_many(3, timeout=5)
                await nodes.kill("a")
        await nodes.start("a")
        await nodes.joined()
        await all_moved(nodes)
        found = await taken(nodes, "b")
        assert bodies(found) == numbered(3)
        assert all(one.redelivered for one in found)


@pytest.mark.usefixtures("one_clock")
async def test_a_message_that_waits_for_its_next_attempt_waits_the_rest_of_it_at_the_other_node() -> None:
    async with nodes_with_queues(**LATER) as nodes:
        await nodes.send("a", numbered(2))
        await returned(nodes, 1)
        began = trio.current_time()
        await trio.sleep(20)
        await all_moved(nodes)
        await restarted(nodes, "b")
        async with nodes.client("b") as client, client.consumer("q") as consumer:
            assert bodies(await consumer.receive_many(2, timeout=30)) == [b"1"]
            assert bodies(await consumer.receive_many(1, timeout=60)) == [b"0"]
        assert 59 <= trio.current_time() - began <= 62


@pytest.mark.usefixtures("one_clock")
async def test_a_message_that_is_not_due_goes_and_is_due_at_its_time() -> None:
    async with nodes_with_queues() as nodes:
        began = trio.current_time()
        async with nodes.client("a") as client:
            await client.send("q", Message(b"later", delay=60.0))
            await client.send("q", b"now")
        await trio.sleep(20)
        await all_moved(nodes)
        await restarted(nodes, "a", "b")
        async with nodes.client("b") as there, there.consumer("q") as consumer:
            assert bodies(await consumer.receive_many(2, timeout=30)) == [b"now"]
            assert bodies(await consumer.receive_many(1, timeout=60)) == [b"later"]
        assert 59 <= trio.current_time() - began <= 62


@pytest.mark.usefixtures("one_clock")
async def test_a_delay_that_is_over_lets_no_later_message_overtake() -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as client:
        await client.send_many("q", [Message(b"%d" % number, delay=(number + 1) % 2 * 0.5) for number in range(10)])
        await trio.sleep(1)
        assert bodies(await first(nodes, "a", count=10)) == numbered(10)[1::2] + numbered(10)[::2]
        await all_moved(nodes)
        await restarted(nodes, "b")
        assert bodies(await taken(nodes, "b")) == numbered(10)[1::2] + numbered(10)[::2]


async def test_a_queue_that_is_missing_at_the_other_node_is_made_there_as_it_was() -> None:
    async with nodes_with_queues() as nodes, nodes.client("b") as there:
        async with nodes.client("a") as here:
            await here.create_queue("some", filter="odd = 1")
            await here.create_queue("fast", durable=False)
            for number in range(4):
                await here.send("some", Message(b"%d" % number, properties={"odd": number % 2}))
            await here.send("fast", b"light")
        for queue in ("some", "fast"):
            await all_moved(nodes, queue)
        await restarted(nodes, "a")
        assert bodies(await taken(nodes, "b", "some")) == [b"1", b"3"]
        assert bodies(await taken(nodes, "b", "fast")) == [b"light"]
        await there.send("some", Message(b"even", properties={"odd": 0}))
        assert (await there.queue("some")).ready == 0
        assert nodes.brokers["b"]._node.core.router.queues["some"].durable
        assert not nodes.brokers["b"]._node.core.router.queues["fast"].durable


async def test_a_durable_subscription_goes_with_its_messages_and_gets_no_copy_for_another_one() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as here, nodes.client("b") as there:
            async with here.subscribe("news", name="mine", durable=True):
                pass
            async with there.subscribe("news", name="theirs", durable=True):
                pass
            await until(lambda: known(nodes, "news::theirs"))
            await here.send_many("news", numbered(300))
        await all_moved(nodes, "news::mine")
        await restarted(nodes, "a", "b")
        async with nodes.client("b") as client:
            for name in ("mine", "theirs"):
                async with client.subscribe("news", name=name, durable=True) as consumer:
                    assert bodies(await consumer.receive_many(400, timeout=2)) == numbered(300)


async def test_the_messages_of_a_subscription_come_back_from_their_way_if_the_other_node_is_gone() -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as client:
        async with client.subscribe("news", name="mine", durable=True):
            pass
        await client.send_many("news", numbered(30))
        await nodes.send("a", numbered(5))
        await returned(nodes, 5)
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        assert await inside(nodes).transfer.move("news::mine", to(nodes), 256) == 30
        assert await inside(nodes).transfer.move("q", to(nodes), 256) == 5
        await nodes.kill("b")
        await until(lambda: nodes.known("a").peers()[0].state != "linked")
        assert await client.give_back(nodes.forward("b").rpartition(".")[2], force=True) == 35
        assert bodies(await taken(nodes, "a", "news::mine")) == numbered(30)
        found = await taken(nodes, "a")
        assert bodies(found) == numbered(5) and [one.delivery_count for one in found] == [2] * 5


@pytest.mark.parametrize(
    ("feature", "left"), [("counts", {"q": 1}), ("due", {"q": 1}), ("queue", {"news::mine": 1, "only here": 1})]
)
async def test_what_the_other_node_does_not_understand_stays_and_is_counted(
    feature: str, left: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FEATURES, " ".join({"origin", "counts", "due", "queue", "ids"} - {feature}))
    settings: Any = LATER if feature == "due" else {}
    async with nodes_with_queues(**settings) as nodes, nodes.client("a") as client:
        await nodes.send("a", numbered(2))
        await returned(nodes, 1)
        async with client.subscribe("news", name="mine", durable=True):
            pass
        await client.send("news", b"a copy")
        await client.create_queue("only here")
        await client.send("only here", b"alone")
        for queue in ("news::mine", "only here"):
            await inside(nodes).transfer.move(queue, to(nodes), 256)
        await inside_moved(nodes)
        assert inside(nodes).transfer.inventory().messages == left


async def ids_moved(nodes: Mesh, address: str = "q") -> int:
    moved = 0
    while part := await inside(nodes).transfer.move_ids(address, to(nodes)):
        moved += part
    await until(lambda: not inside(nodes).transfer.inventory().forwarded)
    return moved


async def send_once(nodes: Mesh, name: str, *ids: str) -> list[str]:
    """Send under duplicate ids; returns those that were taken."""
    fresh = []
    before = nodes.brokers[name]._node.core.ingress
    async with nodes.client(name) as client:
        for one in ids:
            known_before = before.duplicates
            await client.send("q", one.encode(), duplicate_id=one)
            if before.duplicates == known_before:
                fresh.append(one)
    return fresh


async def test_what_was_sent_once_to_the_node_that_left_is_a_duplicate_at_the_other_node_also_after_its_restart() -> (
    None
):
    async with nodes_with_queues() as nodes:
        sent = [f"d{number}" for number in range(20)]
        await send_once(nodes, "a", *sent)
        assert inside(nodes).transfer.inventory().ids == {"q": 20}
        await all_moved(nodes)
        assert await ids_moved(nodes) == 20
        assert inside(nodes).transfer.inventory().empty
        assert await send_once(nodes, "b", *sent[:5]) == []
        await restarted(nodes, "b")
        assert await send_once(nodes, "b", *sent, "new") == ["new"]
        assert len(await taken(nodes, "b")) == 21


async def test_ids_of_messages_that_are_not_durable_hold_for_such_ones_only_at_the_other_node_too() -> None:
    async with nodes_with_queues() as nodes:
        await send_once(nodes, "a", "d")
        async with nodes.client("a") as client:
            await client.send("q", b"v", duplicate_id="v", durable=False)
        await all_moved(nodes)
        assert await ids_moved(nodes) == 2
        ingress = nodes.brokers["b"]._node.core.ingress
        async with nodes.client("b") as client:
            await client.send("q", b"v", duplicate_id="v", durable=False)
            await client.send("q", b"d", duplicate_id="d", durable=False)
            assert ingress.duplicates == 2
        assert await send_once(nodes, "b", "v", "d") == ["v"]
        await restarted(nodes, "b")
        assert [one.body for one in await taken(nodes, "b")] == [b"d", b"v"]


async def test_a_full_window_grows_to_the_sum_until_the_ids_age() -> None:
    async with nodes_with_queues(**SMALL_WINDOW) as nodes:
        await send_once(nodes, "a", "a1", "a2", "a3", "a4")
        await send_once(nodes, "b", "b1", "b2", "b3")
        assert await ids_moved(nodes) == 3
        await restarted(nodes, "b")
        window = nodes.brokers["b"]._node.core.router.addresses["q"].duplicates
        assert len(window) == 6
        assert await send_once(nodes, "b", "b1", "a2", "b2", "a3", "a4", "b3") == []
        # The oldest of each goes with each new one, and in the end the window is as large as ever.
        assert await send_once(nodes, "b", "n1") == ["n1"] and len(window) == 5
        assert await send_once(nodes, "b", "a3", "b2") == []
        assert await send_once(nodes, "b", "n2", "n3") == ["n2", "n3"] and len(window) == 3
        assert await send_once(nodes, "b", "n1", "n2", "n3") == []
        await restarted(nodes, "b")
        assert await send_once(nodes, "b", "n1", "n2", "n3") == []
        assert await send_once(nodes, "b", "a4") == ["a4"]


async def test_ids_that_were_on_their_way_to_a_node_that_is_gone_are_in_the_inventory_again() -> None:
    async with nodes_with_queues() as nodes:
        await send_once(nodes, "a", "d1", "d2")
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        assert await inside(nodes).transfer.move_ids("q", to(nodes)) == 2
        assert inside(nodes).transfer.inventory().ids == {}
        assert sum(inside(nodes).transfer.inventory().forwarded.values()) == 1
        await nodes.kill("b")
        await until(lambda: nodes.known("a").peers()[0].state != "linked")
        async with nodes.client("a") as client:
            assert await client.give_back(nodes.forward("b").rpartition(".")[2], force=True) == 0
        left = inside(nodes).transfer.inventory()
        assert left.ids == {"q": 2} and left.forwarded == {}


async def test_ids_go_again_in_the_next_life_and_are_known_only_once() -> None:
    async with nodes_with_queues() as nodes:
        await send_once(nodes, "a", "d1", "d2")
        assert await ids_moved(nodes) == 2
        await restarted(nodes, "a")
        assert inside(nodes).transfer.inventory().ids == {"q": 2}
        assert await ids_moved(nodes) == 2
        assert len(nodes.brokers["b"]._node.core.router.addresses["q"].duplicates) == 2


async def test_ids_stay_if_the_other_node_does_not_understand_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEATURES, "origin counts due queue")
    async with nodes_with_queues() as nodes:
        await send_once(nodes, "a", "d1")
        assert await inside(nodes).transfer.move_ids("q", to(nodes)) == 0
        assert inside(nodes).transfer.inventory().ids == {"q": 1}


async def test_thousands_of_ids_go_in_parts() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as client:
            await client.send_many("q", [Message(b"", duplicate_id=f"d{number}") for number in range(5_000)])
        assert await inside(nodes).transfer.move_ids("q", to(nodes)) == 4_096
        assert await ids_moved(nodes) == 904
        window = nodes.brokers["b"]._node.core.router.addresses["q"].duplicates
        assert window.fresh_rows([b"d0", b"d4999"]) == []
