"""Bodies made of pieces by asyncio, which a worker thread of the trio loop asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from meshq.abc import Buffer

P = ParamSpec("P")
T = TypeVar("T")


class Pieces:
    """An async iterable of asyncio, as a plain iterable for another thread."""

    def __init__(self, pieces: AsyncIterable[Buffer], loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces
        self._loop = loop
        self._made: list[PieceIterator] = []

    def __iter__(self) -> Iterator[Buffer]:
        iterator = aiter(self._pieces)
        if iterator is self._pieces and self._made:
            # What it has given it does not give again.
            return self._made[0]
        self._made.append(PieceIterator(iterator, self._loop))
        return self._made[-1]

    @property
    def again(self) -> bool:
        """Whether the pieces can be iterated again from the first one."""
        return aiter(self._pieces) is not self._pieces

    def stop(self) -> None:
        """Stop the iteration: a wait for the next piece ends with an error."""
        for iterator in self._made:
            iterator.stop()


class PieceIterator:
    """An iteration over the pieces."""

    def __init__(self, pieces: AsyncIterator[Buffer], loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces
        self._loop = loop
        self._stopped = False
        self._task: asyncio.Task[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Buffer:
        """Return the next piece; blocks."""
        piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
        if piece is None:
            raise StopIteration
        return piece

    async def _next(self) -> Buffer | None:
        if self._stopped:
            return None
        self._task = asyncio.current_task()
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            return None
        finally:
            self._task = None

    def stop(self) -> None:
        """End the wait for a piece."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()


def with_body(
    method: Callable[Concatenate[Any, str, Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, str, Any, P], Coroutine[Any, Any, T]]:
    """As ``forwarded``, for a method with a body, which may be made by asyncio."""

    name = method.__name__

    @wraps(method)
    async def call(self: Any, /, address: str, body: Any, *arguments: P.args, **keywords: P.kwargs) -> T:
        send = getattr(self._inner, name)
        if not hasattr(body, "__aiter__"):
            plain: T = await self._call(send, address, body, *arguments, **keywords)
            return plain
        pieces = Pieces(body, asyncio.get_running_loop())
        source = pieces if pieces.again else iter(pieces)
        calling = asyncio.ensure_future(self._call(send, address, source, *arguments, **keywords))
        try:
            result: T = await asyncio.shield(calling)
        except asyncio.CancelledError:
            # The thread that waits for a piece can't be cancelled: the piece is.
            pieces.stop()
            calling.cancel()
            await asyncio.wait([calling])
            raise
        return result

    # Address and body may be given by name, too.
    return call  # type: ignore[return-value]
