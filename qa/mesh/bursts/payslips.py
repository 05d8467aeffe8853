"""A queue of a simulated mesh in which each batch of a payer takes the place of the one before it, by one decision.

Nobody consumes there, so it can be told what has to be in it at any time: the messages of the last batch that was
committed, and what was sent there since.  Anything else was left by a purge that was not finished, or was taken by one
that was not decided.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

import attrs

from meshq.client import Client, Transaction
from meshq.message import Message
from meshq.testing.history._history import History, body_of, uid_of
from qa.simulation.workload import Scene

#: The queue that batches replace.
SLIPS: Final = "payslips"
#: The sights: batches that took the place of others, what was sent there between them, and looks at it meanwhile.
SLIP_SIGHTS: Final = ("payslips_replaced", "payslips_noted", "payslips_repeated", "payslips_seen")
#: How often a batch replaces what is there, is followed by a message of its own, is repeated then, and is looked at.
_REPLACED, _NOTED, _REPEATED, _SEEN = 0.7, 0.5, 0.3, 0.5


@attrs.define(eq=False)
class Payslips:
    """The queue as its one writer knows it, over all lives of that."""

    rng: random.Random
    met: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(SLIP_SIGHTS, 0))
    #: What has to be there, and what may be: nobody has said what became of it.
    _there: dict[int, None] = attrs.field(factory=dict)
    _maybe: dict[int, None] = attrs.field(factory=dict)
    #: The sink, number and stages of the batch that was committed last.
    _last: tuple[str, int, list[int]] | None = None

    def replaces(self) -> bool:
        """Return whether the next batch replaces the content of the queue."""
        return self.rng.random() < _REPLACED

    async def write(self, stage: Transaction, scene: Scene) -> dict[int, None]:
        """Send some messages into a stage; return their numbers.

        Checkpoint: maybe.  Cancellation: the stage is lost.  Raises: MeshqError.
        """
        sent: dict[int, None] = {}
        for _ in range(self.rng.randrange(1, 4)):
            uid = scene.uid()
            sent[uid] = None
            await stage.send(SLIPS, Message(body_of(uid)))
        return sent

    def replaced(self, slips: dict[int, None], last: tuple[str, int, list[int]]) -> None:
        """Note that a batch was committed, and has taken the place of all that was there."""
        self._there, self._last = dict(slips), last
        self.met["payslips_replaced"] += 1

    async def use(self, client: Client, scene: Scene) -> None:
        """Send a message to the queue, commit the last batch again, or read the queue, while no batch is under way.

        Checkpoint: maybe.  Cancellation: ends it.  Raises: MeshqError.
        """
        await client.create_queue(SLIPS)
        if self.rng.random() < _NOTED:
            uid = scene.uid()
            self._maybe[uid] = None
            await client.send(SLIPS, Message(body_of(uid)))
            del self._maybe[uid]
            self._there[uid] = None
            self.met["payslips_noted"] += 1
        if self._last is not None and self.rng.random() < _REPEATED:
            # A program that has lost its memory: what was decided is not done again.
            sink, batch, stages = self._last
            again = await client.commit_batch(sink, batch, stages, purge=SLIPS)
            scene.history.final.left("batches that replace twice", int(not again.already))
            self.met["payslips_repeated"] += 1
        if self.rng.random() < _SEEN:
            known = await self._read(client)
            if not self._there.keys() - known.keys():
                # All of the last batch is there: nothing of what it has replaced may be.
                self._judge(known, scene.history)
                self.met["payslips_seen"] += 1

    async def settle(self, client: Client, history: History) -> None:
        """Check that the queue has the messages of the last batch, and delete the queue; no stage is left by then.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        found = await self._read(client)
        history.final.left(f"messages of the last batch missing in {SLIPS}", len(self._there.keys() - found.keys()))
        self._judge(found, history)
        await client.purge_queue(SLIPS)
        await client.delete_queue(SLIPS)

    def _judge(self, found: Counter[int], history: History) -> None:
        history.final.left(f"messages twice in {SLIPS}", sum(count > 1 for count in found.values()))
        replaced = found.keys() - self._there.keys() - self._maybe.keys()
        history.final.left(f"messages in {SLIPS} that were replaced", len(replaced))

    async def _read(self, client: Client) -> Counter[int]:
        found: Counter[int] = Counter()
        await client.create_queue(SLIPS)
        async with client.consumer(SLIPS, browse=True) as browser:
            async for delivery in browser:
                uid = uid_of(bytes(delivery.body))
                assert uid is not None
                found[uid] += 1
        return found
