"""The deletion of queues to which prepared transactions send: no deletion may come before the decision."""

from __future__ import annotations

import random
from typing import Any, Final

import trio

from meshq.client import Client
from meshq.errors import BusyError, MeshqError, NotFoundError
from meshq.testing.history._history import body_of
from qa.simulation.workload import Scene
from qa.simulation.workload_two_phase import COMMIT, ROLLBACK, Entry, VerdictLog

#: The share of the seeds with prepared transactions in which queues are deleted under them.
UNDERTAKER_SHARE: Final = 0.5
#: What it may come upon.
UNDERTAKER_SIGHTS: Final = ("delete_refused", "delete_after_restart")


class Undertaker:
    """Prepares a transaction that sends to a new queue, and tries to delete the queue before the decision."""

    def __init__(self, scene: Scene, name: str, rng: random.Random, verdict_log: VerdictLog) -> None:
        self.standing: dict[str, bool] = {}
        self._scene = scene
        self._history = scene.history
        self._name = name
        self._rng = rng
        self._verdict_log = verdict_log
        self._mine: list[Entry] = []
        #: How often a queue was kept for a decision, and how often for one that a broker had taken up at its start.
        self.met = dict.fromkeys(UNDERTAKER_SIGHTS, 0)

    def died(self) -> None:
        """Give up the undecided transactions of a process that has died."""
        for entry in self._mine:
            entry.given_up = entry.given_up or not entry.verdict

    async def one_queue(self, client: Client, name: str) -> None:
        """Make a queue and use it.  Checkpoint: always.  Cancellation: ends it.  Raises: MeshqError."""
        await client.create_queue(name)
        xid, entry = name.encode(), Entry([])
        self._verdict_log.entries[xid] = entry
        self._mine.append(entry)
        uids = await self._prepared(client, name, xid, entry)
        starts = self._history.restarts
        for _ in range(self._rng.randrange(1, 4)):
            await trio.sleep(self._rng.expovariate(1.0))
            if not await self._is_kept(client, name, entry):
                # It is not known whether the queue goes later.
                for uid in uids:
                    self._history.gone(name, uid, "may be deleted with its queue")
                entry.given_up = True
                return
            self.met["delete_after_restart"] += self._history.restarts > starts
            if entry.given_up:
                return
        entry.verdict = COMMIT if self._rng.random() < 0.7 else ROLLBACK
        while xid in self._verdict_log.entries:  # noqa: ASYNC110 - the manager tells
            await trio.sleep(0.2)
        if self._rng.random() < 0.5:
            self.standing[name] = True
            return
        for uid in uids:
            self._history.gone(name, uid, "deleted with its queue")
        try:
            await client.delete_queue(name)
        except BusyError:
            self._history.final.left("queues kept for transactions that are decided", 1)
        else:
            self.standing[name] = False

    async def _prepared(self, client: Client, name: str, xid: bytes, entry: Entry) -> list[int]:
        """Prepare a transaction; return its sends."""
        uids: list[int] = []
        transaction: Any = await client.transaction(xid).__aenter__()
        try:
            for _ in range(self._rng.randrange(1, 5)):
                uid = self._scene.uid()
                uids.append(uid)
                op = self._history.sent(self._name, name, uid, duplicate_id=f"d{uid}", transaction=name)
                entry.ops.append(op)
                await transaction.send(name, body_of(uid), duplicate_id=f"d{uid}")
            await transaction.prepare()
        except MeshqError as error:
            if transaction.state == "active":
                await transaction.rollback()
            self._verdict_log.not_prepared(xid, error)
            raise
        return uids

    async def _is_kept(self, client: Client, name: str, entry: Entry) -> bool:
        """Try to delete a queue; returns whether it is kept for sure."""
        try:
            await client.delete_queue(name)
        except BusyError:
            self.met["delete_refused"] += 1
            return True
        except NotFoundError:
            lost = True
        except MeshqError as error:
            self._history.note(f"{self._name}: {error!r}")
            return error.outcome == "not_done"
        else:
            lost = True
        # Somebody may have rolled the transaction back, on behalf of a client that died.
        self._history.final.left("queues deleted under a prepared transaction", int(lost and not entry.given_up))
        return False
