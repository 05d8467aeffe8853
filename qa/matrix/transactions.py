"""Entries of the delivery matrix: transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import trio

from meshq.client import Consumer, Transaction
from qa.matrix.feature import Feature
from qa.matrix.stage import QUIET_S, Stage

#: Where a transaction sends to.
TARGETS = ("one", "other")


class TransactedSends(Feature):
    """Messages of a transaction to two queues are invisible before the commit, and in both queues after it."""

    name = "transaction (sends)"
    less: ClassVar[Mapping[str, str]] = {
        "large": "what a transaction sends goes whole, with up to 16 MiB, and is never streamed",
    }
    works = ((b"a", b"b"), (b"a", b"b"))
    gone = ((b"b",), (b"b",))

    async def arrange(self, stage: Stage) -> None:
        await self._send(stage, b"a")

    async def act(self, stage: Stage) -> Any:
        await self._send(stage, b"b")
        return [await stage.drain(target) for target in TARGETS]

    async def _send(self, stage: Stage, body: bytes) -> None:
        waiting = [await self._waiting(stage, target) for target in TARGETS]
        async with stage.client.transaction() as transaction:
            for target in TARGETS:
                await stage.send_in(transaction, target, body)
            # By now the broker has it.
            await trio.sleep(QUIET_S)
            assert [await self._waiting(stage, target) for target in TARGETS] == waiting

    async def _waiting(self, stage: Stage, queue: str) -> int:
        return (await stage.queue(queue)).ready if queue in await stage.queues() else 0


class TransactedAcks(Feature):
    """Messages that a transaction acknowledges, before and after, are gone when it is committed; the rest stays."""

    name = "transaction (acknowledgements)"
    works = (b"3",)
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        await stage.send_many("work", [b"1", b"2", b"3"])
        await self._take(stage)

    async def act(self, stage: Stage) -> Any:
        await self._take(stage)
        return await stage.drain("work")

    async def _take(self, stage: Stage) -> None:
        async with stage.consumer("work", window=1) as consumer, stage.client.transaction() as transaction:
            if (message := await consumer.receive(timeout=1)) is not None:
                await transaction.ack(message)


class Rollback(Feature):
    """Messages of a transaction that is rolled back, or never committed, come again, or were never sent."""

    name = "rollback"
    uses = ("delivery counts",)
    works = (((b"1", True),), ())
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"1")
        await self._roll_back(stage)
        # Of another client, which never comes to its commit.
        other = stage.notes["other"] = await stage.join()
        transaction = await other.transaction().__aenter__()
        await self._work(stage, transaction, await stage.keep(other.consumer(stage.at("work"))))
        await other.flush()

    async def act(self, stage: Stage) -> Any:
        await stage.notes["other"].close()
        await self._roll_back(stage)
        async with stage.consumer("work") as consumer:
            got = await consumer.receive_many(2, timeout=1)
            left = [(message.body, message.redelivered) for message in got]
        return left, await stage.drain("out")

    async def _roll_back(self, stage: Stage) -> None:
        async with stage.consumer("work") as consumer, stage.client.transaction() as transaction:
            await self._work(stage, transaction, consumer)
            await transaction.rollback()

    async def _work(self, stage: Stage, transaction: Transaction, consumer: Consumer) -> None:
        if (message := await consumer.receive(timeout=1)) is not None:
            await transaction.ack(message)
        await stage.send_in(transaction, "out", b"never")


class Prepared(Feature):
    """A prepared transaction is invisible, and complete when the next client has committed it."""

    name = "prepared transaction"
    uses = ("transaction (sends)", "transaction (acknowledgements)")
    less = TransactedSends.less
    #: How many of them wait; what is in the queues before the decision, and after it.
    works = (1, ((), ()), ((), (b"2",)))
    # That it was prepared is known; what it took and sent was not durable.
    left = (1, ((), ()), ((), ()))
    gone = (0, ((), ()), ((), ()))

    async def arrange(self, stage: Stage) -> None:
        await stage.send("work", b"1")
        async with (
            stage.consumer("work") as consumer,
            stage.client.transaction(xid=stage.at("x").encode()) as transaction,
        ):
            message = await consumer.receive(timeout=1)
            assert message is not None
            await transaction.ack(message)
            await stage.send_in(transaction, "out", b"2")
            await transaction.prepare()

    async def act(self, stage: Stage) -> Any:
        async with stage.another() as other:
            xids = [xid for xid in await other.recover() if xid == stage.at("x").encode()]
            before = [await stage.drain(queue) for queue in ("work", "out")]
            for xid in xids:
                await other.commit(xid)
        return len(xids), before, [await stage.drain(queue) for queue in ("work", "out")]


class BatchOfStages(Feature):
    """Two of three prepared stages are committed as one batch by the next client, and once, however often it asks."""

    name = "batch of stages"
    less = TransactedSends.less
    #: The stages that are there; the queue before the commit and after it; whether each of two commits was the second;
    #: and the queue after that one.
    works = (3, (), (b"a", b"b"), (False, True), ())
    # The stages are known; what they sent was not durable.
    left = (3, (), (), (False, True), ())
    gone = (0, (), (), (False, True), ())

    async def arrange(self, stage: Stage) -> None:
        for partition, attempt, body in ((1, 0, b"b"), (0, 0, b"never"), (0, 1, b"a")):
            async with stage.client.stage(stage.at("sink"), 1, partition=partition, attempt=attempt) as part:
                await stage.send_in(part, "out", body)

    async def act(self, stage: Stage) -> Any:
        async with stage.another() as other:
            there = await other.stages(stage.at("sink"))
            before = await stage.drain("out")
            named = [one.stage for one in there if (one.partition, one.attempt) != (0, 0)]
            first = await other.commit_batch(stage.at("sink"), 1, named)
            got = await stage.drain("out")
            again = await other.commit_batch(stage.at("sink"), 1, named)
        return len(there), before, got, (first.already, again.already), await stage.drain("out")


TRANSACTIONS = (TransactedSends(), TransactedAcks(), Rollback(), Prepared(), BatchOfStages())
