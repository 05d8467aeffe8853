"""Message groups over several nodes: a group is consumed on one node at a time, in order, whoever sends where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from meshq import AddressSettings, Client, Consumer, Message
from meshq.broker.session import _peering
from meshq.cluster.grouping import Grouping
from meshq.cluster.grouping._arbiter_machine import FREE, HOLD, ArbiterMachine, Said, Sender, arbiter_of
from tests.cluster.kit import Mesh, mesh, until

GROUPS = ("red", "green", "blue", "white", "black", "grey")


@asynccontextmanager
async def grouping(names: str = "abc", **settings: Any) -> AsyncIterator[Mesh]:
    """Nodes that know each other, each with the queue ``q``."""
    async with mesh(names, root="simulated", **{"broker": {"queues": ["q"]}, **settings}) as nodes:
        await nodes.joined()
        yield nodes


@attrs.define(eq=False)
class Watch:
    """What consumers have got, and who holds messages of which group now."""

    got: dict[str, list[tuple[str, bytes]]] = attrs.field(factory=dict)
    holding: dict[str, dict[str, int]] = attrs.field(factory=dict)
    twice: list[str] = attrs.field(factory=list)

    async def consume(self, name: str, consumer: Consumer, hold_s: float = 0.0) -> None:
        """Receive until cancelled."""
        while True:
            batch = await consumer.receive_many(7)
            for one in batch:
                group = one.group
                assert group is not None
                holders = self.holding.setdefault(group, {})
                holders[name] = holders.get(name, 0) + 1
                if sum(map(bool, holders.values())) > 1:
                    self.twice.append(group)
                self.got.setdefault(group, []).append((name, one.body))
            await trio.sleep(hold_s)
            for one in batch:
                self.holding[one.group or ""][name] -= 1
            await consumer.ack(*batch, confirm=True)

    @property
    def count(self) -> int:
        return sum(map(len, self.got.values()))


async def send(client: Client, sender: str, first: int, count: int, groups: Sequence[str] = GROUPS) -> None:
    """Send messages of each group."""
    for number in range(first, first + count):
        await client.send_many("q", [Message(b"%s %d" % (sender.encode(), number), group=group) for group in groups])


def in_order(watch: Watch) -> bool:
    """Whether of each sender and group the messages came in their order, each once."""
    for got in watch.got.values():
        by_sender: dict[bytes, list[int]] = {}
        for _, body in got:
            sender, number = body.split()
            by_sender.setdefault(sender, []).append(int(number))
        if any(numbers != sorted(set(numbers)) for numbers in by_sender.values()):
            return False
    return True


async def test_a_group_is_consumed_on_one_node_whoever_sends_where() -> None:
    watch = Watch()
    async with grouping() as nodes, trio.open_nursery() as nursery:
        for name in "abc":
            client = nodes.client(name)
            nursery.start_soon(_consuming, watch, name, client)
        await nodes.joined(queue="q", consumers=3)
        async with trio.open_nursery() as senders:
            for name in "abc":
                senders.start_soon(_sending, nodes, name)
        await until(lambda: watch.count >= 3 * 10 * len(GROUPS))
        assert watch.count == 3 * 10 * len(GROUPS)
        assert not watch.twice and in_order(watch)
        holders = {group: {name for name, _ in got} for group, got in watch.got.items()}
        assert all(len(names) == 1 for names in holders.values())
        assert len(set.union(*holders.values())) > 1
        nursery.cancel_scope.cancel()


async def _sending(nodes: Mesh, name: str) -> None:
    async with nodes.client(name) as client:
        await send(client, name, 0, 10)


async def _consuming(watch: Watch, name: str, client: Client) -> None:
    async with client, client.consumer("q", window=8) as consumer:
        await watch.consume(name, consumer)


def grouping_of(nodes: Mesh, name: str) -> Grouping:
    return nodes.known(name)._grouping


def arbiter(nodes: Mesh, group: str) -> str:
    """The node that decides about a group of ``q``."""
    ids = {bytes(broker.node_id).hex(): name for name, broker in nodes.brokers.items()}
    return ids[arbiter_of(("q", group), list(ids))]


def group_of(nodes: Mesh, name: str, number: int = 0) -> str:
    """A group of which a node is the arbiter; ``number``: which of them."""
    return [group for group in map(str, range(1_000)) if arbiter(nodes, group) == name][number]


def holders(nodes: Mesh, group: str) -> list[str]:
    """The nodes that hold the pin of a group."""
    found = []
    for name, broker in nodes.brokers.items():
        if broker._node is not None and ("q", group) in broker._node.core.router.pins.held:
            found.append(name)
    return found


async def test_a_restart_of_the_arbiter_moves_no_pin_and_meanwhile_known_ones_hold_and_new_ones_wait() -> None:
    async with grouping() as nodes:
        known, fresh = group_of(nodes, "c"), ""
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"1", group=known))
            assert await body_of_next(consumer) == b"1"
            fresh = next(one for one in map(str, range(1_000, 2_000)) if arbiter(nodes, one) == "c")
            await nodes.kill("c")
            await here.send("q", Message(b"2", group=known))
            assert await body_of_next(consumer) == b"2"
            await here.send("q", Message(b"3", group=fresh))
            assert await consumer.receive(timeout=3) is None
            await nodes.start("c")
            assert await body_of_next(consumer) == b"3"
            await here.send("q", Message(b"4", group=known))
            assert await body_of_next(consumer) == b"4"
            assert holders(nodes, known) == holders(nodes, fresh) == ["b"]


async def body_of_next(consumer: Consumer) -> bytes:
    found = await consumer.receive(timeout=20)
    assert found is not None
    await consumer.ack(found, confirm=True)
    return found.body


async def test_pins_survive_a_restart_of_all_nodes() -> None:
    async with grouping() as nodes:
        group = group_of(nodes, "c")
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"1", group=group))
            assert await body_of_next(consumer) == b"1"
        await nodes.kill("a", "b", "c")
        await nodes.start("a", "b", "c")
        await nodes.joined()
        pins = grouping_of(nodes, "c").arbiter.pins
        assert pins.get(("q", group)) == bytes(nodes.brokers["b"].node_id).hex()


async def test_nodes_that_begin_anew_need_no_node_that_is_away_if_they_have_heard_it_before() -> None:
    async with grouping() as nodes:
        groups = [group_of(nodes, "a"), group_of(nodes, "b")]
        await until(lambda: all(grouping_of(nodes, name).arbiter.ready for name in "abc"))
        async with nodes.client("a") as here, nodes.client("c") as there, there.consumer("q") as consumer:
            await nodes.joined(queue="q", consumers=1)
            for group in groups:
                await here.send("q", Message(b"0", group=f"{group}!"))
                assert await body_of_next(consumer) == b"0"
        await nodes.kill("c", "a", "b")
        await nodes.start("a", "b")
        for name in "ab":
            await nodes.known(name).wait_for(nodes=2)
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            for group in groups:
                await here.send("q", Message(b"1", group=group))
                assert await body_of_next(consumer) == b"1"
            # What the node has that is away stays with it.
            for group in groups:
                await here.send("q", Message(b"2", group=f"{group}!"))
            assert await consumer.receive(timeout=3) is None


@pytest.mark.parametrize("how", ["stop", "drain"])
async def test_the_pins_of_a_node_that_leaves_are_given_up(how: str) -> None:
    async with grouping() as nodes:
        group = group_of(nodes, "a")
        async with nodes.client("a") as here, here.consumer("q") as consumer:
            async with nodes.client("c") as there, there.consumer("q", window=1) as other:
                await nodes.joined(queue="q", consumers=2)
                async with trio.open_nursery() as nursery:
                    watch = Watch()
                    nursery.start_soon(watch.consume, "a", consumer)
                    nursery.start_soon(watch.consume, "c", other)
                    await send(here, "a", 0, 3, [group, *GROUPS])
                    await until(lambda: watch.count == 3 * 7)
                    nursery.cancel_scope.cancel()
            if how == "stop":
                await nodes.stop("c")
            else:
                async with nodes.brokers["c"].drain():
                    pass
                await nodes.stop("c")
            watch = Watch()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.consume, "a", consumer)
                await send(here, "a", 3, 3, [group, *GROUPS])
                await until(lambda: watch.count == 3 * 7)
                nursery.cancel_scope.cancel()
            assert in_order(watch) and not watch.twice


async def test_an_idle_pin_is_released_everywhere() -> None:
    async with grouping(cluster={"group_timeout": 2.0}) as nodes:
        group = group_of(nodes, "c")
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            await nodes.joined(queue="q", consumers=1)
            for number in range(4):
                await here.send("q", Message(b"%d" % number, group=group))
                assert await body_of_next(consumer) == b"%d" % number
                await trio.sleep(1)
                assert holders(nodes, group) == ["b"]
            await trio.sleep(3)
            assert holders(nodes, group) == []
            for name in "abc":
                pins = nodes.brokers[name]._node.core.router.pins
                assert ("q", group) not in pins.elsewhere
                assert ("q", group) not in grouping_of(nodes, name).arbiter.pins


async def test_an_arbiter_forgets_who_had_a_pin_as_soon_as_it_is_free() -> None:
    async with grouping("ab") as nodes, nodes.client("a") as here:
        group = group_of(nodes, "a")
        async with nodes.client("b") as there, there.consumer("q") as consumer:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"1", group=group))
            await consumer.ack(await consumer.receive(), confirm=True)
            assert holders(nodes, group) == ["b"]
            assert nodes.brokers["a"]._node.core.router.pins.elsewhere
        await until(lambda: holders(nodes, group) == [])
        await until(lambda: not grouping_of(nodes, "a").arbiter.pins)
        # What comes now waits here, and does not go to where nobody consumes.
        assert not nodes.brokers["a"]._node.core.router.pins.elsewhere


async def test_a_group_goes_on_with_all_its_messages_when_its_consumer_is_elsewhere() -> None:
    settings = {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=0.0)}}
    async with grouping(broker=settings) as nodes, nodes.client("a") as here:
        async with nodes.client("b") as there, there.consumer("q", window=2) as consumer:
            await nodes.joined(queue="q", consumers=1)
            for number in range(20):
                await here.send("q", Message(b"%d" % number, group="red"))
            assert await body_of_next(consumer) == b"0"
        got = []
        async with nodes.client("c") as there, there.consumer("q") as consumer:
            while len(got) < 19:
                got.append(await body_of_next(consumer))
        assert got == [b"%d" % number for number in range(1, 20)]


async def test_what_is_of_a_group_whose_node_is_away_holds_nothing_else_back() -> None:
    settings = {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=1.0)}}
    async with grouping(broker=settings) as nodes:
        of_absent, other = group_of(nodes, "c"), group_of(nodes, "c", 1)
        async with nodes.client("b") as there, there.consumer("q") as held, nodes.client("a") as here:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"0", group=of_absent))
            assert await held.receive(timeout=20) is not None
        # Begun anew it has to ask where that group is.
        await nodes.kill("a")
        await nodes.start("a")
        await nodes.known("a").wait_for(nodes=3)
        await nodes.kill("b")
        async with nodes.client("a") as here:
            async with here.consumer("q", window=1):
                await nodes.known("c").wait_for(queue="q", consumers=1)
                await here.send_many("q", [Message(b"1", group=other), Message(b"2", group=other)])
                await here.send("q", Message(b"3", group=of_absent))
                await here.send("q", Message(b"4"))
                pins = nodes.brokers["a"]._node.core.router.pins
                await until(lambda: "q" in pins.away)
            async with nodes.client("c") as there, there.consumer("q") as consumer:
                assert await consumer.receive(timeout=0.9) is None
                got = [await body_of_next(consumer) for _ in range(3)]
                assert sorted(got) == [b"1", b"2", b"4"] and got.index(b"1") < got.index(b"2")
                # What is of the other one waits for its node, which has no consumer when it is back.
                assert await consumer.receive(timeout=3) is None
                await nodes.start("b")
                assert sorted([await body_of_next(consumer) for _ in range(2)]) == [b"0", b"3"]


async def test_while_an_older_node_is_there_groups_hold_for_each_node_alone(caplog: pytest.LogCaptureFixture) -> None:
    older = _peering.LINK_FEATURES.replace(" groups", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_peering, "LINK_FEATURES", older)
        async with grouping("ab") as nodes:
            await trio.sleep(1)
            assert not any(broker._node.core.router.pins.active for broker in nodes.brokers.values())
            async with nodes.client("a") as here, here.consumer("q") as consumer:
                await here.send("q", Message(b"1", group="red"))
                assert await body_of_next(consumer) == b"1"
    assert any("is older: message groups hold for each node alone" in record.getMessage() for record in caplog.records)


async def test_two_nodes_that_take_each_other_for_the_holder_send_nothing_to_and_fro() -> None:
    async with grouping("ab") as nodes:
        there, here = nodes.client("b"), nodes.client("a")
        async with there, here, there.consumer("q") as far, here.consumer("q") as near:
            await nodes.joined(queue="q", consumers=2)
            ids = {name: bytes(broker.node_id).hex() for name, broker in nodes.brokers.items()}
            for name, other in (("a", "b"), ("b", "a")):
                nodes.brokers[name]._node.core.router.pins.told(("q", "red"), ids[other])
            for number in range(10):
                await here.send("q", Message(b"%d" % number, group="red"))
            got: list[bytes] = []

            async def take(consumer: Consumer) -> None:
                while True:
                    got.append(await body_of_next(consumer))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, far)
                nursery.start_soon(take, near)
                await until(lambda: len(got) == 10)
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
            assert got == [b"%d" % number for number in range(10)]
            assert len(holders(nodes, "red")) == 1
            moved = [(await client.queue("q")).redistributed for client in (here, there)]
            assert sum(moved) <= 10


async def test_more_idle_pins_than_are_kept_are_released_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        grouping("ab", cluster={"max_group_pins": 5}) as nodes,
        nodes.client("a") as here,
        nodes.client("b") as there,
        there.consumer("q") as consumer,
    ):
        await nodes.joined(queue="q", consumers=1)
        for number in range(20):
            await here.send("q", Message(b"%d" % number, group=str(number)))
            await body_of_next(consumer)
        await trio.sleep(30)
        for name in "ab":
            pins = nodes.brokers[name]._node.core.router.pins
            assert len(pins.held) + len(pins.elsewhere) <= 5
            assert len(grouping_of(nodes, name).arbiter.pins) <= 10
        for number in range(20):
            await here.send("q", Message(b"again %d" % number, group=str(number)))
            assert await body_of_next(consumer) == b"again %d" % number
    assert any("5 pins of message groups" in record.getMessage() for record in caplog.records)


async def test_a_queue_that_goes_on_asks_for_the_groups_that_came_while_it_was_paused() -> None:
    async with grouping("ab") as nodes, nodes.client("a") as here, here.consumer("q") as consumer:
        await nodes.joined(queue="q", consumers=1)
        await here.pause_queue("q")
        await here.send("q", Message(b"1", group="red"))
        await trio.sleep(10)
        await here.resume_queue("q")
        assert await body_of_next(consumer) == b"1"


async def test_what_a_node_has_not_answered_in_time_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(operation: str, arguments: Any) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    async with grouping("ab") as nodes, nodes.client("a") as here:
        group = group_of(nodes, "a")
        async with nodes.client("b") as there, there.consumer("q") as consumer:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"1", group=group))
            assert await body_of_next(consumer) == b"1"
            (peer,) = grouping_of(nodes, "b")._peers()
            monkeypatch.setattr(peer.link, "ask", silent)
        await until(lambda: holders(nodes, group) == [])
        await trio.sleep(3)
        monkeypatch.undo()
        await until(lambda: not grouping_of(nodes, "a").arbiter.pins)


async def test_a_former_arbiter_forgets_no_pin_of_which_the_new_one_has_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with grouping("ab") as nodes:
        former, arbiter_now = grouping_of(nodes, "a"), grouping_of(nodes, "b")
        ids = {name: bytes(broker.node_id).hex() for name, broker in nodes.brokers.items()}
        name = "q", group_of(nodes, "b")
        await until(lambda: former.arbiter.ready and arbiter_now.arbiter.ready)
        former.arbiter.restore(name, ids["a"])
        (peer,) = former._peers()

        async def knows_only_itself(operation: str, arguments: Any) -> dict[str, Any]:
            monkeypatch.undo()
            await trio.lowlevel.checkpoint()
            return {"holders": "", "introduced": True, "members": ids["b"], "gone": ""}

        monkeypatch.setattr(peer.link, "ask", knows_only_itself)
        former._letters.tell_anew(ids["b"])
        former.note()
        await until(lambda: arbiter_now.arbiter.pins.get(name) == ids["a"])
        await until(lambda: name not in former.arbiter.pins)


async def test_an_answer_of_a_node_that_is_the_arbiter_no_more_gives_no_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    async with grouping("ab") as nodes, nodes.client("b") as here, here.consumer("q") as consumer:
        await nodes.joined(queue="q", consumers=1)
        asking, other = grouping_of(nodes, "b").arbiter, "f" * 32
        group = next(
            group
            for group in map(str, range(1_000))
            if arbiter(nodes, group) == "a" and arbiter_of(("q", group), asking.members | {other}) == other
        )
        await until(lambda: grouping_of(nodes, "a").arbiter.ready)
        (peer,) = grouping_of(nodes, "b")._peers()
        ask, told, when_told = peer.link.ask, grouping_of(nodes, "b")._groups.told, []

        async def late(operation: str, arguments: Any) -> Any:
            answer = await ask(operation, arguments)
            if answer.get("holders"):
                monkeypatch.setattr(peer.link, "ask", ask)
                asking.see(asking.members | {other})
            return answer

        def tell(queue: str, group: str, holder: str) -> None:
            when_told.append(other in asking.members)
            told(queue, group, holder)

        monkeypatch.setattr(peer.link, "ask", late)
        monkeypatch.setattr(grouping_of(nodes, "b")._groups, "told", tell)
        await here.send("q", Message(b"1", group=group))
        assert await body_of_next(consumer) == b"1"
        assert when_told == [False]


@pytest.mark.slow
async def test_a_pin_that_was_given_up_and_is_held_again_is_not_said_to_be_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hear, heard = ArbiterMachine.hear, list[Said]()

    def hears(self: ArbiterMachine, sender: Sender, members: frozenset[str], said: Sequence[Said], **more: Any) -> Any:
        heard.extend(said)
        return hear(self, sender, members, said, **more)

    async with grouping() as nodes:
        group = group_of(nodes, "b")
        async with nodes.client("a") as here, here.consumer("q") as consumer:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"1", group=group))
            assert await body_of_next(consumer) == b"1"
            await nodes.kill("b")
            await until(lambda: not grouping_of(nodes, "a")._peers()[0].connected)
        await until(lambda: holders(nodes, group) == [])
        # While a node leaves in peace each consumes its groups alone, and the arbiter hears nothing of that.
        async with nodes.client("a") as here, here.consumer("q") as consumer:
            await here.send("q", Message(b"2", group=group))
            assert await consumer.receive(timeout=1) is None
            async with nodes.brokers["c"].drain():
                found = await consumer.receive(timeout=10)
                assert found is not None and found.body == b"2"
            await nodes.stop("c")
            await until(lambda: holders(nodes, group) == ["a"])
            monkeypatch.setattr(ArbiterMachine, "hear", hears)
            await nodes.start("b")
            await nodes.known("a").wait_for(nodes=2)
            await trio.sleep(3)
            kinds = {one.kind for one in heard if one.group == group}
            assert HOLD in kinds and FREE not in kinds
            await consumer.ack(found, confirm=True)
