"""A proxy between real processes, in a thread of the test, with links that are cut, slow or lossy."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from meshq.abc import Listener, Stream
from meshq.env import real_env
from meshq.errors import ConnectionBrokenError
from meshq.testing.kit._fault_plan import Direction
from meshq.testing.processes._proxy_plan import LinkRules

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 65_536
#: Chunks of one connection that wait in the proxy, as in the buffers of kernels and routers.
CHUNKS_MAX: Final = 64
#: The proxy is ready, or has ended, within so many seconds.
PATIENCE_S: Final = 30.0


class LinkProxy:
    """A proxy with a port for each pair of a process that dials and a node that is dialed.

    ``targets``: the real port of each node.  ``directions``: who dials whom.  A link that is cut holds what is sent,
    and the news that a connection was closed, until it is healed; as TCP does, which sends again until it gives up.
    """

    def __init__(self, targets: Mapping[str, int], directions: Sequence[Direction]) -> None:
        self._targets = dict(targets)
        self._rules = LinkRules(random.Random(0).random)
        self._network = real_env().network
        #: The port at which a node dials another one, or the test a node.
        self.ports: dict[Direction, int] = {}
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run, list(directions)), name="meshq proxy")
        self._thread.daemon = True

    # -- for the thread of the test

    def start(self) -> None:
        """Start the thread, and wait until all ports are known."""
        self._thread.start()
        if not self._ready.wait(PATIENCE_S):
            raise TimeoutError(f"the proxy is not ready after {PATIENCE_S:g} s")

    def close(self) -> None:
        """End all connections, and the thread."""
        self._told(self._scope.cancel)
        self._thread.join(PATIENCE_S)

    def cuts(self) -> list[Direction]:
        """Return the directions through which nothing gets."""
        return self._rules.cuts()

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from ``source`` to ``target``."""
        self._change(partial(self._rules.cut, source, target))

    def delay(self, source: str, target: str, least: float, most: float) -> None:
        """Let everything from ``source`` to ``target`` take between so many seconds."""
        self._change(partial(self._rules.delay, source, target, least, most))

    def drop(self, source: str, target: str, probability: float) -> None:
        """Lose bytes from ``source`` to ``target`` at this probability; they are sent again."""
        self._change(partial(self._rules.drop, source, target, probability))

    def restore(self) -> None:
        """End all faults."""
        self._change(self._rules.restore)

    def _change(self, change: Callable[[], None]) -> None:
        def both() -> None:
            change()
            self._changed.set()
            self._changed = trio.Event()

        self._told(both)

    def _told(self, call: Callable[[], object]) -> None:
        """Call something in the thread of the proxy, and wait until that has happened."""
        done = threading.Event()

        def calling() -> None:
            call()
            done.set()

        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(calling)
            done.wait(PATIENCE_S)

    # -- in the thread of the proxy

    async def _run(self, directions: Sequence[Direction]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                for direction in directions:
                    listener = await self._network.listen(HOST, 0)
                    self.ports[direction] = listener.port
                    nursery.start_soon(self._serve, direction, listener, nursery)
                self._ready.set()

    async def _serve(self, direction: Direction, listener: Listener, nursery: trio.Nursery) -> None:
        try:
            while True:
                nursery.start_soon(self._carry, direction, await listener.accept())
        finally:
            listener.close()

    async def _carry(self, there: Direction, near: Stream) -> None:
        """Carry one connection; its bytes go both ways, each under the faults of its direction."""
        back = (there[1], there[0])
        far: Stream | None = None
        try:
            await self._open(there)
            await self._open(back)
            with suppress(ConnectionBrokenError):
                far = await self._network.connect(HOST, self._targets[there[1]])
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, there, near, far, nursery.cancel_scope)
                    nursery.start_soon(self._pump, back, far, near, nursery.cancel_scope)
        finally:
            near.close()
            if far is not None:
                far.close()

    async def _pump(self, direction: Direction, source: Stream, target: Stream, both: trio.CancelScope) -> None:
        """Carry the bytes of one direction, and end the connection when its source is closed, or its target."""
        give, take = trio.open_memory_channel[tuple[float, bytes]](CHUNKS_MAX)

        async def read() -> None:
            async with give:
                due, data = 0.0, b"first"
                while data:
                    try:
                        data = await source.receive(CHUNK_BYTES)
                    except ConnectionBrokenError:
                        data = b""
                    # One after the other: a late one holds up all behind it.
                    due = max(due, trio.current_time() + self._rules.lateness(direction))
                    await give.send((due, data))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            async for due, data in take:
                await trio.sleep_until(due)
                await self._open(direction)
                with suppress(ConnectionBrokenError):
                    if data:
                        target.send_nowait(data)
                        await target.flush()
                        continue
                both.cancel()

    async def _open(self, direction: Direction) -> None:
        """Wait until a direction is not cut."""
        while self._rules.is_cut(direction):
            await self._changed.wait()
