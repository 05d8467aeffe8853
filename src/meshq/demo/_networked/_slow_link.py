"""A link that is long and narrow: a proxy that hands bytes on later, and not faster than a rate."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import trio

from meshq.abc import Network, Stream
from meshq.errors import ConnectionBrokenError

HOST: Final = "127.0.0.1"
READ_BYTES: Final = 16 * 1024
#: So many pieces are on their way at most; then the sender waits.
PIECES_MAX: Final = 64


class SlowLink:
    """A port here that leads to a port of this machine, over a link with a delay and a rate.

    ``delay_s``: seconds from one end to the other.  ``bits_per_s``: what goes through in each direction.
    """

    def __init__(self, network: Network, port: int, *, delay_s: float, bits_per_s: float) -> None:
        self._network = network
        self._port = port
        self._delay_s = delay_s
        self._bytes_per_s = bits_per_s / 8
        #: Bytes that went through.
        self.carried: int = 0

    async def run(self, task_status: trio.TaskStatus[int]) -> None:
        """Take connections until cancelled; the port is told.

        Checkpoint: always.
        Cancellation: all connections end.
        Raises: OSError: no port is free.
        """
        with closing(await self._network.listen(HOST, 0)) as listener:
            task_status.started(listener.port)
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._serve, await listener.accept())

    async def _serve(self, near: Stream) -> None:
        with closing(near):
            try:
                far = await self._network.connect(HOST, self._port)
            except ConnectionBrokenError:
                # Nobody listens there: the link ends at its near end, too.
                return
            with closing(far):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, near, far, nursery.cancel_scope)
                    nursery.start_soon(self._carry, far, near, nursery.cancel_scope)

    async def _carry(self, source: Stream, sink: Stream, ended: trio.CancelScope) -> None:
        """Carry bytes in one direction, until either end is closed."""
        put, taken = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)

        async def write() -> None:
            async for due, piece in taken:
                await trio.sleep_until(due)
                sink.send_nowait(piece)
                await sink.flush()
                self.carried += len(piece)

        free_at = 0.0
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                async with put:
                    while piece := await source.receive(READ_BYTES):
                        free_at = max(free_at, trio.current_time()) + len(piece) / self._bytes_per_s
                        await put.send((free_at + self._delay_s, piece))
                        await trio.sleep_until(free_at)
        except* ConnectionBrokenError:
            pass
        ended.cancel()
