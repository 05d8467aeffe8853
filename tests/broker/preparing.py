"""Transactions that are prepared and decided, in raw frames and over lives."""

from __future__ import annotations

from typing import Any

from meshq.broker import Core
from tests.broker.kit import House, RawClient, make_house, with_ids
from tests.broker.test_transactions import Tx, house_with

XID = b"order-7"


def prepare(tx: Tx, xid: bytes = XID) -> int:
    """Prepare, and the code of the answer; -1: there is none yet."""
    tx.client.call("prepare", transaction=tx.number, sent=tx.sent, acked=tx.acked, xid=xid)
    answer = tx.client.answer(tx.client.calls)
    return answer.code if answer is not None else -1


def decide(client: RawClient, what: str, xid: bytes = XID) -> int:
    """Commit or roll back, and the code of the answer; -1: there is none yet."""
    client.call({"commit": "commit_prepared", "rollback": "roll_back_prepared"}[what], xid=xid)
    answer = client.answer(client.calls)
    return answer.code if answer is not None else -1


def recovered(client: RawClient) -> list[bytes]:
    """What waits for a decision."""
    values = client.call("recover", after=b"")
    assert values is not None
    assert not values.pop("more")
    return list(values.values())


def next_life(house: House, last: int | None = None, **options: Any) -> tuple[House, RawClient]:
    """The node is killed and started again."""
    log = house.log.after_crash(last)
    house = make_house(log, records=log.recovered(), **options)
    house.rest()
    return house, house.client()


def prepared_house(**options: Any) -> tuple[House, RawClient, int, Tx]:
    """``in`` has 1 to 4, of which 1 and 3 are acknowledged by a transaction that sends two messages; it is prepared."""
    house, client, channel = house_with(b"1", b"2", b"3", b"4", **options)
    tx = Tx(client)
    tx.send("out", b"a")
    tx.send("out", b"b", envelopes=with_ids("x"))
    tx.ack(channel, 1, 1)
    tx.ack(channel, 3, 3)
    assert prepare(tx) == 0
    house.check()
    return house, client, channel, tx


def content(core: Core) -> dict[str, int]:
    """How many messages each queue has."""
    return {name: sum(view.live for view in queue.runs()) for name, queue in core.router.queues.items()}
