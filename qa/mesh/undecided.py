"""Prepared transactions of a node of the simulated mesh that leaves: they are decided at the node that takes over."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import trio

from meshq import Client
from meshq.errors import MeshqError
from meshq.message import Message
from meshq.testing.history._history import body_of
from qa.mesh.node import MeshNode
from qa.mesh.stranded import received
from qa.simulation.workload import Scene
from qa.simulation.workload_two_phase import COMMIT, ROLLBACK, VerdictLog, decide

#: Queues of every node: one of which two transactions hold messages, and one to which they send.
HELD: Final = "drained.held"
SENT: Final = "drained.sent"
#: Messages of the first, and how many of them the transactions hold together.
MESSAGES: Final = 60
TAKEN: Final = 30
SENDS: Final = 5
XIDS: Final = {b"drained-commit": COMMIT, b"drained-rollback": ROLLBACK}
#: Seconds in which all of them are decided when nothing fails any more, and before the next look.
DECIDED_S: Final = 90.0
AGAIN_S: Final = 0.5


def is_foreign(others: Sequence[VerdictLog], xid: bytes) -> bool:
    """Whether a transaction is of none but these logs, or of the drain itself."""
    return xid in XIDS or any(xid in log.entries or xid in log.done for log in others)


class UndecidedTransactions:
    """The prepared transactions of a node that leaves: two of the drain, and the receiver's.

    ``verdict_logs``: the transactions of receivers, by node.
    """

    def __init__(
        self, scene: Scene, rng: random.Random, verdict_logs: dict[str, VerdictLog], count: Callable[[str, int], None]
    ) -> None:
        self._scene = scene
        self._history = scene.history
        self._rng = rng
        self._verdict_logs = verdict_logs
        self._count = count
        #: The messages that the transactions hold or leave, in order.
        self.sent: list[int] = []
        # By xid: the places of the messages that it holds, and the operations and messages that it sends.
        self._held: dict[bytes, list[int]] = {}
        self._sends: dict[bytes, list[tuple[int, int]]] = {}
        self._settling: dict[bytes, int] = {}

    async def prepare(self, node: MeshNode, client: Client) -> None:
        """Fill the queue, and prepare two transactions that hold every other message of its first half each.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        name = f"filler@{node.place}"
        self.sent = [self._scene.uid() for _ in range(MESSAGES)]
        ops = [self._history.sent(name, HELD, uid, node=node.place) for uid in self.sent]
        await client.send_many(HELD, [Message(body_of(uid, 0)) for uid in self.sent])
        for op in ops:
            self._history.send_ok(op)
        async with client.consumer(HELD, window=TAKEN) as consumer:
            got = await consumer.receive_many(TAKEN, timeout=5.0)
            while len(got) < TAKEN:
                got += await consumer.receive_many(TAKEN - len(got), timeout=5.0)
            numbers = [
                self._history.delivered(name, name, HELD, one.body, sequence=one.sequence, node=node.place)
                for one in got
            ]
            for first, xid in enumerate(XIDS):
                places = list(range(first, TAKEN, 2))
                transaction = await client.transaction(xid=xid).__aenter__()
                await transaction.ack(*(got[place] for place in places))
                uids = [self._scene.uid() for _ in range(SENDS)]
                ops = [self._history.sent(name, SENT, uid, node=node.place) for uid in uids]
                for uid in uids:
                    await transaction.send(SENT, Message(body_of(uid, 0)))
                await transaction.prepare()
                self._held[xid], self._sends[xid] = places, list(zip(ops, uids, strict=True))
                self._settling[xid] = self._history.settling([numbers[place] for place in places])

    def twice(self, *nodes: MeshNode) -> int:
        """Count the transactions that two of these nodes would decide now."""
        found: Counter[bytes] = Counter()
        for node in nodes:
            if node.active:
                found.update(node.serving_core.transactions.two_phase.xids("", b"")[0])
        return sum(number > 1 for number in found.values())

    async def decide(self, leaving: MeshNode, target: MeshNode) -> None:
        """Decide all transactions of the node that leaves at its target.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        log = self._verdict_logs.get(leaving.place)
        own = dict(XIDS)
        found: list[bytes] = []
        with trio.move_on_after(DECIDED_S):
            while True:
                try:
                    async with target.client() as client:
                        found = await client.recover()
                        await self._decide_own(client, found, own)
                        if log is not None:
                            await self._decide_others(client, log, found)
                except MeshqError as error:
                    self._history.note(f"deciding at {target.place}: {error!r}")
                else:
                    if not own and (log is None or (not {*log.entries}.intersection(found) and not log.waiting)):
                        return
                await trio.sleep(AGAIN_S)
        target.left("transactions of the node that left that are not decided", max(1, len(found)))

    async def _decide_own(self, client: Client, found: list[bytes], own: dict[bytes, str]) -> None:
        for xid, verdict in list(own.items()):
            if xid not in found:
                self._history.final.left(f"the transaction {xid!r} that is not at the target", 1)
            await (client.commit(xid) if verdict == COMMIT else client.rollback(xid))
            del own[xid]
            self._count("drained_transactions", 1)
            for op, _ in self._sends[xid]:
                if verdict == COMMIT:
                    self._history.send_ok(op)
                else:
                    self._history.send_failed(op, "not_done")
            settling = self._settling[xid]
            if verdict == COMMIT:
                self._history.settle_ok(settling)
            else:
                self._history.settle_failed(settling, "not_done")

    async def _decide_others(self, client: Client, log: VerdictLog, found: list[bytes]) -> None:
        for xid in found:
            entry = log.entries.get(xid)
            if entry is not None and entry.verdict:
                await decide(client, log, xid, entry.verdict)
                self._count("drained_transactions_of_receivers", 1)
            elif entry is not None and entry.given_up:
                await client.rollback(xid)
        for xid in log.waiting:
            # It was decided at the node that left, which could not say so any more.
            await decide(client, log, xid, log.entries[xid].verdict)

    async def judge(self, target: MeshNode) -> None:
        """Receive the messages that are left after the decisions, once and in order.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        committed = {*self._held[next(iter(XIDS))]}
        wanted = [body_of(uid, 0) for place, uid in enumerate(self.sent) if place not in committed]
        got = [one.body for one in await received(self._history, target, HELD, len(wanted))]
        target.left(f"messages of {HELD} lost, doubled or out of order", int(got != wanted))
        sends = [body_of(uid, 0) for _, uid in self._sends[next(iter(XIDS))]]
        got = [one.body for one in await received(self._history, target, SENT, len(sends))]
        target.left(f"messages of {SENT} lost, doubled or out of order", int(got != sends))
