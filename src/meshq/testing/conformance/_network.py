"""The conformance suite for ``abc.Network`` and ``abc.Listener``; streams have a suite of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import attrs
import trio
import trio.testing

from meshq.abc import Listener, Network, Stream
from meshq.errors import BusyError, ClosedError, ConnectionBrokenError
from meshq.testing.conformance._assertions import expect, expect_equal, expect_raises


@attrs.frozen
class NetworkSides:
    """The two sides of the examined network: ``client`` dials ``host``, where ``server`` listens.

    One network may be both sides.
    """

    client: Network
    server: Network
    host: str

    async def listen(self) -> Listener:
        """Listen on the server's side, on a free port.

        Checkpoint: always.  Cancellation: nothing listens.
        """
        return await self.server.listen(self.host, 0)

    async def pair(self) -> tuple[Stream, Stream]:
        """Make a connection, and return the client's and the server's end.

        Checkpoint: always.  Cancellation: there is no connection.
        """
        listener = await self.listen()
        try:
            near = await self.client.connect(self.host, listener.port)
            return near, await listener.accept()
        finally:
            listener.close()


#: Opens two sides, and closes what is under them.
MakeNetworkSides = Callable[[], AbstractAsyncContextManager[NetworkSides]]
NetworkCheck = Callable[[NetworkSides], Awaitable[None]]


@asynccontextmanager
async def closing(*closed: Stream | Listener) -> AsyncIterator[None]:
    """Close these when the block ends."""
    try:
        yield
    finally:
        for one in closed:
            one.close()


async def check_network(make_sides: MakeNetworkSides) -> None:
    """Check that a network and its listeners keep the contract of ``meshq.abc.Network`` while nothing fails.

    ``make_sides`` is called once for each check of ``NETWORK_CHECKS``.  It returns an async context manager that opens
    the two sides and closes them again.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: the network breaks a promise.
    """
    for check in NETWORK_CHECKS:
        async with make_sides() as sides:
            await check(sides)


async def _both_ends_know_each_other(sides: NetworkSides) -> None:
    listener = await sides.listen()
    near = await sides.client.connect(sides.host, listener.port)
    far = await listener.accept()
    async with closing(listener, near, far):
        expect(near.peer.endswith(f":{listener.port}"), "the client's peer is the listener's port")
        host, _, port = far.peer.rpartition(":")
        expect(host and 0 < int(port) < 65_536, "the server's peer is host:port")


async def _ports_are_chosen_and_differ(sides: NetworkSides) -> None:
    first, second = await sides.listen(), await sides.listen()
    async with closing(first, second):
        expect(0 < first.port < 65_536, "port 0 chooses a real port")
        expect(first.port != second.port, "a chosen port is free")
        with expect_raises(OSError, "a port that is taken is refused"):
            await sides.server.listen(sides.host, first.port)


async def _a_closed_port_is_free_again(sides: NetworkSides) -> None:
    first = await sides.listen()
    first.close()
    first.close()
    second = await sides.server.listen(sides.host, first.port)
    first.close()
    near = await sides.client.connect(sides.host, second.port)
    async with closing(second, near):
        expect_equal(second.port, first.port, "a closed listener gives its port back at once")


async def _nobody_there_is_told(sides: NetworkSides) -> None:
    listener = await sides.listen()
    listener.close()
    with expect_raises(ConnectionBrokenError, "a port where nobody listens refuses") as caught:
        await sides.client.connect(sides.host, listener.port)
    expect_equal(getattr(caught.error, "outcome", None), "not_done", "and nothing was done")


async def _a_port_that_is_none_is_refused(sides: NetworkSides) -> None:
    listener = await sides.listen()
    async with closing(listener):
        for port in (-1, 65_536, 65_536 + listener.port):
            with expect_raises(ConnectionBrokenError, "no other port is dialled instead"):
                await sides.client.connect(sides.host, port)
            with expect_raises(OSError, "no other port is listened on instead"):
                await sides.server.listen(sides.host, port)


async def _connecting_and_accepting_let_others_run(sides: NetworkSides) -> None:
    listener = await sides.listen()
    with trio.testing.assert_checkpoints():
        near = await sides.client.connect(sides.host, listener.port)
    with trio.testing.assert_checkpoints():
        far = await listener.accept()
    with trio.testing.assert_checkpoints():
        other = await sides.listen()
    async with closing(listener, near, far, other):
        pass


async def _connections_wait_to_be_accepted(sides: NetworkSides) -> None:
    listener = await sides.listen()
    nears = [await sides.client.connect(sides.host, listener.port) for _ in range(5)]
    for number, near in enumerate(nears):
        near.send_nowait(b"%d" % number)
    fars = [await listener.accept() for _ in nears]
    async with closing(listener, *nears, *fars):
        heard = [await far.receive(10) for far in fars]
        expect_equal(sorted(heard), [b"0", b"1", b"2", b"3", b"4"], "each connection has its own bytes")


async def _a_cancelled_accept_loses_no_connection(sides: NetworkSides) -> None:
    listener = await sides.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    near = await sides.client.connect(sides.host, listener.port)
    with trio.CancelScope() as scope:
        scope.cancel()
        await listener.accept()
    far = await listener.accept()
    async with closing(listener, near, far):
        near.send_nowait(b"here")
        expect_equal(await far.receive(10), b"here", "the connection is still there")


async def _a_cancelled_connect_leaves_nothing(sides: NetworkSides) -> None:
    listener = await sides.listen()
    with trio.CancelScope() as scope:
        scope.cancel()
        await sides.client.connect(sides.host, listener.port)
    expect(scope.cancelled_caught, "a cancelled connect gives up")
    near = await sides.client.connect(sides.host, listener.port)
    near.send_nowait(b"the second")
    async with closing(listener, near):
        while True:
            # The peer of the attempt that was given up may be accepted; it then ends without a byte.
            far = await listener.accept()
            async with closing(far):
                try:
                    heard = await far.receive(100)
                except ConnectionBrokenError:
                    heard = b""
            if heard:
                break
        expect(b"the second".startswith(heard), "a later attempt is well")


async def _closing_wakes_who_accepts(sides: NetworkSides) -> None:
    listener = await sides.listen()

    async def accept() -> None:
        with expect_raises(ClosedError, "closing wakes the task in accept"):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()
    with trio.testing.assert_checkpoints(), expect_raises(ClosedError, "a closed listener accepts nothing"):
        await listener.accept()


async def _one_task_accepts(sides: NetworkSides) -> None:
    listener = await sides.listen()
    async with closing(listener), trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept)
        await trio.testing.wait_all_tasks_blocked()
        with expect_raises(BusyError, "two tasks accept"):
            await listener.accept()
        nursery.cancel_scope.cancel()


NETWORK_CHECKS: Final[tuple[NetworkCheck, ...]] = (
    _both_ends_know_each_other,
    _ports_are_chosen_and_differ,
    _a_closed_port_is_free_again,
    _nobody_there_is_told,
    _a_port_that_is_none_is_refused,
    _connecting_and_accepting_let_others_run,
    _connections_wait_to_be_accepted,
    _a_cancelled_accept_loses_no_connection,
    _a_cancelled_connect_leaves_nothing,
    _closing_wakes_who_accepts,
    _one_task_accepts,
)
