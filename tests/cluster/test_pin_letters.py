"""Letters about pins of message groups that no node writes, and nodes that answer none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio

from meshq import Consumer, Delivery, Message
from meshq.broker import ClusteredGroups
from meshq.broker.ingress._group_places import GroupPlaces
from meshq.broker.queue._queue_machine import Queue
from meshq.cluster.grouping import Grouping
from meshq.cluster.grouping._arbiter_machine import arbiter_of
from meshq.cluster.grouping._correspondence import PAUSE_MAX_S
from meshq.errors import MeshqError, UsageError
from meshq.wire import encode_map
from tests.cluster.kit import Mesh, mesh, until

NAME = {"k0": "hold", "q0": "q", "g0": "red", "n0": ""}


def letter_from(nodes: Mesh, name: str, **changed: Any) -> dict[str, Any]:
    """A letter as a node writes it; ``changed``: what it has instead."""
    ids = {one: bytes(broker.node_id).hex() for one, broker in nodes.brokers.items()}
    written = {
        "cluster": "mesh",
        "node_id": ids[name],
        "instance": "0" * 32,
        "serial": 1,
        "members": " ".join(sorted(ids.values())),
        "names": encode_map(NAME),
        "begins": True,
        "complete": True,
        "lacks": False,
    }
    return {**written, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"instance": "two words"},
        {"instance": ""},
        {"instance": "0" * 31 + "G"},
        {"members": "everybody"},
        {"members": ""},
        {"members": "0" * 32},
        {"members": f"{'0' * 32},{'1' * 32}"},
        {"names": encode_map({**NAME, "k0": "lie"})},
        {"names": encode_map({**NAME, "q0": 7})},
        {"names": encode_map({**NAME, "k1": "hold", "x": 1, "y": 1, "z": 1})},
        {"names": b"no map"},
        {"names": bytes(5_000)},
    ],
)
async def test_a_letter_that_no_node_writes_is_refused_and_leaves_nothing_behind(changed: dict[str, Any]) -> None:
    async with mesh("ab", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        with pytest.raises(MeshqError):
            nodes.known("a")._questions.pin_groups(letter_from(nodes, "b", **changed))
        assert nodes.known("a")._grouping.arbiter.pins == {}
        await nodes.kill("a")
        await nodes.start("a")
        await nodes.joined()


@pytest.mark.parametrize("mode", ["off", "off_with_redistribution"])
async def test_beside_a_node_that_pins_no_groups_they_hold_for_each_node_alone(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with mesh("ab", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        await nodes.stop("b")
        nodes.mode = mode
        await nodes.start("b")
        await nodes.joined()
        async with nodes.client("a") as client, client.consumer("q") as consumer:
            for number in range(10):
                await client.send("q", Message(b"%d" % number, group=str(number)))
            # Also while it is away: what it would answer is known.
            assert {one.body for one in await received(consumer, 10)} == {b"%d" % number for number in range(10)}
            await nodes.kill("b")
            await until(lambda: not nodes.known("a")._grouping._peers()[0].connected)
            for number in range(10, 20):
                await client.send("q", Message(b"%d" % number, group=str(number)))
            assert len(await received(consumer, 10)) == 10
            # One that comes back and pins groups is waited for again.
            nodes.mode = "on_demand"
            await nodes.start("b")
            await until(lambda: nodes.brokers["a"]._node.core.router.pins.active)
    assert any("pins no groups, as it is set up" in record.getMessage() for record in caplog.records)


async def received(consumer: Consumer, count: int) -> list[Delivery]:
    """The next messages, acknowledged."""
    got: list[Delivery] = []
    while len(got) < count:
        found = await consumer.receive(timeout=10)
        assert found is not None
        await consumer.ack(found, confirm=True)
        got.append(found)
    return got


@pytest.mark.parametrize("decides", ["a", "b", "c"])
async def test_a_pin_goes_on_of_a_node_that_has_no_queue_of_the_name_any_more(decides: str) -> None:
    async with mesh("abc", root="simulated", broker={"queues": ["q"]}, own={"c": {"queues": []}}) as nodes:
        await nodes.joined()
        ids = {name: bytes(broker.node_id).hex() for name, broker in nodes.brokers.items()}
        arbiter = nodes.known(decides)._grouping.arbiter
        await until(lambda: arbiter.ready)
        group = next(
            one for one in map(str, range(1_000)) if arbiter_of(("q", one), list(ids.values())) == ids[decides]
        )
        # Given at the request of another node, whose messages have gone before they could be moved.
        arbiter.restore(("q", group), ids["c"])
        letters = 0
        hear = arbiter.hear

        def counted(*args: Any, **kwargs: Any) -> list[str]:
            nonlocal letters
            letters += 1
            return hear(*args, **kwargs)

        arbiter.hear = counted  # type: ignore[method-assign]
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            await nodes.joined(queue="q", consumers=1)
            await here.send("q", Message(b"1", group=group))
            await received(consumer, 1)
            assert arbiter.pins == {("q", group): ids["b"]}
        assert letters < 50


async def test_a_node_rests_while_it_waits_for_one_that_has_no_queue_for_its_pin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    wanted = ClusteredGroups.wanted

    def look(self: ClusteredGroups) -> Any:
        nonlocal looks
        looks += 1
        assert looks < 1_000, "it looks without a pause"
        return wanted(self)

    async def silent(self: Grouping, *_: Any, **__: Any) -> Any:
        raise UsageError("there is no answer")

    async with mesh("ab", root="simulated", broker={"queues": ["q"]}, own={"b": {"queues": []}}) as nodes:
        await nodes.joined()
        grouping = nodes.known("a")._grouping
        await until(lambda: grouping.arbiter.ready)
        group = next(one for one in map(str, range(1_000)) if arbiter_of(("q", one), ids_of(nodes)) == ids_of(nodes)[0])
        grouping.arbiter.restore(("q", group), ids_of(nodes)[1])
        monkeypatch.setattr(Grouping, "_send", silent)
        monkeypatch.setattr(ClusteredGroups, "wanted", look)
        async with nodes.client("a") as client, client.consumer("q"):
            await client.send("q", Message(b"1", group=group))
            await trio.sleep(10)
    assert looks > 10


@pytest.mark.slow
async def test_nodes_that_know_other_members_for_long_say_so_seldom() -> None:
    async with mesh("abc", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        await nodes.kill("c")
        first, second = (nodes.known(name)._grouping for name in "ab")
        await until(lambda: not any(peer.connected for peer in first._peers() if peer.label.endswith("c")))
        # As if the other one had never met it.
        see, gone = second.arbiter.see, ids_of(nodes)[2]

        def seen(members: Iterable[str]) -> bool:
            changed = see({*members} - {gone})
            second.arbiter.gone = frozenset()
            return changed

        second.arbiter.see = seen  # type: ignore[method-assign]
        second.note()
        await trio.sleep(10)
        before = first._serial, second._serial
        await trio.sleep(20)
        assert max(first._serial - before[0], second._serial - before[1]) <= 2 * 20 / PAUSE_MAX_S


async def test_however_many_nodes_have_gone_letters_are_answered() -> None:
    async with mesh("ab", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        for name in "ab":
            nodes.known(name)._grouping.arbiter.gone |= {f"{number:032x}" for number in range(200)}
        async with nodes.client("a") as client, client.consumer("q") as consumer:
            for number in range(10):
                await client.send("q", Message(b"%d" % number, group=str(number)))
            assert len(await received(consumer, 10)) == 10


async def test_a_look_at_groups_that_nobody_wants_costs_nothing_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = GroupPlaces.preferred
    looks: list[str] = []

    def preferred(self: GroupPlaces, queue: Queue, group: str, *about: Any) -> tuple[str, bool]:
        looks.append(group)
        return looked(self, queue, group, *about)

    monkeypatch.setattr(GroupPlaces, "preferred", preferred)
    async with mesh("ab", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        async with nodes.client("a") as client:
            for number in range(200):
                await client.send("q", Message(b"%d" % number, group=str(number)))
            assert looks == []
            async with nodes.client("b") as there, there.consumer("q") as consumer:
                assert len(await received(consumer, 200)) == 200
    # Each is looked at when its arbiter is asked, and a few times while others are.
    assert len(looks) < 20 * 200


async def test_a_node_rests_between_looks_at_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    wanted = ClusteredGroups.wanted

    def look(self: ClusteredGroups) -> Any:
        found = wanted(self)
        seen.append(len(found))
        return found

    monkeypatch.setattr(ClusteredGroups, "wanted", look)
    async with mesh("ab", root="simulated", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        groups = [one for one in map(str, range(2_000)) if arbiter_of(("q", one), ids_of(nodes)) == ids_of(nodes)[1]]
        async with nodes.client("a") as client, client.consumer("q"):
            await nodes.kill("b")
            # Their arbiter is away: all of them wait, and each message is a reason to look at all.
            for group in groups[:500]:
                await client.send("q", Message(b"", group=group))
    assert max(seen) > 200 and sum(seen) < 50 * 500


def ids_of(nodes: Mesh) -> list[str]:
    """The ids of the nodes by their names."""
    return [bytes(nodes.brokers[name].node_id).hex() for name in sorted(nodes.brokers)]
