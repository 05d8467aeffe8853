"""The lock of a session at ZooKeeper: its requests, and the meaning of the answers.

Each call is a generator: it yields a request, and is sent the answer.  The record is the data of a node; the lock is an
ephemeral node below it.  Taking the lock also writes the record as it is, which gives it another version.  So whatever
a holder writes, and gives back, is tied to the version of its own time, and fails once somebody else has had the lock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

import attrs

from meshq.abc import QuorumRecord
from meshq.errors import RefusedError, SecurityError
from meshq.ha.quorum.zookeeper._record_format import decode_record, encode_record

T = TypeVar("T")
_GONE: Final = "the lock of the node id is gone: its session at ZooKeeper has ended, or another node has had it"
_OPEN: Final = "everybody may change {} in ZooKeeper, which a node without a user has made: set its ACL, or remove it"
#: Any version of a node.
ANY: Final = -1


@attrs.frozen
class Sync:
    """Wait until all that was written before can be read.  The answer: None."""

    path: str


@attrs.frozen
class Read:
    """Read a node.  The answer: ``Found``, or None if it is not there."""

    path: str


@attrs.frozen
class Found:
    """A node: its data and its version; ``mine``: it is ephemeral, and of the session that asks."""

    data: bytes
    version: int
    mine: bool


@attrs.frozen
class Look:
    """Look who may change a node.  The answer: whether not everybody may."""

    path: str


@attrs.frozen
class Make:
    """Make a lasting node without data, unless it is there; ``shared``: for all users, who may read it and make nodes
    below it, and nothing else.  The answer: None.
    """

    path: str
    shared: bool


@attrs.frozen
class Check:
    """A part of a ``Write``: the node is there, with this version."""

    path: str
    version: int = ANY


@attrs.frozen
class Put:
    """A part of a ``Write``: replace the data of a node of this version."""

    path: str
    data: bytes
    version: int = ANY


@attrs.frozen
class Create:
    """A part of a ``Write``: make an ephemeral node, which must not be there."""

    path: str
    data: bytes


@attrs.frozen
class Delete:
    """A part of a ``Write``: remove a node, which must be there."""

    path: str


@attrs.frozen
class Write:
    """All of this at once, or nothing of it.  The answer: whether it was done."""

    parts: tuple[Check | Put | Create | Delete, ...]


Request = Sync | Read | Look | Make | Write
Answer = Found | bool | None
Steps = Generator[Request, Answer, T]


class LockNode:
    """The lock of one node id, as one session of it knows it; ``path``: the node with the record.

    ``secured``: what is below the first node of the path belongs to the user of this session.
    """

    def __init__(self, path: str, instance: bytes, *, secured: bool = False) -> None:
        self._path = path
        self._secured = secured
        self._lock = f"{path}/lock"
        self._instance = instance
        self._takes = 0
        # Whether the record is known to be closed to other users.
        self._closed = False
        #: Whether the lock may be there, and of this session.
        self.claimed: bool = False
        # The version of the record since the lock was taken, and the record; None: a request has no answer yet.
        self._known: tuple[int, QuorumRecord] | None = None
        # What was to be stored when the answer stayed away, with what was expected.
        self._doubt: tuple[QuorumRecord, QuorumRecord] | None = None

    def read(self) -> Steps[QuorumRecord]:
        """Return the record.  Raises: RemoteProtocolError: it can't be read."""
        yield Sync(self._path)
        found = yield from self._read(self._path)
        return QuorumRecord() if found is None else decode_record(found.data, self._path)

    def acquire(self) -> Steps[bool]:
        """Try to get the lock; return whether this session has it.

        Raises:
            RemoteProtocolError: the record can't be read.
            SecurityError: there is a user, and the record is open to everybody.
        """
        # A try before this one may be under way, and the server that answers now may not have heard of it yet.
        yield Sync(self._path)
        record = yield from self._made()
        if self._secured and not self._closed:
            self._closed = (yield Look(self._path)) is True
            if not self._closed:
                raise SecurityError(_OPEN.format(self._path))
        held = yield from self._read(self._lock)
        if held is not None and not held.mine:
            return False
        value = decode_record(record.data, self._path)
        # One of an earlier time, which nobody counts on any more, is replaced: each time has a name of its own.
        leftover = () if held is None else (Delete(self._lock),)
        self._takes += 1
        may_be_ours = self.claimed or held is not None
        self._known, self._doubt, self.claimed = None, None, True
        taken = yield Write(
            (*leftover, Create(self._lock, self._name()), Put(self._path, record.data, record.version)),
        )
        if not taken:
            self.claimed = may_be_ours
            return False
        self._known = record.version + 1, value
        return True

    def renew(self) -> Steps[None]:
        """Show that the lock is held, by a write that most servers of the ensemble have kept.

        Raises:
            RefusedError: the lock is lost.
        """
        version, _ = yield from self._settled()
        if not (yield Write((Check(self._path, version), Put(self._lock, self._name())))):
            raise RefusedError(_GONE, outcome="not_done")

    def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> Steps[bool]:
        """Store a record in the place of another one; return whether that was the record.

        Raises:
            RefusedError: the lock is lost.
        """
        version, record = yield from self._settled()
        doubt, self._doubt = self._doubt, None
        if doubt == (expected, new) and record == new:
            return True
        if record != expected:
            # Whether it is really ours to say is asked first.
            self._known = None
            yield from self._settled()
            return False
        self._known, self._doubt = None, (expected, new)
        done = yield Write((Check(self._lock), Put(self._path, encode_record(new), version)))
        if not done:
            raise RefusedError(_GONE, outcome="not_done")
        self._known, self._doubt = (version + 1, new), None
        return True

    def release(self) -> Steps[None]:
        """Give the lock back.  A release that arrives late ends no later lock: the record has another version then."""
        yield Sync(self._path)
        found = yield from self._read(self._path)
        held = yield from self._read(self._lock)
        self._known = None
        gone = found is None or held is None or not held.mine
        if found is not None and not gone:
            gone = (yield Write((Check(self._path, found.version), Delete(self._lock)))) is True
        self.claimed = self.claimed and not gone

    def _settled(self) -> Steps[tuple[int, QuorumRecord]]:
        """Return the version and the record; both are read again if a request has stayed without its answer."""
        if self._known is None:
            yield Sync(self._path)
            # In this order: a lock that is still ours was ours when the record was read.
            found = yield from self._read(self._path)
            held = yield from self._read(self._lock)
            if found is None or held is None or held.data != self._name():
                raise RefusedError(_GONE, outcome="not_done")
            self._known = found.version, decode_record(found.data, self._path)
        return self._known

    def _made(self) -> Steps[Found]:
        """The node of the record, which is made with the ones above it if it is not there."""
        while (found := (yield from self._read(self._path))) is None:
            parts = self._path.split("/")[1:]
            for count in range(1, len(parts) + 1):
                # Other users have nodes below the first one, and others without a user below the next one.
                shared = count == 1 or (count < len(parts) and not self._secured)
                yield Make("/" + "/".join(parts[:count]), shared)
        return found

    def _name(self) -> bytes:
        return f"{self._instance.hex()} {self._takes}".encode()

    def _read(self, path: str) -> Steps[Found | None]:
        answer = yield Read(path)
        assert answer is None or isinstance(answer, Found)
        return answer
