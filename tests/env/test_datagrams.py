"""Datagrams over UDP, on the loopback interface alone, and in memory: both keep the same promises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from meshq.abc import Datagrams, DatagramSocket
from meshq.env import UdpDatagrams
from meshq.errors import BusyError, ClosedError
from meshq.testing import MemoryDatagrams

LOOPBACK = "127.0.0.1"
GROUP = "231.7.7.7"
OTHER_GROUP = "231.7.7.8"
#: Far longer than a datagram takes on its way within a host.
PATIENCE_S = 5.0

Two = tuple[Datagrams, Datagrams]
KINDS: dict[str, Callable[[], Two]] = {
    "udp": lambda: (UdpDatagrams(), UdpDatagrams()),
    "memory": lambda: (lambda world: (world.host("a"), world.host("a")))(MemoryDatagrams()),
}
both = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name, marks=[pytest.mark.real] * (name == "udp")) for name, make in KINDS.items()]
)


async def came(opened: DatagramSocket) -> bytes:
    with trio.fail_after(PATIENCE_S):
        return await opened.receive()


async def free_port(datagrams: Datagrams) -> int:
    opened = await datagrams.bind(LOOPBACK, 0)
    opened.close()
    return opened.port


@both
async def test_a_datagram_reaches_the_port_that_it_is_sent_to(make: Callable[[], Two]) -> None:
    here, there = make()
    sender, receiver = await here.bind(LOOPBACK, 0), await there.bind(LOOPBACK, 0)
    for datagram in (b"x", b"y" * 8_192):
        await sender.send(datagram, LOOPBACK, receiver.port)
        assert await came(receiver) == datagram
    sender.close()
    receiver.close()


@pytest.mark.real
@pytest.mark.parametrize("host", ["a..b", ".", "h" * 64])
async def test_a_name_that_no_host_can_have_is_an_error_of_the_system_in_each_call(host: str) -> None:
    datagrams = UdpDatagrams()
    opened = await datagrams.bind(LOOPBACK, 0)
    for call in (lambda: datagrams.bind(host, 0), lambda: datagrams.join(GROUP, 9, host)):
        with pytest.raises(OSError, match="is no name of a host"):
            await call()
    with pytest.raises(OSError, match="is no name of a host"):
        await opened.send(b"x", host, 9)
    opened.close()


@both
async def test_each_member_of_a_group_gets_each_datagram_and_another_group_on_the_same_port_none(
    make: Callable[[], Two],
) -> None:
    here, there = make()
    port = await free_port(here)
    members = [await one.join(GROUP, port, LOOPBACK) for one in (here, here, there)]
    other = await there.join(OTHER_GROUP, port, LOOPBACK)
    sender = await here.bind(LOOPBACK, 0)
    await sender.send(b"for all", GROUP, port)
    await sender.send(b"for others", OTHER_GROUP, port)
    assert [await came(member) for member in members] == [b"for all"] * 3
    assert await came(other) == b"for others"
    await sender.send(b"the end", GROUP, port)
    assert [await came(member) for member in members] == [b"the end"] * 3
    for opened in (*members, other, sender):
        opened.close()


@both
async def test_a_port_is_taken_once_unless_it_is_shared(make: Callable[[], Two]) -> None:
    here, there = make()
    first = await here.bind(LOOPBACK, 0)
    with pytest.raises(OSError, match="in use"):
        await there.bind(LOOPBACK, first.port)
    first.close()
    one = await here.bind(LOOPBACK, first.port, shared=True)
    two = await there.bind(LOOPBACK, first.port, shared=True)
    one.close()
    two.close()


@both
async def test_a_closed_socket_says_so_also_to_a_call_that_waits(make: Callable[[], Two]) -> None:
    here, _ = make()
    opened = await here.bind(LOOPBACK, 0)

    async def wait() -> None:
        with pytest.raises(ClosedError):
            await opened.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        opened.close()
    opened.close()
    calls: list[Awaitable[object]] = [opened.receive(), opened.send(b"x", LOOPBACK, 9)]
    for call in calls:
        with pytest.raises(ClosedError):
            await call


@both
async def test_a_receive_that_is_cancelled_loses_nothing_and_a_second_receiver_is_refused(
    make: Callable[[], Two],
) -> None:
    here, there = make()
    sender, receiver = await here.bind(LOOPBACK, 0), await there.bind(LOOPBACK, 0)
    await sender.send(b"kept", LOOPBACK, receiver.port)
    with trio.CancelScope() as scope:
        scope.cancel()
        await receiver.receive()
    assert await came(receiver) == b"kept"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(BusyError):
            await receiver.receive()
        nursery.cancel_scope.cancel()
    sender.close()
    receiver.close()


async def test_in_memory_datagrams_cross_hosts_unless_cut_and_never_leave_a_loopback_address() -> None:
    world = MemoryDatagrams()
    there = await world.host("b").join(GROUP, 9876, "")
    local = await world.host("a").bind(LOOPBACK, 0)
    opened = await world.host("a").bind("", 0)
    await local.send(b"local", GROUP, 9876)
    world.cut()
    await opened.send(b"cut", GROUP, 9876)
    world.heal()
    await opened.send(b"heard", GROUP, 9876)
    assert await came(there) == b"heard"
