"""A delay that begins on one node and ends on another is as long as it was to be, whatever their wall clocks show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from meshq import Message, abc
from meshq.settings import AddressSettings
from meshq.testing import SimWallClock
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import until
from tests.cluster.test_lost_nodes import FAST, state

DELAY_S = 40.0
#: Time that a link takes, and a node to start.
NEAR_S = 1.0
HOUR_S = 3_600.0
OFFSETS = [-2 * HOUR_S, HOUR_S]


@attrs.define(eq=False)
class Clocked(Hosts):
    """Nodes whose wall clocks somebody sets; they go on while a node is not there."""

    walls: dict[str, SimWallClock] = attrs.field(factory=dict)

    def machine(self, name: str) -> abc.Env:
        return attrs.evolve(super().machine(name), wall=self.walls.setdefault(name, SimWallClock()))

    def put(self, name: str, offset_s: float) -> None:
        """Set the clock of a node, which may not have begun yet."""
        self.walls.setdefault(name, SimWallClock()).offset_s = offset_s


async def waited(mode: str, between: Callable[[Clocked], Awaitable[None]], offset_s: float = 0.0) -> float:
    """How long a message was delayed that was sent at a and received at b, whose clock is off by so much."""
    walls = {"b": SimWallClock(offset_s)}
    async with hosts(made_as=Clocked, walls=walls, mode=mode, cluster=FAST) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("theirs")
        await nodes.joined()
        async with nodes.client("a") as client:
            await client.set_address_settings("theirs", AddressSettings(auto_create_queues=False))
            begun = trio.current_time()
            await client.send("theirs", Message(b"later", delay=DELAY_S))
        await between(nodes)
        async with nodes.client("b") as client, client.consumer("theirs") as consumer:
            delivery = await consumer.receive(timeout=2 * DELAY_S)
            assert delivery.body == b"later"
            found = trio.current_time() - begun
            await delivery.ack(confirm=True)
        return found


async def nothing(nodes: Clocked) -> None:
    """Nothing happens between."""


async def crossed(nodes: Clocked) -> None:
    """The other node has the message."""

    async def held() -> bool:
        async with nodes.client("b") as client:
            return (await client.queue("theirs")).scheduled == 1

    await until(held)


def waits_at_a(nodes: Clocked) -> int:
    return sum(peer.waiting for peer in nodes.known("a").peers())


@pytest.mark.parametrize("mode", ["strict", "on_demand"])
@pytest.mark.parametrize("offset_s", OFFSETS)
async def test_a_clock_that_was_wrong_from_the_start_changes_no_delay(mode: str, offset_s: float) -> None:
    assert DELAY_S <= await waited(mode, nothing, offset_s) < DELAY_S + NEAR_S


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "on_demand"])
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("offset_s", OFFSETS)
async def test_a_clock_that_is_set_meanwhile_changes_no_delay(mode: str, name: str, offset_s: float) -> None:
    async def between(nodes: Clocked) -> None:
        await crossed(nodes)
        nodes.put(name, offset_s)

    assert DELAY_S <= await waited(mode, between) < DELAY_S + NEAR_S


@pytest.mark.slow
@pytest.mark.parametrize("offset_s", OFFSETS)
@pytest.mark.parametrize("name", ["a", "b"])
async def test_time_that_a_message_waits_for_a_node_that_is_away_is_part_of_its_delay(
    name: str, offset_s: float
) -> None:
    async def between(nodes: Clocked) -> None:
        await nodes.start("b")
        await crossed(nodes)

    async def away(nodes: Clocked) -> None:
        await trio.sleep(DELAY_S / 2)
        nodes.put(name, offset_s)
        await between(nodes)

    assert DELAY_S <= await sent_while_away(away) < DELAY_S + NEAR_S


@pytest.mark.slow
async def test_what_waits_for_a_node_over_a_restart_of_the_one_that_holds_it_waits_no_longer() -> None:
    async def away(nodes: Clocked) -> None:
        await trio.sleep(DELAY_S / 4)
        await nodes.crash("a")
        await trio.sleep(DELAY_S / 4)
        await nodes.start("a")
        assert waits_at_a(nodes) == 1
        nodes.put("b", HOUR_S)
        await nodes.start("b")
        await crossed(nodes)

    assert DELAY_S <= await sent_while_away(away) < DELAY_S + NEAR_S


@pytest.mark.slow
@pytest.mark.parametrize("offset_s", [*OFFSETS, 0.0])
async def test_over_a_restart_of_the_node_where_it_waits_its_own_clock_counts(offset_s: float) -> None:
    async def between(nodes: Clocked) -> None:
        await crossed(nodes)
        await trio.sleep(DELAY_S / 4)
        await nodes.crash("b")
        await trio.sleep(DELAY_S / 4)
        await nodes.start("b")

    assert DELAY_S <= await waited("strict", between, offset_s) < DELAY_S + NEAR_S


async def sent_while_away(then: Callable[[Clocked], Awaitable[None]]) -> float:
    """As ``waited``, where b is not there when the message is sent."""
    async with hosts(made_as=Clocked, cluster=FAST) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("theirs")
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "away")
        async with nodes.client("a") as client:
            await client.set_address_settings("theirs", AddressSettings(auto_create_queues=False))
            begun = trio.current_time()
            await client.send("theirs", Message(b"later", delay=DELAY_S))
        await then(nodes)
        async with nodes.client("b") as client, client.consumer("theirs") as consumer:
            await (await consumer.receive(timeout=2 * DELAY_S)).ack(confirm=True)
        return trio.current_time() - begun
