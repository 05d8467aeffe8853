"""Spill files: pages with the bytes of runs that are in no journal, in files of one life of a broker.

The files are never synced, and a start removes those of earlier lives.  Pages are encrypted with a key that exists only
in this process, so no later process can read them, and a page that is read back is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from meshq.abc import Buffer, Disk, Entropy, File
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_BYTES
from meshq.store.directory._ping_pong_file import is_disk_full

_KEY_BYTES: Final = 32
SUFFIX: Final = ".page"


class Page(NamedTuple):
    """The place of a run's bytes: file, offset, size; its number of messages, the bytes of its table."""

    file: int
    offset: int
    size: int
    rows: int
    table_size: int


class SpillFiles:
    """The files of ``paging/``.  All calls but ``forget`` block; one at a time."""

    def __init__(self, disk: Disk, directory: str, entropy: Entropy) -> None:
        self._disk = disk
        self._directory = directory
        self._cipher = AESGCM(entropy.token(_KEY_BYTES))
        # The number of needed pages of each file.
        self._needed: dict[int, int] = {}
        # The file that is written to, its number (0: none), the highest number, and the end of that file.  Only this
        # file is open: a queue of gigabytes has hundreds of files.
        self._file: File | None = None
        self._current = 0
        self._last = 0
        self._end = 0

    def open(self) -> None:
        """Remove the files of earlier lives.  Raises: OSError."""
        self._disk.make_directory(self._directory)
        for name in self._disk.names(self._directory):
            if name.endswith(SUFFIX):
                self._disk.remove(f"{self._directory}/{name}")

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number:016x}{SUFFIX}"

    def write(self, runs: Sequence[tuple[int, bytes, Buffer]]) -> list[Page] | None:
        """Write runs (messages, table, body); None if the disk is full: then no page was written.

        Raises:
            OSError: the disk failed.
        """
        pages: list[Page] = []
        try:
            for rows, table, body in runs:
                if not self._current or self._end >= SEGMENT_BYTES:
                    self._begin()
                sealed = self._cipher.encrypt(_nonce(self._current, self._end), table + body, None)
                assert self._file is not None
                self._file.write_at(self._end, [sealed])
                pages.append(Page(self._current, self._end, len(sealed), rows, len(table)))
                self._end += len(sealed)
        except OSError as error:
            # An offset is used once: the unfinished page stays behind.
            self._leave()
            if not is_disk_full(error):
                raise
            self.remove_unused()
            return None
        for page in pages:
            self._needed[page.file] += 1
        return pages

    def _begin(self) -> None:
        self._leave()
        self._last += 1
        number = self._last
        self._file = self._disk.open(self._path(number), create=True)
        self._needed[number] = 0
        self._current, self._end = number, 0

    def _leave(self) -> None:
        """Close the current file; no page is added to it."""
        file, self._file, self._current = self._file, None, 0
        if file is not None:
            file.close()

    def read(self, pages: Sequence[Page]) -> list[tuple[int, bytes, bytes]]:
        """Read the runs of these pages.

        Raises:
            DamagedError: a page is not what was written.
            OSError: the disk failed.
        """
        found = []
        with ExitStack() as stack:
            number, file = 0, self._file
            for page in pages:
                if page.file != number:
                    number = page.file
                    # Pages that are read together stand together, so few files are opened, one at a time.
                    stack.close()
                    file = self._file if number == self._current else self._disk.open(self._path(number))
                    if file is not None and file is not self._file:
                        stack.callback(file.close)
                assert file is not None
                data = file.read_at(page.offset, page.size)
                found.append(self._opened(page, data))
        return found

    def _opened(self, page: Page, data: bytes) -> tuple[int, bytes, bytes]:
        try:
            content = self._cipher.decrypt(_nonce(page.file, page.offset), data, None)
        except InvalidTag as error:
            raise DamagedError(self._path(page.file), page.offset, "a page", "other bytes") from error
        return page.rows, content[: page.table_size], content[page.table_size :]

    def forget(self, page: Page) -> bool:
        """Forget a page that is not needed; return True if a file can be removed.  Does not block."""
        self._needed[page.file] -= 1
        return not self._needed[page.file]

    def remove_unused(self) -> None:
        """Remove the files without needed pages.  Raises: OSError."""
        for number in [number for number, needed in self._needed.items() if not needed]:
            if number == self._current:
                self._leave()
            del self._needed[number]
            self._disk.remove(self._path(number))

    def close(self) -> None:
        """Close the open file; the files stay until the next start.  Does not block."""
        self._leave()


def _nonce(file: int, offset: int) -> bytes:
    return file.to_bytes(4, "little") + offset.to_bytes(8, "little")
