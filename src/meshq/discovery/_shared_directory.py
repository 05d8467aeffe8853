"""The endpoint of a directory that several hosts share.

Each channel is a member with a file of its own, in which its last datagram stands.  A datagram replaces the file of its
member in one step, so a reader finds the old one or the new one and never a part; the readers look at all files from
time to time.  Nothing is synced: after a loss of power there is nobody to find.

A file that doesn't change for ``STALE_S`` seconds, on the reader's own clock, belongs to a member that is gone, and is
removed.  The file of a living member that is slower than this is back with its next datagram.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

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

T = TypeVar("T")

#: Seconds between two looks at the directory.
LOOK_S: Final = 0.25
#: Seconds after which the file of a silent member is removed: five attempts of ten seconds each.
STALE_S: Final = 50.0
#: Members that are heard.
MEMBERS_MAX: Final = 1_024
#: Files with the names of members and other contents that are watched until they are old enough to be removed.
JUNK_MAX: Final = 512
#: Unknown names that are looked at in one look at least, in turn; a directory may hold anything.
UNKNOWN_PER_LOOK_MIN: Final = 256
CHANNEL_CHARACTERS_MAX: Final = 128
MEMBER_BYTES: Final = 16
#: The worker threads of shared directories, of each directory its own: it may be another host's, and hang.
POOL: Final = "discovery"
#: Seconds for which an answer of the directory is waited for.
ANSWER_S: Final = 10.0
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
            BrokenError: the directory can't be made or read, or does not answer.
        """
        check_in_trio("Broker")
        member = env.entropy.token(MEMBER_BYTES).hex()
        files = MemberFiles(env.disk, f"{self.path}/{self.channel}", member)
        found = await _answer(env.threads, files, files.begin)
        return DirectoryChannel(files, env.threads, found)


class MemberFiles:
    """The files of one channel of a shared directory, as one of its members sees them.  All calls block."""

    def __init__(self, disk: Disk, directory: str, member: str) -> None:
        self._disk = disk
        self._member = member
        #: The last unknown name that was looked at: the next look goes on behind it.
        self._last = ""
        self.directory: str = directory

    def begin(self) -> dict[str, bytes | None]:
        """Make the directory, and read the files of the other members."""
        self._disk.make_directory(self.directory)
        return self.read()

    def write(self, content: MemberFile) -> None:
        """Replace the member's own file."""
        path = f"{self.directory}/{self._member}"
        written = f"{path}.new"
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(written)
        try:
            file = self._disk.open(written, create=True)
            try:
                file.write_at(0, [encode_member(content)])
            finally:
                file.close()
            self._disk.replace(written, path)
        except OSError:
            # The next attempt has another name, and the directory may stay as it is for long.
            with contextlib.suppress(OSError):
                self._disk.remove(written)
            raise

    def read(self, known: Collection[str] = ()) -> dict[str, bytes | None]:
        """Return the contents of the known files by name, and of a bounded number of others; None: no file is there.

        Names that are junk cost a turn, and hide neither a member that is known nor, for ever, one that is not.
        """
        own = (self._member, f"{self._member}.new")
        names = {name for name in self._disk.names(self.directory) if is_member(name) and name not in own}
        unknown = sorted(names.difference(known))
        turn = bisect.bisect(unknown, self._last)
        looked = max(MEMBERS_MAX - len(known), UNKNOWN_PER_LOOK_MIN)
        chosen = (unknown[turn:] + unknown[:turn])[:looked]
        self._last = chosen[-1] if chosen else ""
        found = {name: self._content(name) for name in chosen}
        return found | {name: self._content(name) if name in names else None for name in known}

    def _content(self, name: str) -> bytes | None:
        # One name that is junk must not hide the members.
        try:
            file = self._disk.open(f"{self.directory}/{name}")
            try:
                return file.read_at(0, FILE_BYTES_MAX + 1)
            finally:
                file.close()
        except OSError as error:
            if error.errno not in _NO_MEMBER:
                raise
            return None

    def remove(self, names: list[str]) -> None:
        """Remove the files of members that are gone."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(f"{self.directory}/{name}")


@attrs.define
class _Seen:
    """The file of another member: its content, when it changed last, and whether it ever was a datagram."""

    content: bytes
    changed_at: float
    member: bool


class DirectoryChannel(BroadcastChannel):
    """A channel of a ``SharedDirectory``."""

    def __init__(self, files: MemberFiles, threads: Threads, found: Mapping[str, bytes | None]) -> None:
        self._files = files
        self._threads = threads
        self._number = 0
        #: The files of the other members by name, and files that may become such.
        self._seen: dict[str, _Seen] = {}
        #: Datagrams that were found and not received yet: one for each member at most.
        self._waiting: deque[bytes] = deque()
        self._writing = trio.Lock()
        self._closed = trio.Event()
        # What was there when the channel was opened counts as received.
        self._take(found)
        self._waiting.clear()

    async def broadcast(self, datagram: bytes) -> None:
        """Write a datagram to the member's own file."""
        check_datagram(datagram)
        async with self._writing:
            self._check_open()
            self._number += 1
            content = MemberFile(self._number, bytes(datagram))
            await _answer(self._threads, self._files, self._files.write, content)

    async def receive(self) -> bytes:
        """Receive the next datagram."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        while not self._waiting:
            await self._look()
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
            BrokenError: the directory can't be read, or does not answer.
        """
        stale = self._take(await _answer(self._threads, self._files, self._files.read, tuple(self._seen)))
        if stale:
            await _answer(self._threads, self._files, self._files.remove, stale)

    def _take(self, found: Mapping[str, bytes | None]) -> list[str]:
        """Take in the contents of files, and return the names of files that did not change for ``STALE_S``."""
        now = trio.current_time()
        stale = []
        for name, content in found.items():
            seen = self._seen.get(name)
            if content is None:
                self._seen.pop(name, None)
            elif seen is None or seen.content != content:
                datagram = decode_member(content)
                member = datagram is not None or (seen is not None and seen.member)
                if self._full(seen, member=member):
                    continue
                self._seen[name] = _Seen(content, now, member)
                if datagram is not None:
                    self._waiting.append(datagram.datagram)
            elif now - seen.changed_at >= STALE_S:
                stale.append(name)
        return stale

    def _full(self, seen: _Seen | None, *, member: bool) -> bool:
        """Whether there is no room for one more file of its sort."""
        if seen is not None and seen.member == member:
            return False
        alike = sum(one.member == member for one in self._seen.values())
        return alike >= (MEMBERS_MAX if member else JUNK_MAX)

    def close(self) -> None:
        """Close the channel.  Its file is removed by the other members, as that of a member that is gone."""
        self._closed.set()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClosedError("the channel is closed")


async def _answer(threads: Threads, files: MemberFiles, function: Callable[..., T], *arguments: Any) -> T:
    """Make a call on the directory; a call that hangs is left to its thread.

    Checkpoint: always.
    Cancellation: the call is waited for as long as it may take, because the next call must not meet it.
    Raises:
        BrokenError: the directory can't be used, or does not answer.
    """
    with trio.CancelScope(deadline=trio.current_time() + ANSWER_S, shield=True) as scope:
        try:
            found = await threads.run(function, *arguments, pool=f"{POOL} {files.directory}")
        except OSError as error:
            text = f"the directory {files.directory} can't be used: {error.strerror or error}"
            raise caused(BrokenError(text), error) from error
    await trio.lowlevel.checkpoint_if_cancelled()
    if scope.cancelled_caught:
        text = f"the directory {files.directory} does not answer for {ANSWER_S:g} s"
        raise BrokenError(text) from TimeoutError(f"no answer within {ANSWER_S:g} s")
    return found
