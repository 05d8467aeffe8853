"""What tests of threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshq.blocking import Broker, Client, connect


def our_threads() -> list[str]:
    """The threads that meshq has started, and that run."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("meshq: ")]


def in_threads(*functions: Callable[[], Any]) -> None:
    """Run functions at once, each in a thread, until all have ended; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def clients(data_dir: Path | None) -> Iterator[list[Client]]:
    """A client over TCP and one in process, of the same broker."""
    where = data_dir / "hq" if data_dir is not None else None
    with (
        Broker("hq", data_dir=where, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as far,
        broker.client() as near,
    ):
        yield [far, near]
