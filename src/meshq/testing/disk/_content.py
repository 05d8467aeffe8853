"""The bytes of a file of a simulated disk, of which zeros at the end take no memory."""

from __future__ import annotations

from typing import Final

import attrs

#: Long runs of zeros are compared with these: a journal writes so many at a time when it makes a segment.
_ZEROS: Final = bytes(1024 * 1024)


def _is_zero(data: bytes) -> bool:
    if data[:1] != b"\0":
        return not data
    return all(
        data[at : at + len(_ZEROS)] == _ZEROS[: min(len(_ZEROS), len(data) - at)]
        for at in range(0, len(data), len(_ZEROS))
    )


@attrs.define(eq=False)
class Content:
    """The bytes of a file.

    The segments of a journal are made of zeros, and most of each stays so in a simulation: the zeros at the end are
    only counted.
    """

    #: All bytes up to some place behind the last one that is not zero.
    _bytes: bytearray = attrs.field(factory=bytearray, repr=False)
    _size: int = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int) -> int:
        if not 0 <= at < self._size:
            raise IndexError(f"byte {at} of {self._size}")
        return self._bytes[at] if at < len(self._bytes) else 0

    def copy(self) -> Content:
        """The same bytes, which change on their own."""
        return Content(bytearray(self._bytes), self._size)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes from one offset up to another one, or to the end."""
        stop = self._size if stop is None else min(stop, self._size)
        with memoryview(self._bytes) as view:
            found = bytes(view[start:stop])
        missing = max(stop - start, 0) - len(found)
        return found + bytes(missing) if missing else found

    def write(self, offset: int, data: bytes) -> None:
        """Change the bytes at an offset; between the end and an offset behind it there will be zeros."""
        end = offset + len(data)
        kept = self._bytes
        if offset < len(kept) or not _is_zero(data):
            if len(kept) < offset:
                kept.extend(bytes(offset - len(kept)))
            kept[offset:end] = data
        self._size = max(self._size, end)

    def resize(self, size: int) -> None:
        """Cut the bytes behind a size, or add zeros up to it."""
        del self._bytes[size:]
        self._size = size
