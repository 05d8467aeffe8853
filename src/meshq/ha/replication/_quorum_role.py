"""The role of a node id at a quorum provider, as one node has it: the lock, and the record under which it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from meshq.abc import QuorumProvider, QuorumRecord, QuorumSession
from meshq.errors import MeshqError, RefusedError
from meshq.ha.quorum import (
    NoClaim,
    SafeSession,
    carry_out,
    claim,
    decide_claim,
    typed_errors,
    with_replica,
    without_replica,
)

#: Seconds between two tries to change the record while the quorum can't be asked.
PAUSE_S: Final = 0.1
#: Seconds for which a change of the record is tried, after the lease that was held when it began.
PATIENCE_S: Final = 30.0
#: Seconds for giving the lock back, also where the node is cancelled meanwhile.
RELEASE_S: Final = 2.0


class QuorumRole:
    """The part of a node in its quorum.

    ``store``: makes a counter durable in the node's own store.  ``complain``: told what could not be done.
    ``patience_s``: for so many seconds, and a lease, the record is tried to be changed.
    """

    def __init__(
        self,
        provider: QuorumProvider,
        *,
        name: str,
        instance: bytes,
        store: Callable[[int], Awaitable[None]],
        complain: Callable[[Exception], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._provider = provider
        self._name = name
        self._instance = instance
        self._store = store
        self._complain = complain
        self._patience_s = patience_s
        self._session: QuorumSession | None = None
        self._node_id = b""
        self._left = trio.Event()
        self._gone = trio.Event()
        # One call that changes anything at a time.
        self._turn = trio.Lock()
        self._scope = trio.CancelScope()
        self._closing = False
        # Whether the lock is to be given back as soon as nothing is done with it.
        self._owed = False
        # The replica that is being added, or may have been.
        self._adding = ""
        #: The record under which the node serves; None: it does not.
        self.record: QuorumRecord | None = None

    # -- the session

    async def open(self, nursery: trio.Nursery, node_id: bytes) -> None:
        """Take part for a node id; a part for another one ends.

        Checkpoint: always.
        Cancellation: the part may have begun.
        Raises: whatever the provider raises when its session begins.
        """
        await trio.lowlevel.checkpoint()
        if self._session is not None and self._node_id == node_id:
            return
        if self._session is not None:
            self._left.set()
            await self._gone.wait()
        self._node_id, self._left, self._gone = node_id, trio.Event(), trio.Event()
        await nursery.start(self._take_part, node_id)

    async def _take_part(self, node_id: bytes, *, task_status: trio.TaskStatus[None]) -> None:
        left, gone, begun = self._left, self._gone, False
        try:
            with typed_errors():
                async with self._provider.session(node_id, self._instance) as session:
                    self._session, begun = SafeSession(session), True
                    task_status.started()
                    await left.wait()
        except MeshqError as error:
            if not begun:
                raise
            # The part has ended, and the lock with it; the next try begins another one.
            self._complain(error)
        finally:
            self._session = None
            gone.set()

    @property
    def until(self) -> float:
        """The moment until which the lock is surely held; 0.0 when it is not."""
        closing = self._closing or self._owed
        until = self._session.held_until if self._session is not None and not closing else 0.0
        # A provider may leave a moment that is over.
        return until if until > trio.current_time() else 0.0

    async def lost(self) -> None:
        """Wait until the lock is not held.  Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        session = self._session
        while session is not None and session is self._session and (until := self.until):
            with trio.move_on_at(until):
                try:
                    await session.lost()
                except MeshqError as error:
                    # Whoever can't say that it is held has lost it.
                    self._complain(error)
                return

    # -- the claim

    async def refusal(self, *, activation: int, epoch: int, against: int | None = None) -> NoClaim | None:
        """Return the reason against a claim, by the record without the lock; None: there is none.

        Checkpoint: always.
        Cancellation: nothing changes.
        Raises:
            ConnectionBrokenError: the quorum can't be asked.
        """
        record = await self._open.read()
        steps = decide_claim(record, name=self._name, activation=activation, epoch=epoch, against=against)
        return steps if isinstance(steps, NoClaim) else None

    async def counter(self) -> int:
        """Return the counter of the newest copies.

        Checkpoint: always.
        Cancellation: nothing changes.
        Raises: as ``refusal``.
        """
        return (await self._open.read()).sequence

    async def acquire(self) -> bool:
        """Try to get the lock; return whether it is held.

        Checkpoint: always.
        Cancellation: the lock may be held; ``release`` gives it back.
        Raises: as ``QuorumSession.acquire``.
        """
        async with self._in_turn():
            return await self._open.acquire()

    async def claim(self, *, activation: int, epoch: int, against: int | None = None) -> QuorumRecord | NoClaim | None:
        """Claim the node id; return the record under which the node serves, or why it does not.

        None: another node has the lock.  ``against``: an operator has claimed the store, at this counter.

        Checkpoint: always.
        Cancellation: the claim may be interrupted, and the lock held; ``release`` gives it back.
        Raises:
            RefusedError: the lock was lost meanwhile.
            ConnectionBrokenError: the quorum can't be asked.
            OSError: the counter could not be stored.
        """
        async with self._in_turn():
            found = await claim(
                self._open, name=self._name, activation=activation, store=self._store, epoch=epoch, against=against
            )
            self.record = found if isinstance(found, QuorumRecord) else None
            self._adding = ""
            return found

    def close(self) -> None:
        """Change the record no more, because the role is given up; ``until`` is 0.0 from now on."""
        self._closing = True
        self._scope.cancel()

    async def release(self) -> None:
        """Give the lock back, so that another node gets it at once; bounded in time, also if it is cancelled."""
        self.close()
        self._owed = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
            async with self._turn:
                if self._owed:
                    self._owed = False
                    await self._give_back()
        self.record, self._adding, self._closing = None, "", False
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Surround a use of the lock; two uses follow each other.

        The role may be given up while a slow disk holds this up for longer than ``release`` waits: then the lock is
        given back at the end, or no other node would ever get it.
        """
        async with self._turn:
            try:
                yield
            finally:
                if self._owed:
                    self._owed = False
                    await self._give_back()

    async def _give_back(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
            try:
                if self._session is not None:
                    await self._session.release()
            except MeshqError as error:
                self._complain(error)

    @property
    def _open(self) -> QuorumSession:
        if self._session is None:
            raise RefusedError("the part of the node in its quorum has ended", outcome="not_done")
        return self._session

    # -- who is in sync

    def counts(self, name: str) -> bool:
        """Whether the quorum knows a replica as in sync."""
        return self.record is not None and name in self.record.in_sync

    def may_count(self, name: str) -> bool:
        """Whether the quorum may know a replica as in sync: it does, or was asked to."""
        return self.counts(name) or (self.record is not None and name == self._adding)

    async def add(self, name: str) -> bool:
        """Store that a replica is in sync; return whether it is stored.

        Checkpoint: always.
        Cancellation: it may be stored.
        """
        self._adding = name

        async def step(session: QuorumSession, record: QuorumRecord) -> QuorumRecord:
            new = with_replica(record, name)
            if new != record and not await session.compare_and_set(record, new):
                raise RefusedError("the record of the node id was changed by another node", outcome="not_done")
            return new

        return await self._change(step)

    async def leave_out(self, name: str) -> bool:
        """Go on without a replica, under a counter that is higher; return whether no other copy counts any more.

        Checkpoint: always.
        Cancellation: it may be under way; whoever claims next begins anew.
        """

        tried: QuorumRecord | None = None

        async def step(session: QuorumSession, record: QuorumRecord) -> QuorumRecord:
            nonlocal tried
            # Only what was asked for here says that nobody else has the counter: a replica that is not in the record
            # may have it, and may still come to be in it where the answer of its addition was lost.
            if record == tried:
                return record
            steps = without_replica(record, name)
            tried = steps.done
            return await carry_out(session, record, steps, self._store)

        done = await self._change(step)
        if done and self._adding == name:
            self._adding = ""
        return done

    async def _change(self, step: Callable[[QuorumSession, QuorumRecord], Awaitable[QuorumRecord]]) -> bool:
        """Change the record, however often the quorum has to be asked, while the lock is held; but not for ever."""
        async with self._in_turn():
            deadline = self.until + self._patience_s
            while trio.current_time() < min(self.until, deadline) and (before := self.record) is not None:
                with trio.CancelScope(deadline=deadline) as self._scope:
                    try:
                        session = self._open
                        record = await session.read()
                        if (record.epoch, record.holder) != (before.epoch, before.holder):
                            raise RefusedError("another node has the record of the node id", outcome="not_done")
                        record = await step(session, record)
                        if self._owed:
                            return False
                        self.record = record
                        return True
                    except MeshqError as error:
                        self._complain(error)
                        if isinstance(error, RefusedError):
                            return False
                        # What was asked for may be stored: it is read again.
                    except OSError as error:
                        # A disk that does not take the counter: another node has the role, or this one later.
                        self._complain(error)
                        await self._give_back()
                        return False
                    await trio.sleep(PAUSE_S)
            return False
