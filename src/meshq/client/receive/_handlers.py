"""Handlers of ``client.serve`` in all faces: checks of their signatures, and the treatment of their errors."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import PurePath
from typing import Any, Final

import trio

from meshq.errors import SettingsError, kind_of, short
from meshq.logs import Warnings

#: Handlers of one ``serve`` that may run at a time.
CONCURRENCY_MAX: Final = 10_000

_ASYNC: Final = "an async function of a delivery"
_NOT_ASYNC: Final = "a function that is not async: its coroutine would be awaited by nobody"


def check_serving(
    handler: object, concurrency: object, on_error: object, window: object, *, threads: bool = False
) -> int:
    """Check the arguments of a worker; return the window of its consumer.

    ``window`` None: twice the concurrency, so that the next message is here when a handler ends, and the others stay
    for other workers.  ``threads``: handlers run in threads, where nobody would await an async function.

    Raises:
        SettingsError: one of the settings is not allowed.
    """
    if not callable(handler):
        raise SettingsError("handler", handler, "a function of a delivery")
    _check_parameters("handler", handler, "a delivery")
    if threads and inspect.iscoroutinefunction(handler):
        raise SettingsError("handler", handler, _NOT_ASYNC)
    if not threads and _never_awaitable(handler):
        raise SettingsError("handler", handler, _ASYNC, shown=f"{short(handler)}, which is not async,")
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise SettingsError("concurrency", concurrency, f"a whole number from 1 to {CONCURRENCY_MAX}")
    if on_error is not None and not callable(on_error):
        raise SettingsError("on_error", on_error, "a function of a delivery and an exception, or None")
    if on_error is not None:
        _check_parameters("on_error", on_error, "a delivery", "an exception")
    if inspect.iscoroutinefunction(on_error):
        raise SettingsError("on_error", on_error, _NOT_ASYNC)
    if window is None:
        return 2 * concurrency
    if type(window) is not int or window < 1:
        raise SettingsError("window", window, "a whole number from 1, or None")
    return window


def _check_parameters(name: str, function: Callable[..., object], *given: str) -> None:
    """Check that a function can be called with its arguments, before any message is received.

    Raises:
        SettingsError: it can't.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions that are written in C don't tell.
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        allowed = f"a function that can be called with {' and '.join(given)}"
        shown = f"{short(function)}, which takes {signature} ({error}),"
        raise SettingsError(name, function, allowed, shown=shown) from None


def _never_awaitable(handler: Callable[..., object]) -> bool:
    """Whether a handler is certain to return nothing that can be awaited: a plain ``def`` that doesn't say otherwise.

    An object that can be called is judged by its ``__call__``, a ``partial`` by what it calls.  A lambda or a function
    that wraps an async one may return a coroutine: of these it is seen when they do not.
    """
    function: Any = handler
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return False
    function = inspect.unwrap(function)
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = inspect.unwrap(type(function).__call__)
    if not (inspect.isfunction(function) or inspect.ismethod(function)) or function.__name__ == "<lambda>":
        return False
    told = str(getattr(function, "__annotations__", {}).get("return", ""))
    return not inspect.iscoroutinefunction(function) and "wait" not in told and "Coroutine" not in told


class HandlerErrors:
    """The treatment of a handler's exception: a warning in the log, and a call of the program's own function.

    The warning names the type and the place of the exception; its text may be of the message, and is not logged.
    """

    def __init__(self, queue: str, on_error: Callable[[Any, Exception], object] | None) -> None:
        self._queue = queue
        self._on_error = on_error
        self._warnings = Warnings("client", trio.current_time)
        # A function of the wrong kind was given: each of these ends the worker; several threads may raise one.
        self._misuses: list[SettingsError] = []

    def awaitable(self, returned: object) -> Awaitable[object]:
        """Return the awaitable that an async handler has returned.

        Raises:
            SettingsError: the handler is not async, and has run: waiting for its end is not possible.
        """
        if isinstance(returned, Awaitable):
            return returned
        raise self._misused("handler", returned, _ASYNC)

    def finished(self, returned: object, what: str = "handler") -> None:
        """See that a function which is not to be awaited has ended with its call.

        Raises:
            SettingsError: it has returned a coroutine, and has done nothing yet.
        """
        if inspect.iscoroutine(returned):
            returned.close()
            raise self._misused(what, returned, _NOT_ASYNC)

    def _misused(self, what: str, returned: object, allowed: str) -> SettingsError:
        error = SettingsError(what, None, allowed, shown=f"<a function that returns {kind_of(returned)}>")
        self._misuses.append(error)
        return error

    def misused(self, error: BaseException | None) -> bool:
        """Whether ``error`` says that the handler is of the wrong kind: its message goes back uncounted, and the worker
        ends."""
        return any(error is one for one in self._misuses)

    def passed_on(self, delivery: Any, error: Exception) -> bool:
        """Tell the program's own function of ``error``; False if there is none, and a warning is due.

        Raises: whatever that function raises, which ends the worker.
        """
        if self._on_error is None:
            return False
        self.finished(self._on_error(delivery, error), "on_error")
        return True

    def warn(self, place: str, settled: bool) -> None:
        """Log that a handler has failed; to be called in the client's own thread.

        ``place``: see ``place_of``.  ``settled``: the handler had settled its message before it failed.
        """
        fate = "the handler had settled the message before" if settled else "the message is given back"
        text = f"a handler of {self._queue!r} raised {place}; {fate}"
        self._warnings.say("handler_failed", text, place)


def place_of(error: BaseException) -> str:
    """The type of an exception, and the file, line and function that raised it."""
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    if not frames:
        return kind
    last = frames[-1]
    return f"{kind} in {last.name} ({PurePath(last.filename).name}:{last.lineno})"
