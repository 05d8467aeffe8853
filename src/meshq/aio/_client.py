"""The client for asyncio: the same client, in a trio loop of its own."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from meshq import client as trio_client
from meshq.aio._balancer import ClientBalancer
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._delivery import Handler
from meshq.aio._events import EventStream
from meshq.aio._generated_administration import AdministrationCalls
from meshq.aio._generated_client import ClientCalls
from meshq.aio._generated_stages import StageCalls
from meshq.aio._loop_thread import TaskLoop
from meshq.aio._worker import Worker
from meshq.client import ConnectionEvent, HandlerErrors, check_serving, watch
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.portal import OpenProducers, Workers


class Client(AdministrationCalls, StageCalls, ClientCalls):
    """A client: one session at a broker, for tasks of asyncio.  Made by ``connect``, ``ClientFactory.connect`` or
    ``broker.client``.

    ``async with`` connects at its begin and closes at its end.  When the connection is lost, the client comes back
    by itself; when it can't, the body is cancelled and the block raises ``ConnectionBrokenError``.

    A cancelled call is cancelled where it runs, and the cancellation goes on when it has ended there: its
    documentation says what it may have done.  What is documented as a checkpoint lets other tasks run.
    """

    def __init__(self, inner: trio_client.Client, loop: TaskLoop | None = None) -> None:
        self._inner = inner
        # A client of a broker for asyncio lives in that one's loop, any other has a loop of its own.
        self._shared = loop
        self._loop = loop if loop is not None else TaskLoop("the client", inner._env.clock)
        self._block = TaskBlockRunner(self._loop, inner, "the client", owner=loop is None)
        self._call = self._block.call
        self._producers = OpenProducers()
        self._workers = Workers()

    def __repr__(self) -> str:
        return repr(self._inner)

    # -- life

    async def __aenter__(self) -> Self:
        """Connect.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            UsageError: it was used before; or a trio task is calling.
            ConnectionBrokenError: no connection could be made with the attempts that the settings allow; or the broker
                whose client it is has stopped.
            ClosedError: it was closed meanwhile, or before.
            SecurityError, RemoteProtocolError: the node and this client don't fit.
        """
        try:
            await self._block.enter()
        except ClosedError as error:
            if self._shared is None or not self._shared.closed:
                raise
            raise ConnectionBrokenError("the client's broker has stopped", outcome="not_done") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close; see ``close``.

        Checkpoint: always.  Cancellation: it is closed all the same.
        """
        return await self._block.leave(error)

    async def close(self) -> None:
        """Close the client: queued messages are sent, unsettled deliveries go back, waiting calls raise
        ``ClosedError``.

        Twice is silent.

        Checkpoint: always.  Cancellation: it is closed all the same; what was in line may be lost.
        """
        if self._block.shut():
            return
        # A loop that has ended has no client that is open; one that is still being entered is closed, too.
        with suppress(ClosedError):
            await self._loop.call(self._inner.close)

    def session(self) -> Client:
        """Create another session, on a connection of its own, with the same settings."""
        return Client(self._inner.session(), self._shared)

    def balancer(self, name: str) -> ClientBalancer:
        """Return a balancer of the broker, by its name; whether there is one shows its first call.

        Raises:
            SettingsError: no balancer can have the name.
        """
        return ClientBalancer(self._call, self._inner.balancer(name))

    def events(self) -> EventStream[ConnectionEvent]:
        """Return an async iterator of the connection's events from now on."""
        stream: EventStream[ConnectionEvent] = EventStream(self._loop)
        self._loop.run_sync_if_open(lambda: watch(self._inner, stream))
        return stream

    # -- calls that are not handed on as they are

    async def _flush(self) -> None:
        await self._producers.feed()
        await self._inner.flush()

    async def _serve(
        self, queue: str, handler: Handler, *, concurrency: int, on_error: Any, window: int | None, **consumer: Any
    ) -> None:
        size = check_serving(handler, concurrency, on_error, window)
        async with self.consumer(queue, window=size, **consumer) as opened:
            worker = Worker(opened, handler, concurrency, HandlerErrors(queue, on_error))
            with self._workers.running(worker):
                await worker.run()

    def stop_serving(self) -> None:
        """End every ``serve`` of this client, and every later one.

        Each returns when the handlers that have begun have ended.

        Returns at once.
        """
        self._workers.stop()
