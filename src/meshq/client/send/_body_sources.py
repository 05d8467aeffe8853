"""Sources of the bytes of a large message: bytes, a file, or an iterable of pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, BinaryIO, Final, TypeAlias

import trio

from meshq import limits
from meshq.abc import Buffer, Threads
from meshq.errors import SettingsError, kind_of

#: The types of a body.
BodySource: TypeAlias = Buffer | BinaryIO | AsyncIterable[Buffer] | Iterable[Buffer]
#: Where files are read, and iterators asked: they may block.
POOL: Final = "large"
_KINDS: Final = "bytes or something like bytes, a binary file, or an iterable or async iterable of such"


class PieceSource(ABC):
    """Gives pieces, and, if it can, gives them again from the first one on."""

    @abstractmethod
    async def piece(self) -> Buffer | None:
        """The next piece; None at the end.  Raises every error of the program's own code."""

    @abstractmethod
    async def restart(self) -> bool:
        """Begin again; False if that can't be done."""

    @abstractmethod
    async def close(self) -> None:
        """Close the source; objects of the program stay open."""


class _Bytes(PieceSource):
    def __init__(self, body: Buffer) -> None:
        self._body = memoryview(body).cast("B")
        self._at = 0

    async def piece(self) -> Buffer | None:
        piece = self._body[self._at : self._at + limits.LARGE_BLOCK_BYTES]
        self._at += len(piece)
        return piece if len(piece) else None

    async def restart(self) -> bool:
        self._at = 0
        return True

    async def close(self) -> None:
        return


class _File(PieceSource):
    def __init__(self, file: BinaryIO, threads: Threads) -> None:
        self._file = file
        self._threads = threads
        # Where the body begins; None: not known yet, or not to be found again.
        self._start: int | None = None
        self._begun = False

    async def piece(self) -> Buffer | None:
        if not self._begun:
            self._begun = True
            self._start = await self._threads.run(_position, self._file, pool=POOL)
        return await self._threads.run(self._file.read, limits.LARGE_BLOCK_BYTES, pool=POOL) or None

    async def restart(self) -> bool:
        if self._start is None:
            return not self._begun
        await self._threads.run(self._file.seek, self._start, pool=POOL)
        return True

    async def close(self) -> None:
        return


def _position(file: BinaryIO) -> int | None:
    return file.tell() if file.seekable() else None


class _Pieces(PieceSource):
    def __init__(self, pieces: Iterable[Buffer], threads: Threads) -> None:
        self._pieces = pieces
        self._threads = threads
        self._iterator: Iterator[Buffer] | None = None

    async def piece(self) -> Buffer | None:
        if self._iterator is None:
            self._iterator = iter(self._pieces)
        return await self._threads.run(_next, self._iterator, pool=POOL)

    async def restart(self) -> bool:
        # An iterator gives what is left of it.
        again = self._iterator is not self._pieces
        if again:
            self._iterator = None
        return again

    async def close(self) -> None:
        self._iterator = None


def _next(iterator: Iterator[Buffer]) -> Buffer | None:
    return next(iterator, None)


class _AsyncPieces(PieceSource):
    def __init__(self, pieces: AsyncIterable[Buffer]) -> None:
        self._pieces = pieces
        self._iterator: AsyncIterator[Buffer] | None = None

    async def piece(self) -> Buffer | None:
        if self._iterator is None:
            self._iterator = aiter(self._pieces)
        try:
            return await anext(self._iterator)
        except StopAsyncIteration:
            return None

    async def restart(self) -> bool:
        if self._iterator is self._pieces:
            return False
        await self.close()
        return True

    async def close(self) -> None:
        # An iterator that was made here is closed here.
        iterator, self._iterator = self._iterator, None
        if iterator is not self._pieces and isinstance(iterator, AsyncGenerator):
            await iterator.aclose()


def source_of(body: Any, threads: Threads) -> PieceSource:
    """Make the source of a body's bytes.

    Raises:
        SettingsError: it is nothing of which a body can be made.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return _Bytes(body)
    if hasattr(body, "__aiter__"):
        return _AsyncPieces(body)
    if callable(getattr(body, "read", None)):
        return _File(body, threads)
    if isinstance(body, (str, dict)) or not hasattr(body, "__iter__"):
        raise SettingsError("body", None, _KINDS, shown=kind_of(body))
    return _Pieces(body, threads)


class SourceBlocks:
    """A source, cut into whole blocks and a last one."""

    def __init__(self, source: PieceSource) -> None:
        self._source = source
        self._gathered = bytearray()
        self._ended = False

    async def first(self, size: int) -> bytes | None:
        """Return the whole body if it is smaller than ``size``, else None: the body is then read in blocks.

        Checkpoint: always.  Cancellation: pieces may be lost: restart the source.
        Raises: SettingsError: a piece is no bytes.
        """
        await self._gather(size)
        return bytes(self._gathered) if self._ended and len(self._gathered) < size else None

    async def next(self) -> tuple[bytes, bool]:
        """The next block, and whether it is the last one.

        Checkpoint: always.  Cancellation, Raises: as ``first``.
        """
        # One byte more tells whether there is another block.
        await self._gather(limits.LARGE_BLOCK_BYTES + 1)
        block = bytes(self._gathered[: limits.LARGE_BLOCK_BYTES])
        del self._gathered[: limits.LARGE_BLOCK_BYTES]
        return block, self._ended and not self._gathered

    async def _gather(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        while len(self._gathered) < size and not self._ended:
            piece = await self._source.piece()
            if piece is None:
                self._ended = True
            elif isinstance(piece, (bytes, bytearray, memoryview)):
                self._gathered += memoryview(piece).cast("B")
            else:
                raise SettingsError(
                    "body", None, f"pieces that are bytes, of {_KINDS}", shown=f"<a piece that is {kind_of(piece)}>"
                )
