"""The calls of a client, and those on large bodies and in transactions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import trio

from meshq import Consumer, Delivery, Transaction
from tests.node import calls
from tests.node.calls import Call, count, emptied, received
from tests.node.ground import Ground
from tests.node.role_calls import ROLE_CALLS
from tests.node.stage_calls import STAGE_CALLS


async def _large(ground: Ground) -> Delivery:
    await ground.client.send("q", bytes(700_000))
    consumer = await ground.keep(ground.client.consumer("q"))
    message = await consumer.receive()
    assert message is not None
    return message


async def _chunks(message: Delivery) -> None:
    async with message.open() as stream:
        async for _ in stream:
            pass


async def _open_transaction(ground: Ground) -> tuple[Transaction, Delivery]:
    """Something was sent and something acknowledged in it."""
    await ground.client.create_queue("out")
    _, message = await received(ground)
    transaction = ground.client.transaction()
    # It is not left: how it ends is the call.
    await transaction.__aenter__()
    await transaction.send("out", b"answer")
    await transaction.ack(message)
    return transaction, message


async def _entered(ground: Ground) -> tuple[Transaction, Delivery]:
    transaction, message = await _begun(ground)
    await transaction.__aenter__()
    return transaction, message


async def _begun(ground: Ground) -> tuple[Transaction, Delivery]:
    """Nothing was done in it."""
    await ground.client.create_queue("out")
    _, message = await received(ground)
    return ground.client.transaction(), message


async def _commit_in_a_block(ground: Ground, got: tuple[Transaction, Delivery]) -> None:
    transaction, message = got
    async with transaction:
        await transaction.send("out", b"answer")
        await transaction.ack(message)


async def _both(ground: Ground) -> object:
    """What was sent, and what was acknowledged."""
    return await _counts(ground)


async def _prepared(ground: Ground) -> Transaction:
    """It waits for its decision."""
    transaction = await _with_xid(ground)
    await transaction.prepare()
    return transaction


async def _with_xid(ground: Ground) -> Transaction:
    await ground.client.create_queue("out")
    _, message = await received(ground)
    transaction = ground.client.transaction(XID)
    await transaction.__aenter__()
    await transaction.send("out", b"answer")
    await transaction.ack(message)
    return transaction


async def _both_and_waiting(ground: Ground) -> object:
    """What was sent, what was acknowledged, and how many transactions wait."""
    return *await _counts(ground), len(await ground.client.recover())


async def _counts(ground: Ground) -> tuple[object, int]:
    return await count(ground, "out"), (await ground.client.queue("q")).acknowledged


async def _then_roll_back(call: Awaitable[object], transaction: Transaction) -> None:
    # So that nothing of it is open afterwards, whatever the call has come to.
    try:
        await call
    finally:
        with trio.CancelScope(shield=True):
            await transaction.rollback()


async def _work(ground: Ground, got: tuple[Consumer, Delivery]) -> None:
    async with got[1]:
        await trio.lowlevel.checkpoint()


async def _serve(ground: Ground) -> None:
    async def handler(delivery: Delivery) -> None:
        await trio.lowlevel.checkpoint()
        if delivery.body == b"c":
            ground.client.stop_serving()

    await ground.client.serve("q", handler)


XID: Final = b"order-7"

CALLS: Final = (
    *calls.CALLS,
    *ROLE_CALLS,
    *STAGE_CALLS,
    Call(
        name="Client.send, a large body",
        prepare=emptied,
        make=lambda ground, _: ground.client.send("q", bytes(700_000)),
        look=count,
        outcomes=(0, 1),
    ),
    Call(
        name="Delivery.__aenter__ Delivery.__aexit__",
        prepare=received,
        make=_work,
        look=calls.settled,
        outcomes=((0, 0, 0), (1, 0, 0)),
    ),
    Call(
        name="Client.serve",
        prepare=calls.filled,
        make=lambda ground, _: _serve(ground),
        look=count,
        # What has begun is finished: so many are left.
        outcomes=(3, 2, 1, 0),
    ),
    Call(
        name="Delivery.read",
        prepare=_large,
        make=lambda ground, message: message.read(),
        look=count,
        outcomes=(1,),
    ),
    Call(
        name="BodyStream.__aenter__ BodyStream.__aexit__ BodyStream.__anext__",
        prepare=_large,
        make=lambda ground, message: _chunks(message),
        look=count,
        outcomes=(1,),
    ),
    Call(
        name="Transaction.__aenter__ Transaction.__aexit__",
        prepare=_begun,
        make=_commit_in_a_block,
        look=_both,
        outcomes=((0, 0), (1, 1)),
    ),
    Call(
        name="Transaction.send",
        prepare=_entered,
        make=lambda ground, got: _then_roll_back(got[0].send("out", b"answer"), got[0]),
        look=_both,
        outcomes=((0, 0),),
    ),
    Call(
        name="Transaction.ack",
        prepare=_entered,
        make=lambda ground, got: _then_roll_back(got[0].ack(got[1]), got[0]),
        look=_both,
        outcomes=((0, 0),),
    ),
    Call(
        name="Transaction.ready",
        prepare=_open_transaction,
        make=lambda ground, got: _then_roll_back(got[0].ready(), got[0]),
        look=_both,
        outcomes=((0, 0),),
    ),
    Call(
        name="Transaction.commit",
        prepare=_open_transaction,
        make=lambda ground, got: got[0].commit(),
        look=_both,
        outcomes=((0, 0), (1, 1)),
    ),
    Call(
        name="Transaction.rollback",
        prepare=_open_transaction,
        make=lambda ground, got: got[0].rollback(),
        look=_both,
        outcomes=((0, 0),),
    ),
    Call(
        name="Transaction.prepare",
        prepare=_with_xid,
        make=lambda ground, transaction: transaction.prepare(),
        look=_both_and_waiting,
        outcomes=((0, 0, 0), (0, 0, 1)),
    ),
    Call(
        name="Transaction.commit, of a prepared one",
        prepare=_prepared,
        make=lambda ground, transaction: transaction.commit(),
        look=_both_and_waiting,
        outcomes=((0, 0, 1), (1, 1, 0)),
    ),
    Call(
        name="Transaction.rollback, of a prepared one",
        prepare=_prepared,
        make=lambda ground, transaction: transaction.rollback(),
        look=_both_and_waiting,
        outcomes=((0, 0, 1), (0, 0, 0)),
    ),
    Call(
        name="Client.commit",
        prepare=_prepared,
        make=lambda ground, _: ground.client.commit(XID),
        look=_both_and_waiting,
        outcomes=((0, 0, 1), (1, 1, 0)),
    ),
    Call(
        name="Client.rollback",
        prepare=_prepared,
        make=lambda ground, _: ground.client.rollback(XID),
        look=_both_and_waiting,
        outcomes=((0, 0, 1), (0, 0, 0)),
    ),
    Call(
        name="Client.prepared",
        prepare=_prepared,
        make=lambda ground, _: ground.client.prepared(),
        look=_both_and_waiting,
        outcomes=((0, 0, 1),),
    ),
    Call(
        name="Client.recover",
        prepare=_prepared,
        make=lambda ground, _: ground.client.recover(),
        look=_both_and_waiting,
        outcomes=((0, 0, 1),),
    ),
)
