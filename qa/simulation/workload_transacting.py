"""A receiver that acknowledges in transactions, which send something, too; some it rolls back."""

from __future__ import annotations

from typing import Any, Final

from meshq.client import Consumer, Delivery
from meshq.errors import MeshqError, TransactionRolledBackError
from qa.simulation.workload import ADDRESSES, body
from qa.simulation.workload_receive import Receiver

#: Where its transactions send: to somebody else, to all, and to where nobody looks before the end.
TARGETS: Final = ("solo", "news", "kept")


class TransactingReceiver(Receiver):
    """A receiver that acknowledges and sends in transactions."""

    _transactions = 0

    async def acknowledge(self, consumer: Consumer, batch: list[Delivery], *, confirm: bool) -> bool:
        """In a transaction.  Checkpoint: always.  Cancellation: unknown."""
        self._transactions += 1
        name = f"{self.name}/t{self._transactions}"
        ops: list[int] = []
        try:
            async with self.client.transaction() as transaction:
                more = self.rng.randrange(4)
                # What is sent when all is over, nobody would be there to take.
                for _ in range(0 if self.scene.closing else more):
                    await self._send(transaction, name, ops)
                try:
                    await transaction.ack(*batch)
                except MeshqError as error:
                    # Some of them may be acknowledged: all of it is rolled back.
                    raise TransactionRolledBackError("its messages are stale") from error
                if self.rng.random() < 0.2:
                    raise TransactionRolledBackError("on purpose")
        except MeshqError as error:
            for op in ops:
                self.history.send_failed(op, error.outcome)
            raise
        for op in ops:
            self.history.send_ok(op)
        self.scene.confirmed += len(ops)
        return True

    async def _send(self, transaction: Any, name: str, ops: list[int]) -> None:
        uid, address = self.scene.uid(), self.rng.choice(TARGETS)
        op = self.history.sent(
            self.name,
            ADDRESSES[address],
            uid,
            producer=f"{name}/{address}",
            duplicate_id=f"d{uid}",
            transaction=name,
            node=self.node,
        )
        ops.append(op)
        await transaction.send(address, body(uid), duplicate_id=f"d{uid}", properties={"uid": uid})
