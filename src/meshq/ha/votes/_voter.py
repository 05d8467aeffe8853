"""A node that votes about others: it stores each vote before it is given."""

from __future__ import annotations

import trio

from meshq.abc import Disk, Env, File, ReplicaEnd, ReplicaHost, ReplicaLine
from meshq.errors import BusyError, DamagedError
from meshq.ha._whole_file import open_or_create, replace_file
from meshq.ha.votes._ballot_box_format import BYTES_MAX, decode_box, encode_box, file_of
from meshq.ha.votes._ballot_box_machine import Ballot, BallotBox, GivenVote
from meshq.ids import IDENTITY_BYTES
from meshq.logs import Warnings
from meshq.store import make_directory
from meshq.wire import Log, Logged, Replicate, decline

POOL = "ha"
#: Seconds of silence after which who has asked is given up.
SILENCE_S = 60.0
#: What a voter says.
YES = 1


class BoxFile:
    """The file of a ballot box, of one voter at a time; all calls block."""

    def __init__(self, disk: Disk, root: str, name: str) -> None:
        self._disk = disk
        self._root = root.rstrip("/") or "/"
        self._name = file_of(name)
        self._lock: File | None = None

    def lock(self) -> None:
        """Keep the box for this voter: two with one box would give one vote twice.  Twice is silent.

        Raises:
            BusyError: another process has it.
            OSError: the disk has failed.
        """
        if self._lock is not None:
            return
        make_directory(self._disk, self._root)
        lock = open_or_create(self._disk, f"{self._root}/{self._name}.lock")
        try:
            if not lock.lock():
                text = f"another node of the same name has the votes of {self._root}"
                raise BusyError(f"{text}: nodes with one directory need different names")
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def close(self) -> None:
        """Leave the box to others.  Twice is silent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def read(self) -> BallotBox | None:
        """Return the box; None: there is none yet.  Raises: DamagedError, OSError."""
        path = f"{self._root}/{self._name}"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            return decode_box(file.read_at(0, BYTES_MAX), path)
        finally:
            file.close()

    def write(self, data: bytes) -> None:
        """Replace the box; durable on return.  Raises: OSError."""
        replace_file(self._disk, self._root, self._name, data)


class Voter(ReplicaHost[Replicate, Log, Logged]):
    """The voter of one life of a broker.

    ``root``: the directory of its votes; None: they are in memory, and another life is another voter.
    """

    def __init__(self, name: str, root: str | None, env: Env, nursery: trio.Nursery) -> None:
        self._file = None if root is None else BoxFile(env.disk, root, name)
        self._env = env
        self._nursery = nursery
        self._box: BallotBox | None = None
        self._lock = trio.Lock()
        self._warnings = Warnings("ha", trio.current_time)

    @property
    def silence_s_max(self) -> float:
        return SILENCE_S

    def follow(self, wanted: Replicate, line: ReplicaLine[Log], peer: str) -> ReplicaEnd[Logged]:
        """Take a question about a node id; the answer comes once it is stored."""
        if wanted.vote and (not wanted.node_id or wanted.number < 1):
            raise decline("usage", "a vote is about a node id, and a change of it")
        about = Ballot(node_id=wanted.node_id, number=wanted.number, holder=wanted.node_name, vote=bytes(wanted.vote))
        self._nursery.start_soon(self._answer, about, line)
        return VoterLine(self, about, line)

    def take_back(self, ballot: Ballot, line: ReplicaLine[Log]) -> None:
        """Take a vote back, and say so."""
        self._nursery.start_soon(self._take_back, ballot, line)

    async def _answer(self, ballot: Ballot, line: ReplicaLine[Log]) -> None:
        async with self._lock:
            box = await self._known_box()
            if box is None:
                line.end("the node can't store its votes")
                return
            vote = box.judge(ballot) if ballot.vote else None
            yes = vote is not None and await self._store(box, ballot.node_id, vote)
            self._say(box, ballot, line, flags=YES if yes else 0)

    async def _take_back(self, ballot: Ballot, line: ReplicaLine[Log]) -> None:
        async with self._lock:
            box = await self._known_box()
            if box is None:
                return
            vote = box.taken_back(ballot)
            if vote is not None:
                await self._store(box, ballot.node_id, vote)
            self._say(box, ballot, line, flags=0)

    def _say(self, box: BallotBox, ballot: Ballot, line: ReplicaLine[Log], *, flags: int) -> None:
        last = box.last(ballot.node_id)
        line.send(Log(kind="vote", instance=box.box_id, flags=flags, number=last.number, name=last.holder))
        line.flush()

    async def _known_box(self) -> BallotBox | None:
        """Return the box; it is on the disk before its id is told."""
        if self._box is None:
            if self._file is None:
                text = "this node has no data_dir: the votes that it gives about other nodes are forgotten at its end"
                self._warnings.say("votes_in_memory", f"{text}, and it is a new voter then")
            try:
                found = None if self._file is None else await self._env.threads.run(self._read, self._file, pool=POOL)
                if found is None:
                    found = BallotBox(self._env.entropy.token(IDENTITY_BYTES))
                    await self._write(encode_box(found))
            except (BusyError, DamagedError, OSError) as error:
                self._warnings.say("no_votes", f"this node votes about no other one: {error}")
                return None
            self._box = found
        return self._box

    def _read(self, file: BoxFile) -> BallotBox | None:
        file.lock()
        return file.read()

    def close(self) -> None:
        """Unlock the file of the votes, once all tasks of the voter are over.  Twice is silent."""
        if self._file is not None:
            self._file.close()

    async def _store(self, box: BallotBox, node_id: bytes, vote: GivenVote) -> bool:
        """Store a vote; return whether it is durable."""
        try:
            await self._write(encode_box(box, node_id, vote))
        except OSError as error:
            self._warnings.say("no_votes", f"a vote is not given, because it can't be stored: {error}")
            return False
        box.adopt(node_id, vote)
        return True

    async def _write(self, data: bytes) -> None:
        if self._file is not None:
            await self._env.threads.run(self._file.write, data, pool=POOL)


class VoterLine(ReplicaEnd[Logged]):
    """The link to who has asked for a vote."""

    def __init__(self, voter: Voter, ballot: Ballot, line: ReplicaLine[Log]) -> None:
        self._voter = voter
        self._ballot = ballot
        self._line = line

    def heard(self, answer: Logged, first: int) -> None:
        """Take the vote back, if who has asked does not need it."""
        if answer.kind == "withdraw" and self._ballot.vote:
            self._voter.take_back(self._ballot, self._line)

    def drained(self) -> None:
        """Do nothing."""

    def leaving(self) -> None:
        """Do nothing."""

    def lost(self) -> None:
        """Do nothing: a vote stays given."""
