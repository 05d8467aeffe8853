"""Acknowledgements in prepared transactions, and the manager that decides the undecided transactions.

The manager's log is the ``VerdictLog``: it outlives every process.  A verdict is written there before anybody is told;
what was given up before there was one is rolled back, whenever it turns up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import attrs
import trio

from meshq.client import Client, Consumer, Delivery
from meshq.errors import MeshqError, TransactionRolledBackError, UsageError
from meshq.testing.history._history import History
from qa.simulation.workload import SETTINGS, Actor, Dial, Scene
from qa.simulation.workload_receive import Settling
from qa.simulation.workload_transacting import Transacting

COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
#: Seconds after the end of all work in which a prepare that was on its way may still arrive.
LATE_S: Final = 4 * SETTINGS["connection_ttl"]


@attrs.define(eq=False)
class Entry:
    """A transaction: its sends, its settlements, and its decision."""

    ops: list[int]
    #: None: it settles nothing.
    settlement: int | None = None
    #: Empty: nobody has decided.
    verdict: str = ""
    #: Whoever worked on it does so no more.
    given_up: bool = False


@attrs.define(eq=False)
class VerdictLog:
    """All transactions that may be prepared, by xid."""

    history: History
    entries: dict[bytes, Entry] = attrs.field(factory=dict)
    #: When the broker confirmed the verdict about those that are no longer here.
    done: dict[bytes, float] = attrs.field(factory=dict)
    #: Whether a transaction is of another log: it has come from another node.
    foreign: Callable[[bytes], bool] = attrs.field(default=lambda xid: False)

    def decided(self, xid: bytes) -> None:
        """The broker has confirmed the verdict."""
        entry = self.entries.pop(xid, None)
        if entry is None:
            return
        self.done[xid] = trio.current_time()
        history = self.history
        for op in entry.ops:
            if entry.verdict == COMMIT:
                history.send_ok(op)
            else:
                history.send_failed(op, "not_done")
        if entry.settlement is None:
            return
        if entry.verdict == COMMIT:
            history.settle_ok(entry.settlement)
        else:
            history.settle_failed(entry.settlement, "not_done")

    def not_prepared(self, xid: bytes, error: MeshqError) -> None:
        """Preparing has failed: the manager rolls it back if it turns up all the same."""
        entry = self.entries[xid]
        if error.outcome == "unknown":
            entry.given_up = True
        else:
            del self.entries[xid]
        for op in entry.ops:
            self.history.send_failed(op, error.outcome)

    @property
    def waiting(self) -> list[bytes]:
        """The xids with a verdict that was not confirmed."""
        return [xid for xid, entry in self.entries.items() if entry.verdict]


async def decide(client: Client, verdict_log: VerdictLog, xid: bytes, verdict: str) -> None:
    """Tell the broker a verdict, and note that it was told.

    Checkpoint: always.  Cancellation: unknown.
    Raises: MeshqError: it is not known to have been told.
    """
    history = verdict_log.history
    try:
        await (client.commit(xid) if verdict == COMMIT else client.rollback(xid))
    except TransactionRolledBackError:
        history.final.left(f"the transaction {xid!r} that was to be committed and is rolled back", 1)
        raise
    except UsageError:
        history.final.left(f"the transaction {xid!r} that was to be rolled back and is committed", 1)
        raise
    verdict_log.decided(xid)


class Preparing(Settling):
    """Acknowledgements in transactions of which most are prepared, and decided by the receiver or by the manager."""

    def __init__(self, scene: Scene, rng: random.Random, transacting: Transacting, verdict_log: VerdictLog) -> None:
        super().__init__()
        self._scene = scene
        self._history = scene.history
        self._rng = rng
        self._transacting = transacting
        self._verdict_log = verdict_log

    def died(self) -> None:
        """Give up the undecided transactions of a process that has died."""
        for entry in self._verdict_log.entries.values():
            entry.given_up = entry.given_up or not entry.verdict

    async def acknowledge(self, client: Client, consumer: Consumer, batch: list[Delivery], *, confirm: bool) -> bool:
        """In a transaction, now and then in two phases.  Checkpoint: always.  Cancellation: unknown."""
        if self._scene.closing or self._rng.random() < 0.3:
            return await self._transacting.acknowledge(client, consumer, batch, confirm=confirm)
        name = self._transacting.next_name("x")
        xid = name.encode()
        entry = Entry([], max(self._history.settlements))
        self._verdict_log.entries[xid] = entry
        transaction = await client.transaction(xid).__aenter__()
        try:
            for _ in range(self._rng.randrange(4)):
                await self._transacting.send(transaction, name, entry.ops)
            await transaction.ack(*batch)
            await transaction.prepare()
        except MeshqError as error:
            if transaction.state == "active":
                await transaction.rollback()
            self._verdict_log.not_prepared(xid, error)
            if error.outcome != "unknown":
                raise TransactionRolledBackError("it was not prepared") from error
            raise
        entry.verdict = COMMIT if self._rng.random() < 0.7 else ROLLBACK
        if self._rng.random() < 0.5:
            await trio.sleep(self._rng.expovariate(2.0))
            try:
                await decide(client, self._verdict_log, xid, entry.verdict)
            except MeshqError as error:
                # The manager goes on with it.
                self._history.note(f"{name}: {error!r}")
        return False


class Manager(Actor):
    """A client that asks for the prepared transactions, and decides them by the verdict log."""

    def __init__(self, scene: Scene, name: str, rng: random.Random, dial: Dial, verdict_log: VerdictLog) -> None:
        super().__init__(scene, name, rng, dial)
        self._verdict_log = verdict_log
        self._closed_s: float | None = None
        self._clean = False

    @property
    def finished(self) -> bool:
        """Whether everything is decided, and nothing can come any more."""
        if not self.scene.closing or self._verdict_log.waiting:
            return False
        if self._closed_s is None:
            self._closed_s = trio.current_time()
        return self._clean and trio.current_time() > self._closed_s + LATE_S

    async def use(self, client: Client) -> None:
        """Look now and then.  Checkpoint: always.  Cancellation: ends it."""
        for _ in range(self.rng.randrange(1, 20)):
            try:
                await self._look(client)
            except MeshqError as error:
                self._clean = False
                self.history.note(f"{self.name}: {error!r}")
                if client.statistics().state in ("closed", "failed"):
                    return
            if self.finished:
                return
            await trio.sleep(self.rng.expovariate(0.5))

    async def _look(self, client: Client) -> None:
        entries = self._verdict_log.entries
        asked_s = trio.current_time()
        found = [xid for xid in await client.recover() if not self._verdict_log.foreign(xid)]
        self._clean = not found
        for xid in found:
            entry = entries.get(xid)
            if entry is None and self._verdict_log.done.get(xid, 0.0) >= asked_s:
                # It was decided while the answer was on its way.
                continue
            if entry is None:
                self.history.final.left(f"the transaction {xid!r} that is decided and prepared", 1)
            elif entry.verdict:
                await decide(client, self._verdict_log, xid, entry.verdict)
            elif entry.given_up:
                await client.rollback(xid)
        for xid in self._verdict_log.waiting:
            # Whatever has become of it: the verdict is told until that is confirmed.
            if xid in entries and (self.rng.random() < 0.3 or self.scene.closing):
                await decide(client, self._verdict_log, xid, entries[xid].verdict)
