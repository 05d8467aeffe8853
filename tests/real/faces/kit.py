"""The faces of meshq, one like another: a test of a promise is written once, and runs over each of them.

A promise is an async function of a ``Face``.  On trio and asyncio it uses the face's own objects; on threads the same
calls go through ``Awaited``, whose coroutines never wait: each of them is one blocking call.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, Self, TypeVar

import pytest
import trio

import meshq
from meshq import aio, blocking
from tests.real.blocking_kit import in_threads, our_threads

T = TypeVar("T")
#: Seconds after which what is expected does not come any more.
WAIT_S = 10
ACCEPTORS = ["tcp://127.0.0.1:0"]
Test = Callable[..., Coroutine[Any, Any, None]]


class Signal(Protocol):
    """Something that one function of a test waits for, and that another one says."""

    def set(self) -> object:
        """Say it."""

    async def wait(self) -> object:
        """Return when it was said."""


class Face(ABC):
    """A face, as a test uses it."""

    #: How a block is entered, as errors say it.
    BLOCK = "'async with'"

    def __init__(self, *, tcp: bool = False) -> None:
        self.tcp = tcp

    @abstractmethod
    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test to its end."""

    @abstractmethod
    def broker(self, name: str = "hq", **settings: Any) -> AbstractAsyncContextManager[Any]:
        """A broker of this face; in memory, and without an acceptor, unless the settings say otherwise."""

    @abstractmethod
    def connected(self, url: str, **settings: Any) -> Any:
        """A client of this face over TCP."""

    @abstractmethod
    async def together(self, *functions: Callable[[], Awaitable[object]]) -> None:
        """Run functions at once, each in a task or a thread, until all of them have ended."""

    @abstractmethod
    def signal(self) -> Signal:
        """A new signal."""

    @abstractmethod
    async def pause(self) -> None:
        """Let a moment pass."""

    async def until(self, condition: Callable[[], Any]) -> None:
        """Return when a condition, async or not, is true; raise when that takes too long."""
        end = time.monotonic() + WAIT_S
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            assert time.monotonic() < end, "it does not come"
            await self.pause()

    def client(self, broker: Any, **settings: Any) -> Any:
        """A client of a broker of this face, over TCP or in process."""
        return self.connected(broker.urls[0], **settings) if self.tcp else broker.client(**settings)

    @asynccontextmanager
    async def clients(self, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
        """Two clients of one new broker."""
        async with (
            self.broker(**settings) as broker,
            self.client(broker) as first,
            self.client(broker) as second,
        ):
            yield first, second

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"data_dir": None, "acceptors": ACCEPTORS if self.tcp else (), **settings}


class TrioFace(Face):
    """The client and the broker for trio."""

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        trio.run(test)

    def broker(self, name: str = "hq", **settings: Any) -> AbstractAsyncContextManager[Any]:
        return meshq.Broker(name, **self._settings(settings))

    def connected(self, url: str, **settings: Any) -> Any:
        return meshq.connect(url, **settings)

    async def together(self, *functions: Callable[[], Awaitable[object]]) -> None:
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)

    def signal(self) -> Signal:
        return trio.Event()

    async def pause(self) -> None:
        await trio.sleep(0.001)


class BrokerInThreadFace(TrioFace):
    """The client for trio, of a broker in a thread."""

    def broker(self, name: str = "hq", **settings: Any) -> AbstractAsyncContextManager[Any]:
        return meshq.Broker(name, **self._settings(settings)).run_in_thread()


class AsyncioFace(Face):
    """The client and the broker for asyncio."""

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(test(), debug=True)

    def broker(self, name: str = "hq", **settings: Any) -> AbstractAsyncContextManager[Any]:
        return aio.Broker(name, **self._settings(settings))

    def connected(self, url: str, **settings: Any) -> Any:
        return aio.connect(url, **settings)

    async def together(self, *functions: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(_awaited(function))

    def signal(self) -> Signal:
        return asyncio.Event()

    async def pause(self) -> None:
        await asyncio.sleep(0.001)


async def _awaited(function: Callable[[], Awaitable[object]]) -> None:
    await function()


class BlockingFace(Face):
    """The client and the broker for threads."""

    BLOCK = "'with'"

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        driven(test())

    def broker(self, name: str = "hq", **settings: Any) -> AbstractAsyncContextManager[Any]:
        return Awaited(blocking.Broker(name, **self._settings(settings)))

    def connected(self, url: str, **settings: Any) -> Any:
        return Awaited(blocking.connect(url, **settings))

    async def together(self, *functions: Callable[[], Awaitable[object]]) -> None:
        in_threads(*(functools.partial(self.run, functools.partial(_awaited, function)) for function in functions))

    def signal(self) -> Signal:
        return ThreadSignal()

    async def pause(self) -> None:
        time.sleep(0.001)  # noqa: ASYNC251 - it is a thread that waits


class ThreadSignal:
    """A signal between threads."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> object:
        """Say it."""
        return self._event.set()

    async def wait(self) -> object:
        """Return when it was said."""
        assert self._event.wait(WAIT_S)
        return None


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for a loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a thread has no loop to wait for")


class Awaited:
    """An object for threads with the methods of the object for asyncio: what is a coroutine there, is one here."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return awaited(found)
        if inspect.iscoroutinefunction(getattr(getattr(aio, type(self.inner).__name__, None), name, None)):

            async def called(*arguments: Any, **keywords: Any) -> Any:
                return awaited(found(*map(bare, arguments), **{key: bare(one) for key, one in keywords.items()}))

            return called
        return lambda *arguments, **keywords: awaited(found(*arguments, **keywords))

    def __repr__(self) -> str:
        return repr(self.inner)

    def __eq__(self, other: object) -> bool:
        return bare(other) is self.inner

    def __hash__(self) -> int:
        return hash(self.inner)

    async def __aenter__(self) -> Self:
        self.inner.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        left: bool | None = self.inner.__exit__(*error)
        return left

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return awaited(next(self.inner))
        except StopIteration:
            raise StopAsyncIteration from None


_BLOCKING = tuple(thing for name in blocking.__all__ if inspect.isclass(thing := getattr(blocking, name)))


def awaited(found: Any) -> Any:
    """What a blocking call has returned, for a test."""
    if isinstance(found, list):
        return [awaited(one) for one in found]
    return Awaited(found) if isinstance(found, _BLOCKING) else found


def bare(given: Any) -> Any:
    """What a test gives to a call, for the blocking call: objects for threads, and handlers that are not async."""
    if isinstance(given, Awaited):
        return given.inner
    if not inspect.isfunction(given):
        return given
    if inspect.iscoroutinefunction(given):
        return lambda delivery: driven(given(awaited(delivery)))
    return lambda *arguments: given(*map(awaited, arguments))


FACES = {
    "trio": TrioFace(),
    "trio over TCP": TrioFace(tcp=True),
    "broker in a thread": BrokerInThreadFace(),
    "asyncio": AsyncioFace(),
    "asyncio over TCP": AsyncioFace(tcp=True),
    "blocking": BlockingFace(),
    "blocking over TCP": BlockingFace(tcp=True),
}


def promise(test: Test) -> Callable[..., None]:
    """A test of what every face promises: an async function of a face, and of fixtures."""

    @pytest.mark.parametrize("face", FACES.values(), ids=FACES)
    def run(face: Face, **fixtures: Any) -> None:
        assert our_threads() == []
        face.run(functools.partial(test, face, **fixtures))
        assert our_threads() == []

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    # The collector asks for the fixtures by the names of the parameters.
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


async def received(consumer: Any) -> Any:
    """The next message, which is expected."""
    delivery = await consumer.receive(timeout=WAIT_S)
    assert delivery is not None
    return delivery
