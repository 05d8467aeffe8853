"""Which event loop a task runs in: the classes of ``meshq`` itself are for trio."""

from __future__ import annotations

import trio
import trio.abc

from meshq.errors import UsageError


def check_in_trio(name: str) -> None:
    """See that a task of trio is calling.  ``name``: the class, such as "Broker".

    Raises:
        UsageError: a task of asyncio, or no task at all; names what is there for it.
    """
    if not trio.lowlevel.in_trio_task():
        instead = f"meshq.aio.{name} for asyncio, meshq.blocking.{name} without async"
        if name in ("Journal", "QuorumNode"):
            instead = "trio.run"
        raise UsageError(f"meshq.{name} needs a task of trio, and this is none; use {instead}")


def check_on_clock(name: str, clock: trio.abc.Clock | None) -> None:
    """See that this loop goes by the clock of an environment, which may have none.

    On another one nothing that the clock is moved over would ever be due.

    Raises:
        UsageError: the loop goes by another clock.
    """
    if clock is not None and trio.lowlevel.current_clock() is not clock:
        raise UsageError(
            f"the environment of the broker {name!r} has a clock, and this loop goes by another one;"
            " run the loop on it: trio.run(main, clock=clock)"
        )
