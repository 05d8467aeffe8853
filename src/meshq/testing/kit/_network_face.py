"""The network of a simulated test, as the test sees it: faults between hosts, and servers of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from meshq.abc import Listener, Stream
from meshq.env import default_env
from meshq.errors import ClosedError, ConnectionBrokenError, UsageError
from meshq.testing.kit import _fault_plan as plan
from meshq.testing.kit._link_faults import FaultyLinks, LinkFaults
from meshq.testing.kit._world import SimulatedWorld

#: The bytes that one read takes at most, as trio's own streams do.
READ_BYTES = 65_536


class SimulatedNetwork(LinkFaults):
    """The network of a simulated test; the fixture ``meshq_network``.

    Hosts are named: ``n0`` and so on are the nodes of the first cluster, ``n0-2`` those of the second, ``broker`` is
    that of ``meshq_broker``, ``test`` is the test itself.  ``listen`` adds a host.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    @property
    def hosts(self) -> list[str]:
        """The names of all hosts."""
        return list(self._world.nodes)

    @property
    def counters(self) -> dict[str, int]:
        """How often each fault and each effect has happened."""
        return dict(self._world.fabric.counters)

    def _links(self) -> FaultyLinks:
        return self._world.fabric

    def _note(self, what: str, text: str) -> None:
        self._world.note(what, text)

    def _places(self) -> tuple[list[str], list[str]]:
        return self.hosts, self.hosts

    def host(self, place: str) -> str:
        """Return the name of a host.

        Raises:
            UsageError: no host has this name.
        """
        plan.check_known(place, self.hosts)
        return place

    async def listen(self, place: str, handler: Callable[[trio.abc.Stream], Awaitable[object]]) -> None:
        """Serve connections to ``"host:port"``: ``await handler(stream)`` for each, until the test is over.

        An exception of the handler fails the test, unless its stream is broken.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            UsageError: the place is no ``host:port``.
            OSError: the port is taken.
        """
        host, port = _place(place)
        machine = self._world.nodes.get(host) or self._world.machine(host)
        listener = await machine.env.network.listen(host, port)
        machine.spawn(self._serve, listener, handler, name=f"server {place}")

    async def connect(self, place: str) -> trio.abc.Stream:
        """Connect to ``"host:port"``, from the host of the task.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            UsageError: the place is no ``host:port``.
            ConnectionBrokenError: nobody listens there.
        """
        return NetworkStream(await default_env().network.connect(*_place(place)))

    async def _serve(self, listener: Listener, handler: Callable[[trio.abc.Stream], Awaitable[object]]) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(_handle, handler, NetworkStream(await listener.accept()))


async def _handle(handler: Callable[[trio.abc.Stream], Awaitable[object]], stream: NetworkStream) -> None:
    async with stream:
        try:
            await handler(stream)
        except trio.BrokenResourceError:
            # A fault that the test asked for.
            return


def _place(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise UsageError(f"{place!r} is no place on the network; a place: host:port, such as db:5432")
    return host, int(port)


class NetworkStream(trio.abc.Stream):
    """A stream of the simulated network, with the face of trio's streams."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes.  Checkpoint: always.  Cancellation: some of them may be sent later.

        Raises: trio.ClosedResourceError, trio.BrokenResourceError.
        """
        await trio.lowlevel.checkpoint()
        self._check()
        try:
            self._stream.send_nowait(data)
            await self._stream.flush()
        except (ConnectionBrokenError, ClosedError) as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """Let others run.  Checkpoint: always.  Cancellation: nothing has changed.

        Raises: trio.ClosedResourceError.
        """
        self._check()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive bytes; empty when the other side has closed.  Checkpoint: always.  Cancellation: nothing is lost.

        Raises: trio.ClosedResourceError, trio.BrokenResourceError.
        """
        await trio.lowlevel.checkpoint()
        self._check()
        try:
            return await self._stream.receive(READ_BYTES if max_bytes is None else max_bytes)
        except (ConnectionBrokenError, ClosedError) as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        """Close the stream.  Checkpoint: always.  Cancellation: it is closed."""
        self._closed = True
        self._stream.close()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed here")
