"""Errors for code inside of a simulation that calls the real world past ``meshq.abc``.

Clocks, dice, files, sockets and threads of the process would make a run depend on something other than its seed.
``tripwires()`` puts a function in the place of each that raises ``TripwireError``; on leaving, everything is as
it was.  What was bound before (``from time import monotonic``) is not caught: a rule over imports forbids that
outside ``meshq.env``.

What must stay allowed, by who calls, because it was shown to be needed: ``logging`` stamps its records with the
time; ``linecache`` and ``tokenize`` read source for tracebacks, with which failures are reported.
"""

from __future__ import annotations

import _thread
import builtins
import io
import os
import random
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from meshq.errors import InvariantError

#: Modules of the standard library whose own calls pass.
ALLOWED: Final = frozenset({"logging", "linecache", "tokenize"})

CLOCKS: Final = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "clock_gettime",
    "localtime",
    "gmtime",
    "sleep",
)
DICE: Final = (
    "random",
    "uniform",
    "triangular",
    "randint",
    "randrange",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "seed",
    "getrandbits",
    "randbytes",
    "gauss",
    "expovariate",
    "betavariate",
    "normalvariate",
    "_urandom",
)
#: What is watched: (where, names).
WATCHED: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (time, CLOCKS),
    (random, DICE),
    (random.SystemRandom, ("random", "getrandbits", "randbytes")),
    (os, ("urandom", "getrandom", "open", "fdopen", "fork")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbits", "randbelow", "choice")),
    (uuid, ("uuid1", "uuid4")),
    (threading.Thread, ("start",)),
    (_thread, ("start_new_thread",)),
    (builtins, ("open",)),
    (io, ("open",)),
    (socket.socket, ("__init__",)),
)


class TripwireError(InvariantError):
    """Code inside of a simulation has called the real world: ``call`` is a clock, a file, a socket or a thread."""

    def __init__(self, call: str) -> None:
        super().__init__(f"{call} was called inside a simulation; go through meshq.abc")
        self.call = call


def _thread_wire(real: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse trio's worker threads, of which some may wait since before the simulation, to the run of this thread."""
    thread = threading.get_ident()

    async def run_sync(*arguments: Any, **keywords: Any) -> Any:
        if threading.get_ident() == thread:
            raise TripwireError("trio.to_thread.run_sync")
        return await real(*arguments, **keywords)

    return run_sync


def _wire(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def wired(*arguments: Any, **keywords: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") in ALLOWED:
            return real(*arguments, **keywords)
        raise TripwireError(call)

    return wired


@contextmanager
def tripwires() -> Iterator[None]:
    """Raise ``TripwireError`` for every call to the real world inside this block, in any thread."""
    real: list[tuple[Any, str, Any]] = []
    try:
        for owner, names in WATCHED:
            for name in names:
                if name in vars(owner):
                    function = getattr(owner, name)
                    real.append((owner, name, function))
                    setattr(owner, name, _wire(f"{owner.__name__}.{name}", function))
        real.append((trio.to_thread, "run_sync", trio.to_thread.run_sync))
        setattr(trio.to_thread, "run_sync", _thread_wire(trio.to_thread.run_sync))  # noqa: B010
        yield
    finally:
        for owner, name, function in reversed(real):
            setattr(owner, name, function)
