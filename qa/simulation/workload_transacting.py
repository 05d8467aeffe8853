"""Acknowledgements in transactions, which send something, too; some transactions are rolled back."""

from __future__ import annotations

import random
from typing import Any, Final

from meshq.client import Client, Consumer, Delivery
from meshq.errors import MeshqError, TransactionRolledBackError
from qa.simulation.workload import ADDRESSES, Scene, body
from qa.simulation.workload_receive import Settling

#: Where its transactions send: to somebody else, to all, and to where nobody looks before the end.
TARGETS: Final = ("solo", "news", "kept")


class Transacting(Settling):
    """Acknowledgements and sends in transactions."""

    def __init__(self, scene: Scene, name: str, rng: random.Random, node: str = "") -> None:
        super().__init__()
        self._scene = scene
        self._history = scene.history
        self._name = name
        self._rng = rng
        self._node = node
        self._transactions = 0

    def next_name(self, kind: str) -> str:
        """The name of a new transaction of the receiver."""
        self._transactions += 1
        return f"{self._name}/{kind}{self._transactions}"

    async def acknowledge(self, client: Client, consumer: Consumer, batch: list[Delivery], *, confirm: bool) -> bool:
        """In a transaction.  Checkpoint: always.  Cancellation: unknown."""
        name = self.next_name("t")
        ops: list[int] = []
        try:
            async with client.transaction() as transaction:
                more = self._rng.randrange(4)
                # What is sent when all is over, nobody would be there to take.
                for _ in range(0 if self._scene.closing else more):
                    await self.send(transaction, name, ops)
                try:
                    await transaction.ack(*batch)
                except MeshqError as error:
                    # Some of them may be acknowledged: all of it is rolled back.
                    raise TransactionRolledBackError("its messages are stale") from error
                if self._rng.random() < 0.2:
                    raise TransactionRolledBackError("on purpose")
        except MeshqError as error:
            for op in ops:
                self._history.send_failed(op, error.outcome)
            raise
        for op in ops:
            self._history.send_ok(op)
        self._scene.confirmed += len(ops)
        return True

    async def send(self, transaction: Any, name: str, ops: list[int]) -> None:
        """Send one message in a transaction.  Checkpoint: maybe.  Cancellation: unknown.  Raises: MeshqError."""
        uid, address = self._scene.uid(), self._rng.choice(TARGETS)
        op = self._history.sent(
            self._name,
            ADDRESSES[address],
            uid,
            producer=f"{name}/{address}",
            duplicate_id=f"d{uid}",
            transaction=name,
            node=self._node,
        )
        ops.append(op)
        await transaction.send(address, body(uid), duplicate_id=f"d{uid}", properties={"uid": uid})
