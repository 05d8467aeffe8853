"""Datagrams in the memory network: what its links do to them, and what becomes of them with their process."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from meshq.abc import DatagramSocket
from meshq.testing import MemoryNetwork, NetworkSettings

SURE = NetworkSettings(datagram_lost_chance=0.0, datagram_doubled_chance=0.0)
GROUP = "231.7.7.7"
PORT = 9876


@asynccontextmanager
async def network(settings: NetworkSettings = SURE) -> AsyncIterator[MemoryNetwork]:
    """A network of two hosts that delivers."""
    async with trio.open_nursery() as nursery:
        made = MemoryNetwork(random.Random(0), settings)
        made.host("a")
        made.host("b")
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()


async def came(opened: DatagramSocket, within_s: float = 1.0) -> list[bytes]:
    """Return the datagrams that come in this time."""
    found = []
    with trio.move_on_after(within_s):
        while True:
            found.append(await opened.receive())
    return found


async def both(made: MemoryNetwork) -> tuple[DatagramSocket, DatagramSocket]:
    """Return a sender on the first host, and a member of the group on the second."""
    return await made.datagrams.host("a").bind("", 0), await made.datagrams.host("b").join(GROUP, PORT, "")


async def test_a_datagram_takes_the_time_that_its_link_takes_and_one_overtakes_another() -> None:
    async with network() as made:
        sender, member = await both(made)
        made.delay("a", "b", 1.0, 2.0)
        for number in range(10):
            await sender.send(b"%d" % number, GROUP, PORT)
        assert await came(member, 0.99) == []
        found = await came(member, 1.02)
        assert sorted(found) == [b"%d" % number for number in range(10)] != found


@pytest.mark.parametrize("cut", ["before", "on its way"])
async def test_what_meets_a_cut_is_lost_and_the_other_direction_stays_open(cut: str) -> None:
    async with network() as made:
        sender, member = await both(made)
        made.delay("a", "b", 0.5, 0.5)
        if cut == "before":
            made.cut("a", "b")
        await sender.send(b"lost", GROUP, PORT)
        made.cut("a", "b")
        back = await made.datagrams.host("a").join(GROUP, PORT, "")
        await (await made.datagrams.host("b").bind("", 0)).send(b"back", GROUP, PORT)
        assert await came(back) == [b"back"]
        made.heal()
        await sender.send(b"heard", GROUP, PORT)
        assert await came(member) == [b"back", b"heard"]
        assert made.paths.lost == 1


async def test_some_datagrams_are_lost_and_some_come_twice() -> None:
    async with network(attrs.evolve(SURE, datagram_lost_chance=0.1, datagram_doubled_chance=0.1)) as made:
        sender, member = await both(made)
        for number in range(200):
            await sender.send(b"%d" % number, GROUP, PORT)
        found = await came(member)
        assert len(found) - len(set(found)) == made.paths.doubled > 5
        assert 200 - len(set(found)) == made.paths.lost > 5


async def test_the_datagrams_of_a_slow_link_wait_for_the_bytes_before_them() -> None:
    async with network() as made:
        sender, member = await both(made)
        made.slow("a", "b", 1_000.0)
        listener = await made.host("b").listen("", 5000)
        stream = await made.host("a").connect("b", 5000)
        await listener.accept()
        stream.send_nowait(bytes(2_000))
        await sender.send(b"behind", GROUP, PORT)
        assert await came(member, 1.9) == []
        assert await came(member, 0.2) == [b"behind"]


@pytest.mark.parametrize("how", ["kill_host", "power_off"])
async def test_what_is_for_a_dead_process_is_lost_and_the_next_process_has_its_ports(how: str) -> None:
    async with network() as made:
        sender, member = await both(made)
        getattr(made, how)("b")
        await sender.send(b"lost", GROUP, PORT)
        assert await came(member) == []
        made.host("b")
        bound = await made.datagrams.host("b").bind("", 7)
        getattr(made, how)("b")
        made.host("b")
        again = await made.datagrams.host("b").bind("", 7)
        await sender.send(b"heard", "b", 7)
        assert (await came(again), await came(bound)) == ([b"heard"], [])
        bound.close()


async def test_a_dead_process_sends_nothing() -> None:
    async with network() as made:
        sender, member = await both(made)
        made.kill_host("a")
        made.host("a")
        with trio.move_on_after(1) as scope:
            await sender.send(b"from the dead", GROUP, PORT)
        assert scope.cancelled_caught
        assert await came(member) == []


async def test_a_paused_process_finds_what_came_when_it_goes_on() -> None:
    async with network() as made:
        sender, member = await both(made)
        made.pause_host("b")
        await sender.send(b"waits", GROUP, PORT)
        assert await came(member) == []
        made.resume_host("b")
        assert await came(member) == [b"waits"]


async def test_datagrams_can_fail_while_connections_go_on() -> None:
    async with network() as made:
        sender, member = await both(made)
        made.datagrams.cut()
        await sender.send(b"lost", GROUP, PORT)
        listener = await made.host("b").listen("", 5000)
        await made.host("a").connect("b", 5000)
        await listener.accept()
        made.datagrams.heal()
        await sender.send(b"heard", GROUP, PORT)
        assert await came(member) == [b"heard"]
