"""Errors for sockets and threads of the process in a simulated test.

A clock that jumps waits for neither, so a test that needed one would fail or pass by chance.  Files, the time of day
and random numbers of the program under test stay as they are.
"""

from __future__ import annotations

import _thread
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from meshq.errors import UsageError

#: What is refused: where, the name, and how an error calls it.
REFUSED: Final[tuple[tuple[Any, str, str], ...]] = (
    (socket.socket, "__init__", "a socket"),
    (threading.Thread, "start", "a thread"),
    (_thread, "start_new_thread", "a thread"),
    # trio keeps threads that have done their work, and gives them more without starting any.
    (trio.to_thread, "run_sync", "a thread"),
    (trio.lowlevel, "start_thread_soon", "a thread"),
)


@contextmanager
def real_world_refused() -> Iterator[None]:
    """Refuse sockets and threads to this thread inside this block; other threads may have them."""
    own = threading.get_ident()
    real = [(owner, name, getattr(owner, name)) for owner, name, _ in REFUSED]
    try:
        for owner, name, what in REFUSED:
            setattr(owner, name, _refusing(what, getattr(owner, name), own))
        yield
    finally:
        for owner, name, function in real:
            setattr(owner, name, function)


def _refusing(what: str, real: Callable[..., Any], own: int) -> Callable[..., Any]:
    def refusing(*arguments: Any, **keywords: Any) -> Any:
        if threading.get_ident() != own:
            return real(*arguments, **keywords)
        text = f"{what} of the real world can't be part of a simulated test, whose clock does not wait for it"
        raise UsageError(f"{text}; use meshq_network, or meshq_server for a test in real time")

    return refusing
