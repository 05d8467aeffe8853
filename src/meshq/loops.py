"""Which event loop a task runs in: the classes of ``meshq`` itself are for trio."""

from __future__ import annotations

import trio

from meshq.errors import UsageError


def check_in_trio(name: str) -> None:
    """See that a task of trio is calling.  ``name``: the class, such as "Broker".

    Raises:
        UsageError: a task of asyncio, or no task at all; names what is there for it.
    """
    if not trio.lowlevel.in_trio_task():
        instead = f"meshq.aio.{name} for asyncio, meshq.blocking.{name} without async"
        if name == "Journal":
            instead = "trio.run"
        raise UsageError(f"meshq.{name} needs a task of trio, and this is none; use {instead}")
