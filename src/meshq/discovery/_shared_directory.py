"""The endpoint of a directory that several hosts share.

Each channel is a member with a file of its own, in which its last datagram stands.  A datagram replaces the file of its
member in one step, so a reader finds the old one or the new one and never a part; the readers look at all files from
time to time.  Nothing is synced: after a loss of power there is nobody to find.

A file that doesn't change for ``STALE_S`` seconds, on the reader's own clock, belongs to a member that is gone, and is
removed.  The file of a living member that is slower than this is back with its next datagram.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from meshq.abc import BroadcastChannel, BroadcastEndpoint, Disk, Env, Threads
from meshq.discovery._shared_directory_format import (
    FILE_BYTES_MAX,
    MemberFile,
    decode_member,
    encode_member,
    is_member,
)
from meshq.discovery._socket_channel import check_datagram
from meshq.errors import BrokenError, ClosedError, SettingsError, caused
from meshq.loops import check_in_trio

#: Seconds between two looks at the directory.
LOOK_S: Final = 0.25
#: Seconds after which the file of a silent member is removed: five attempts of ten seconds each.
STALE_S: Final = 50.0
#: Files that are read at a look; a directory may hold anything.
MEMBERS_MAX: Final = 1_024
CHANNEL_CHARACTERS_MAX: Final = 128
MEMBER_BYTES: Final = 16
#: The worker threads of all shared directories: a directory of another host may hang.
POOL: Final = "discovery"
#: What the system says of a name at which no file of a member can be read: it is gone, or was replaced meanwhile, or
#: something else has the name (a directory, a pipe, a socket, a link to itself).
_NO_MEMBER: Final = frozenset({errno.ENOENT, errno.ESTALE, errno.EISDIR, errno.ELOOP, errno.ESPIPE, errno.ENXIO})


def _path(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or isinstance(os.fspath(value), bytes):
        raise SettingsError("path", value, "the path of a directory")
    return str(os.fspath(value))


def _channel(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    good = type(value) is str and 0 < len(value) <= CHANNEL_CHARACTERS_MAX and value.isprintable()
    if not good or "/" in value or value.startswith("."):
        allowed = f"1 to {CHANNEL_CHARACTERS_MAX} printable characters without '/', the first of them no point"
        raise SettingsError(attribute.name, value, allowed)


@attrs.frozen
class SharedDirectory(BroadcastEndpoint):
    """A directory that all hosts share: each member keeps its last datagram in a file there.

    ``path``: the directory, which is made if it is missing; ``channel``: members of one channel hear each other.
    All members are processes of one user.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    path: str = attrs.field(converter=_path)
    channel: str = attrs.field(validator=_channel)

    async def open(self, env: Env) -> BroadcastChannel:
        """Make the directory, and note which datagrams are there already.

        Checkpoint: always.
        Cancellation: the directory may be made; no file of a member is in it.
        Raises:
            BrokenError: the directory can't be made or read.
        """
        check_in_trio("Broker")
        member = env.entropy.token(MEMBER_BYTES).hex()
        files = MemberFiles(env.disk, f"{self.path}/{self.channel}", member)
        try:
            found = await env.threads.run(files.begin, pool=POOL)
        except OSError as error:
            raise _broken(files, error) from error
        return DirectoryChannel(files, env.threads, found)


class MemberFiles:
    """The files of one channel of a shared directory, as one of its members sees them.  All calls block."""

    def __init__(self, disk: Disk, directory: str, member: str) -> None:
        self._disk = disk
        self._member = member
        self.directory: str = directory

    def begin(self) -> dict[str, bytes]:
        """Make the directory, and read the files of the other members."""
        self._disk.make_directory(self.directory)
        return self.read()

    def write(self, content: MemberFile) -> None:
        """Replace the member's own file."""
        path = f"{self.directory}/{self._member}"
        written = f"{path}.new"
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(written)
        file = self._disk.open(written, create=True)
        try:
            file.write_at(0, [encode_member(content)])
        finally:
            file.close()
        self._disk.replace(written, path)

    def read(self) -> dict[str, bytes]:
        """Return the contents of the other members' files by name."""
        own = (self._member, f"{self._member}.new")
        names = [name for name in self._disk.names(self.directory) if is_member(name) and name not in own]
        found = {}
        for name in names[:MEMBERS_MAX]:
            # One name that is junk must not hide the members.
            try:
                found[name] = self._content(name)
            except OSError as error:
                if error.errno not in _NO_MEMBER:
                    raise
        return found

    def _content(self, name: str) -> bytes:
        file = self._disk.open(f"{self.directory}/{name}")
        try:
            return file.read_at(0, FILE_BYTES_MAX + 1)
        finally:
            file.close()

    def remove(self, names: list[str]) -> None:
        """Remove the files of members that are gone."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(f"{self.directory}/{name}")


@attrs.define
class _Seen:
    """The file of another member: its content, and when it changed last."""

    content: bytes
    changed_at: float


class DirectoryChannel(BroadcastChannel):
    """A channel of a ``SharedDirectory``."""

    def __init__(self, files: MemberFiles, threads: Threads, found: Mapping[str, bytes]) -> None:
        self._files = files
        self._threads = threads
        self._number = 0
        now = trio.current_time()
        #: The files of the other members by name.  What was there when the channel was opened counts as received.
        self._seen: dict[str, _Seen] = {name: _Seen(content, now) for name, content in found.items()}
        #: Datagrams that were found and not received yet: one for each member at most.
        self._waiting: deque[bytes] = deque(maxlen=MEMBERS_MAX)
        self._writing = trio.Lock()
        self._closed = trio.Event()

    async def broadcast(self, datagram: bytes) -> None:
        """Write a datagram to the member's own file."""
        check_datagram(datagram)
        async with self._writing:
            self._check_open()
            self._number += 1
            try:
                await self._threads.run(self._files.write, MemberFile(self._number, bytes(datagram)), pool=POOL)
            except OSError as error:
                raise _broken(self._files, error) from error

    async def receive(self) -> bytes:
        """Receive the next datagram."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        while not self._waiting:
            try:
                await self._look()
            except OSError as error:
                raise _broken(self._files, error) from error
            self._check_open()
            if not self._waiting:
                with trio.move_on_after(LOOK_S):
                    await self._closed.wait()
                self._check_open()
        return self._waiting.popleft()

    async def _look(self) -> None:
        """Read the files of the other members, and queue each changed datagram.

        Checkpoint: always.
        Cancellation: the next look finds the same.
        Raises:
            OSError: the directory can't be read.
        """
        found = await self._threads.run(self._files.read, pool=POOL)
        now = trio.current_time()
        stale = []
        for name, content in found.items():
            seen = self._seen.get(name)
            if seen is None or seen.content != content:
                self._seen[name] = _Seen(content, now)
                member = decode_member(content)
                if member is not None:
                    self._waiting.append(member.datagram)
            elif now - seen.changed_at >= STALE_S:
                stale.append(name)
        for name in [name for name in self._seen if name not in found]:
            del self._seen[name]
        if stale:
            await self._threads.run(self._files.remove, stale, pool=POOL)

    def close(self) -> None:
        """Close the channel.  Its file is removed by the other members, as that of a member that is gone."""
        self._closed.set()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("the channel is closed")


def _broken(files: MemberFiles, error: OSError) -> BrokenError:
    return caused(BrokenError(f"the directory {files.directory} can't be used: {error.strerror or error}"), error)
