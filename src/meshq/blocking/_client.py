"""The client for threads: the same client, in a trio loop of its own."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from meshq import client as trio_client
from meshq.blocking._balancer import ClientBalancer
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._delivery import Handler
from meshq.blocking._events import EventStream
from meshq.blocking._generated_administration import AdministrationCalls
from meshq.blocking._generated_client import ClientCalls
from meshq.blocking._generated_stages import StageCalls
from meshq.blocking._loop_thread import ThreadLoop
from meshq.blocking._worker import Worker
from meshq.client import ConnectionEvent, HandlerErrors, check_serving, watch
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.portal import OpenProducers, Workers


class Client(AdministrationCalls, StageCalls, ClientCalls):
    """A client: one session at a broker, for any thread.  Made by ``connect``, ``ClientFactory.connect`` or
    ``broker.client``.

    ``with`` connects at its begin and closes at its end.  When the connection is lost, the client comes back by
    itself; when it can't, calls raise ``ConnectionBrokenError``, and so does the block when its body has ended.

    Several threads may use it at once.  An interrupted call (``KeyboardInterrupt``) is cancelled: its documentation
    says what it may have done.
    """

    def __init__(self, inner: trio_client.Client, loop: ThreadLoop | None = None) -> None:
        self._inner = inner
        # A client of a blocking broker lives in that one's loop, any other has a loop of its own.
        self._shared = loop
        self._loop = loop if loop is not None else ThreadLoop("the client", inner._env.clock)
        self._block = ThreadBlockRunner(self._loop, inner, "the client", owner=loop is None)
        self._call = self._block.call
        self._producers = OpenProducers()
        self._workers = Workers()

    def __repr__(self) -> str:
        return repr(self._inner)

    # -- life

    def __enter__(self) -> Self:
        """Connect.

        Interrupted: nothing is left.
        Raises:
            UsageError: it was used before; or a trio task is calling.
            ConnectionBrokenError: no connection could be made with the attempts that the settings allow; or the broker
                whose client it is has stopped.
            ClosedError: it was closed meanwhile, or before.
            SecurityError, RemoteProtocolError: the node and this client don't fit.
        """
        try:
            self._block.enter()
        except ClosedError as error:
            if self._shared is None or not self._shared.closed:
                raise
            raise ConnectionBrokenError("the client's broker has stopped", outcome="not_done") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close; see ``close``.

        Interrupted: it is closed all the same.
        """
        return self._block.leave(error)

    def close(self) -> None:
        """Close the client: queued messages are sent, unsettled deliveries go back, waiting calls raise
        ``ClosedError``.

        Twice is silent.

        Interrupted: it is closed all the same; what was in line may be lost.
        """
        if self._block.shut():
            return
        # A loop that has ended has no client that is open; one that is still being entered is closed, too.
        with suppress(ClosedError):
            self._loop.call(self._inner.close)

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
        """Return an iterator of the connection's events from now on."""
        stream: EventStream[ConnectionEvent] = EventStream(self._loop)
        self._loop.run_sync_if_open(lambda: watch(self._inner, stream))
        return stream

    # -- calls that are not handed on as they are

    async def _flush(self) -> None:
        await self._producers.feed()
        await self._inner.flush()

    def _serve(
        self, queue: str, handler: Handler, *, concurrency: int, on_error: Any, window: int | None, **consumer: Any
    ) -> None:
        size = check_serving(handler, concurrency, on_error, window, threads=True)
        with self.consumer(queue, window=size, **consumer) as opened:
            worker = Worker(opened, handler, concurrency, HandlerErrors(queue, on_error))
            with self._workers.running(worker):
                worker.run()

    def stop_serving(self) -> None:
        """End every ``serve`` of this client, and every later one.

        Each returns when the handlers that have begun have ended.

        Returns at once; any thread may call it.
        """
        self._workers.stop()
