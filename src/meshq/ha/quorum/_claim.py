"""A claim of a node id at a quorum, step by step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from meshq.abc import QuorumRecord, QuorumSession
from meshq.errors import RefusedError
from meshq.ha.quorum._claim_plan import Claim, NoClaim, decide_claim


async def carry_out(
    session: QuorumSession, record: QuorumRecord, steps: Claim, store: Callable[[int], Awaitable[None]]
) -> QuorumRecord:
    """Carry out the steps of a claim, or of a change of the nodes in sync; return the record that counts then.

    ``store`` makes the counter durable in the node's own store.

    Checkpoint: always.
    Cancellation: the claim stays interrupted, and can be claimed again.
    Raises:
        RefusedError: the lock was lost, or the record was changed.
        ConnectionBrokenError: the quorum can't be asked.
    """
    await _set(session, record, steps.begun)
    await store(steps.activation)
    await _set(session, steps.begun, steps.done)
    return steps.done


async def _set(session: QuorumSession, expected: QuorumRecord, new: QuorumRecord) -> None:
    if not await session.compare_and_set(expected, new):
        raise RefusedError("the record of the node id was changed by another node", outcome="not_done")


async def claim(
    session: QuorumSession,
    *,
    name: str,
    activation: int,
    store: Callable[[int], Awaitable[None]],
    epoch: int = 0,
    against: int | None = None,
) -> QuorumRecord | NoClaim | None:
    """Try to get the role of a node id: the lock, then the record; return the record under which the node serves.

    None: another node holds the lock.  ``NoClaim``: the copy of this node must not serve; the lock is given back.
    ``activation``: the counter in the node's own store, which ``store`` replaces durably.  ``epoch``: the latest one
    that the node knows of its node id.  ``against``: as for ``decide_claim``.

    Checkpoint: always.
    Cancellation: the claim may be interrupted, and the lock held; ``release`` gives it back, and a later claim of a
    node in sync begins anew.
    Raises:
        RefusedError: the lock was lost meanwhile.
        ConnectionBrokenError: the quorum can't be asked.
    """
    if not await session.acquire():
        return None
    record = await session.read()
    steps = decide_claim(record, name=name, activation=activation, epoch=epoch, against=against)
    if isinstance(steps, NoClaim):
        await session.release()
        return steps
    return await carry_out(session, record, steps, store)
