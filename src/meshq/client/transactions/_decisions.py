"""Decisions of prepared transactions, asked of the node at which the transaction was prepared, or came to since."""

from __future__ import annotations

import trio

from meshq.client.calls._calls import Call
from meshq.client.session._client_context import ClientContext
from meshq.client.session._session import ClientSession
from meshq.errors import RetryTransactionError, UnblockedError
from meshq.wire import Call as WireCall
from meshq.wire import Frame, FrameType


async def commit_prepared(context: ClientContext, xid: bytes) -> None:
    """Commit a prepared transaction; as ``client.commit``.

    Checkpoint: always.  Cancellation: it may have been committed or not: commit it again.
    Raises:
        RetryTransactionError: it may not be committed: commit it again.
        MeshqError: as ``client.commit``.
    """
    try:
        await _decide(context, "commit_prepared", xid)
    except UnblockedError as error:
        raise RetryTransactionError("the commit was cut off: commit it again", outcome="unknown") from error


async def roll_back_prepared(context: ClientContext, xid: bytes) -> None:
    """Roll a prepared transaction back; as ``client.rollback``.

    Checkpoint: always.  Cancellation: it may have been rolled back or not: roll it back again.
    Raises:
        MeshqError: as ``client.rollback``.
    """
    await _decide(context, "roll_back_prepared", xid)


async def _decide(context: ClientContext, operation: str, xid: bytes) -> None:
    """Ask the node that has the transaction, as far as this client knows."""
    context.check()
    session = context.session
    session.transactions.check_prepared(xid)
    node_id = session.transactions.node_of(xid)
    if node_id is None:
        await context.ask(operation, xid=xid)
        return
    if _elsewhere(session, xid, node_id) is not None:
        node_id = await find_prepared(context, xid, node_id)
    await session.ask(_call(session, operation, xid, node_id, "xid", xid))


async def find_prepared(context: ClientContext, xid: bytes, node_id: bytes) -> bytes:
    """Find a transaction at the node of the session, which is not the one that it was prepared at; return its id.

    A node that leaves for good hands over what is prepared there.  Only what ``recover`` lists here is prepared here.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        RetryTransactionError: it is not there.
        MeshqError: as ``client.recover``.
    """
    session = context.session
    here = session.facts.node_id
    error = _elsewhere(session, xid, node_id)
    after = b""
    while error is not None:
        try:
            values = await session.ask(_call(session, "recover", xid, here, "after", after))
        except UnblockedError as cut:
            raise error from cut
        listed = [value for name, value in values.items() if name != "more"]
        if xid in listed:
            session.transactions.prepares(xid, here)
            return here
        if not values["more"]:
            raise error
        after = listed[-1]
    await trio.lowlevel.checkpoint()
    return node_id


def _call(session: ClientSession, operation: str, xid: bytes, node_id: bytes, *arguments: str | bytes) -> Call:
    """Make a call about a transaction that is sent to one node only."""
    header = WireCall(operation=operation, arguments=arguments).encode()
    return Call(
        operation,
        lambda number: Frame(FrameType.CALL, first=number, header=header),
        unfit=lambda sent: None if sent else _elsewhere(session, xid, node_id),
    )


def _elsewhere(session: ClientSession, xid: bytes, node_id: bytes) -> RetryTransactionError | None:
    """Return why the node of the session can't decide; None: it can."""
    facts = session.facts
    if facts.node_id == node_id or facts.failure is not None:
        return None
    return RetryTransactionError(
        f"the transaction {xid!r} is not known here: it was prepared at the node {node_id.hex()}, "
        f"and the session is at {facts.node_id.hex()}",
        outcome="not_done",
    )
