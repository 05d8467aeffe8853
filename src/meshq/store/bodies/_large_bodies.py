"""The files of large bodies: written once, block by block, and removed when no record refers to them.

All calls block; they are made from worker threads, for one body by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from meshq.abc import Buffer, Disk, File
from meshq.errors import DamagedError
from meshq.limits import LARGE_BLOCK_BYTES, LARGE_SYNC_BYTES
from meshq.store.directory._directories import make_directory
from meshq.store.formats._large_body_format import (
    HEADER_BYTES,
    SALT_BYTES,
    TAG_BYTES,
    BlockKeys,
    LargeBodyHeader,
    block_count,
    block_offset,
    decode_large_header,
    encode_large_header,
    file_bytes,
    file_name,
    id_in_name,
)
from meshq.store.formats._layout_format import Layout


class LargeBodyWriter:
    """The file of one body that is being received."""

    __slots__ = ("_directory", "_disk", "_end", "_file", "_keys", "_number", "_unsynced", "body_id")

    def __init__(self, disk: Disk, layout: Layout, header: LargeBodyHeader) -> None:
        self._disk = disk
        self._directory = layout.large
        self.body_id: bytes = header.body_id
        path = f"{layout.large}/{file_name(header.body_id, whole=False)}"
        self._keys = BlockKeys(header, layout.keyring, path)
        self._file: File = disk.open(path, create=True)
        self._number = 0
        self._end = HEADER_BYTES
        # Bytes written since the last sync.
        self._unsynced = 0
        try:
            self._file.write_at(0, [encode_large_header(header)])
        except BaseException:
            self._file.close()
            # No record refers to the file; if it can't be removed now, the next start sweeps it.
            with suppress(OSError):
                disk.remove(path)
            raise

    def write(self, blocks: list[Buffer], *, last: bool, durable: bool) -> None:
        """Write the next blocks; ``last``: the body ends with the last of them.

        ``durable``: the file is synced now and then, and at its end.  Raises: OSError.
        """
        pieces: list[Buffer] = []
        for index, block in enumerate(blocks, 1):
            pieces += self._keys.seal(self._number, block, last=last and index == len(blocks))
            self._number += 1
        self._file.write_at(self._end, pieces)
        size = sum(map(len, pieces))
        self._end += size
        self._unsynced += size
        if durable and not last and self._unsynced >= LARGE_SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0

    def finish(self, *, durable: bool) -> None:
        """Give the file of the whole body its name; durable on return, if ``durable``.  Raises: OSError."""
        if durable:
            self._file.sync()
        self._file.close()
        names = [f"{self._directory}/{file_name(self.body_id, whole=whole)}" for whole in (False, True)]
        self._disk.replace(*names)
        if durable:
            self._disk.sync_directory(self._directory)

    def close(self) -> None:
        """Close the file, and leave it where it is."""
        self._file.close()

    def abandon(self) -> None:
        """Remove the file of a body whose rest will not come.  Raises: OSError."""
        self._file.close()
        self._disk.remove(f"{self._directory}/{file_name(self.body_id, whole=False)}")


class LargeBodyFiles:
    """The directory of large bodies."""

    def __init__(self, disk: Disk, layout: Layout, token: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._layout = layout
        self._directory = layout.large
        self._token = token

    def prepare(self) -> None:
        """Make the directory unless it exists; durable on return.  Raises: OSError."""
        make_directory(self._disk, self._directory)

    def create(self, body_id: bytes) -> LargeBodyWriter:
        """Begin a body.  Raises: OSError."""
        key_id = self._layout.keyring.current_id
        return LargeBodyWriter(
            self._disk, self._layout, LargeBodyHeader(body_id, self._token(SALT_BYTES), LARGE_BLOCK_BYTES, key_id)
        )

    def read(self, body_id: bytes, size: int, number: int) -> bytes:
        """Read one block of a body of ``size`` bytes.

        Raises:
            DamagedError: the block is not what was written.
            SettingsError: the file is encrypted with an unknown key, or of a newer version.
            FileNotFoundError: the body was removed.
            OSError: the disk failed.
        """
        path = f"{self._directory}/{file_name(body_id, whole=True)}"
        file = self._disk.open(path)
        try:
            header = decode_large_header(file.read_at(0, HEADER_BYTES), path)
            if header.body_id != body_id or header.block_bytes != LARGE_BLOCK_BYTES:
                raise DamagedError(path, 12, f"body {body_id.hex()}", header.body_id.hex())
            offset = block_offset(number)
            length = min(LARGE_BLOCK_BYTES, size - number * LARGE_BLOCK_BYTES)
            found = file.read_at(offset, length + TAG_BYTES)
        finally:
            file.close()
        last = number + 1 == block_count(size)
        block = BlockKeys(header, self._layout.keyring, path).open(number, found, last=last)
        if block is None or len(block) != length:
            raise DamagedError(path, offset, f"block {number} with its tag", "other bytes")
        return block

    def remove(self, body_id: bytes) -> None:
        """Remove a body that no record refers to.  A crash may undo the removal: the next start sweeps.

        Raises: OSError.
        """
        self._disk.remove(f"{self._directory}/{file_name(body_id, whole=True)}")

    def sweep(self, living: Mapping[bytes, int]) -> int:
        """Remove all files but the ``living`` bodies (size by id); return how many were removed.

        Raises:
            DamagedError: a body is missing, or has another length; nothing was removed.
            SettingsError: a body is encrypted with an unknown key, or of a newer version; nothing was removed.
            OSError: the disk failed.
        """
        missing = dict(living)
        gone: list[str] = []
        for name in self._disk.names(self._directory):
            body_id = id_in_name(name)
            path = f"{self._directory}/{name}"
            if body_id is None:
                # Not one of our files: another program may need it.
                continue
            if body_id not in missing or name != file_name(body_id, whole=True):
                gone.append(path)
                continue
            self._check(path, file_bytes(missing.pop(body_id)))
        if missing:
            body_id, size = next(iter(missing.items()))
            path = f"{self._directory}/{file_name(body_id, whole=True)}"
            raise DamagedError(path, 0, f"a body of {size} bytes, which a record refers to", "no such file")
        for path in gone:
            self._disk.remove(path)
        if gone:
            self._disk.sync_directory(self._directory)
        return len(gone)

    def _check(self, path: str, expected: int) -> None:
        """Check the length and the key of a file; its bytes are proven when they are read.  Raises: DamagedError,
        SettingsError, OSError.
        """
        file = self._disk.open(path)
        try:
            found = file.size()
            head = file.read_at(0, min(found, HEADER_BYTES))
        finally:
            file.close()
        if found != expected:
            raise DamagedError(path, min(found, expected), f"{expected} bytes", f"{found} bytes")
        # A message that can't be read must not keep the others from being delivered.
        with suppress(DamagedError):
            self._layout.keyring.check(decode_large_header(head, path).key_id, path)
