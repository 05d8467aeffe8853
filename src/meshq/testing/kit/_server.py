"""A broker in a thread of its own for tests of every framework, in real time."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack

import attrs

from meshq import blocking
from meshq.client import ClientOptions
from meshq.errors import UsageError
from meshq.settings import Acceptor
from meshq.testing.kit._broker_settings import broker_keywords

NAME: Final = "test"


class ServerInThread:
    """A broker in a thread of its own, in real time; the fixture ``meshq_server``.

    It listens at a free port of this machine, which it keeps over restarts.
    """

    def __init__(self, data_dir: str, settings: Mapping[str, Any]) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._urls: list[str] = []
        self._broker: blocking.Broker | None = None

    def __repr__(self) -> str:
        return f"<ServerInThread {self._urls} {'stopped' if self._broker is None else self._broker.state}>"

    @property
    def urls(self) -> list[str]:
        """The URLs at which the broker listens, or listened before it was killed."""
        return list(self._urls)

    @property
    def url(self) -> str:
        """The first URL at which the broker listens."""
        return self._urls[0]

    @property
    def broker(self) -> blocking.Broker:
        """The broker of the present life, with the calls of ``meshq.blocking``.

        Raises:
            UsageError: the broker was killed.
        """
        if self._broker is None:
            raise UsageError("the broker was killed: restart() starts it again")
        return self._broker

    def client(self, **settings: Unpack[ClientOptions]) -> blocking.Client:
        """Create a client of the broker, over the network; a context manager."""
        return blocking.connect(self.url, **settings)

    def kill(self) -> None:
        """End the broker at once, as a crash does: confirmed messages are safe, and no client is told.

        Raises:
            UsageError: the broker was killed before.
        """
        broker, self._broker = self.broker, None
        broker._loop.run_sync_if_open(lambda: _end_now(broker))
        broker.__exit__(None, None, None)

    def restart(self) -> None:
        """Start the broker again on the same data and at the same URLs; a broker that runs is killed first."""
        if self._broker is not None:
            self.kill()
        self._start()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.__exit__(None, None, None)

    def _start(self) -> None:
        given = broker_keywords({"data_dir": self._data_dir, "acceptors": ["tcp://127.0.0.1:0"]}, self._settings)
        if self._urls:
            given["acceptors"] = list(map(_at, given["acceptors"], self._urls))
        broker = blocking.Broker(NAME, **given)
        broker.__enter__()
        self._broker = broker
        self._urls = list(broker.urls)


def _at(acceptor: str | Acceptor, url: str) -> str | Acceptor:
    """The same acceptor at the port that it was given when the broker first listened."""
    return attrs.evolve(acceptor, url=url) if isinstance(acceptor, Acceptor) else url


def _end_now(broker: blocking.Broker) -> None:
    turn = broker._inner._run.turn
    if turn is not None:
        turn.scope.cancel()
