"""A disk that fails on purpose, for tests of real processes.

Tools outside the process count system calls per thread; here they are counted over the whole process,
whatever the file and the thread, so that "at the 17th write" means the same in every run.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from meshq.abc import Buffer, Disk, File
from meshq.errors import SettingsError

Action = Literal["kill", "tear", "eio", "enospc"]
#: What is counted: writes to files; syncs of files and directories; changes of names (create, replace,
#: remove, make or move a directory).
Call = Literal["write", "sync", "name"]

ERRORS: Final[Mapping[str, int]] = {"eio": errno.EIO, "enospc": errno.ENOSPC}


class FaultInjectingDisk(Disk):
    """A disk that passes all calls to ``disk``, but fails at the call that ``at`` names: ``at={"write": 5}`` is the
    fifth write of this process.

    ``action`` says what happens there, before anything reaches the disk:

    - ``"kill"``: the process ends by SIGKILL;
    - ``"tear"``: the same, but half of the bytes of a write reach the system first;
    - ``"eio"``, ``"enospc"``: the call fails with that error; with ``forever=True`` every later call of that
      kind fails, too.

    ``calls`` counts the calls of each kind, so that a first run without a fault (``at={}``) tells how many there are
    to try.  Safe to use from several threads.
    """

    __slots__ = ("_action", "_at", "_disk", "_forever", "_lock", "calls")

    def __init__(self, disk: Disk, *, at: Mapping[Call, int], action: Action = "kill", forever: bool = False) -> None:
        for call, number in at.items():
            if call not in get_args(Call) or number < 1:
                raise SettingsError("at", dict(at), f"numbers from 1 on for {', '.join(get_args(Call))}")
        if action not in get_args(Action):
            raise SettingsError("action", action, ", ".join(get_args(Action)))
        self._disk = disk
        self._at = dict(at)
        self._action = action
        self._forever = forever
        self._lock = threading.Lock()
        self.calls: dict[Call, int] = {"write": 0, "sync": 0, "name": 0}

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._inject("name", path)
        return _FaultInjectingFile(self, path, self._disk.open(path, create=create))

    def replace(self, old: str, new: str) -> None:
        self._inject("name", old)
        self._disk.replace(old, new)

    def move_directory(self, old: str, new: str) -> None:
        self._inject("name", old)
        self._disk.move_directory(old, new)

    def remove(self, path: str) -> None:
        self._inject("name", path)
        self._disk.remove(path)

    def names(self, directory: str) -> list[str]:
        return self._disk.names(directory)

    def make_directory(self, path: str) -> None:
        self._inject("name", path)
        self._disk.make_directory(path)

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def mode(self, directory: str) -> int:
        return self._disk.mode(directory)

    def sync_directory(self, path: str) -> None:
        self._inject("sync", path)
        self._disk.sync_directory(path)

    def _due(self, call: Call) -> bool:
        """Count a call; return True if this call fails."""
        with self._lock:
            self.calls[call] += 1
            number, due = self.calls[call], self._at.get(call)
        return due is not None and (number == due or (number > due and self._forever))

    def _inject(self, call: Call, path: str) -> None:
        """Count a call, and fail if the fault is due."""
        if self._due(call):
            self._fail(path)

    def _fail(self, path: str) -> None:
        number = ERRORS.get(self._action)
        if number is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise OSError(number, os.strerror(number), path)


class _FaultInjectingFile(File):
    """A file of a fault-injecting disk."""

    __slots__ = ("_faults", "_file", "_path")

    def __init__(self, faults: FaultInjectingDisk, path: str, file: File) -> None:
        self._faults = faults
        self._path = path
        self._file = file

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        if self._faults._due("write"):
            if self._faults._action == "tear":
                data = b"".join(buffers)
                self._file.write_at(offset, [data[: len(data) // 2]])
            self._faults._fail(self._path)
        self._file.write_at(offset, buffers)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._file.read_at(offset, size)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> float:
        self._faults._inject("sync", self._path)
        return self._file.sync()

    def lock(self) -> bool:
        return self._file.lock()

    def close(self) -> None:
        self._file.close()
