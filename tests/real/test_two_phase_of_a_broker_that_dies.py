"""A real broker process dies at every disk call while a client prepares transactions and decides them.

Restarted on the same directory it knows each that was prepared, decides it as it is told, and each is there whole or
not at all, as was decided; a verdict that was told before is told again and changes nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from meshq import Delivery, MeshqError, connect
from meshq.client import Client
from qa.broker_process import BrokerProcess
from tests.real.test_transactions_of_a_broker_that_dies import TARGETS, drain

TRANSACTIONS = 6
TAKEN = 2


class Log:
    """What a manager of transactions has written down."""

    def __init__(self) -> None:
        self.filled = False
        #: The messages of each transaction that was to be prepared; those that were; and what is to become of them.
        self.begun: dict[bytes, list[bytes]] = {}
        self.prepared: list[bytes] = []
        self.verdicts: dict[bytes, str] = {}

    async def work(self, url: str) -> None:
        """Move messages until done or until the broker is gone; the last transaction stays prepared."""
        async with connect(url, reconnect_attempts=0, call_timeout=5.0) as client:
            bodies = [b"%d %s" % (number, b"x" * 700 * (number % 4)) for number in range(TRANSACTIONS * TAKEN)]
            await client.send_many("in", bodies)
            self.filled = True
            async with client.consumer("in") as consumer:
                for number in range(TRANSACTIONS):
                    taken = [await consumer.receive() for _ in range(TAKEN)]
                    await self._move(client, b"order-%d" % number, [one for one in taken if one is not None])

    async def _move(self, client: Client, xid: bytes, deliveries: list[Delivery]) -> None:
        async with client.transaction(xid) as tx:
            for delivery in deliveries:
                for target in TARGETS:
                    await tx.send(target, delivery.body)
            await tx.ack(*deliveries)
            self.begun[xid] = [delivery.body for delivery in deliveries]
            await tx.prepare()
            self.prepared.append(xid)
        if len(self.prepared) == TRANSACTIONS:
            return
        self.verdicts[xid] = "rollback" if len(self.prepared) % 3 == 2 else "commit"
        await self.tell(client, xid)

    async def tell(self, client: Client, xid: bytes) -> None:
        """Tell the broker the verdict."""
        await (client.commit(xid) if self.verdicts[xid] == "commit" else client.rollback(xid))

    async def finish(self, url: str) -> None:
        """The restarted broker is told everything, again or for the first time."""
        async with connect(url) as client:
            waiting = await client.recover()
            undecided = [xid for xid in self.begun if xid not in self.verdicts]
            assert {*self.prepared} - {*self.verdicts} <= {*waiting} <= {*self.begun}, "a prepared one is forgotten"
            for xid in undecided:
                # Of these it may be that nobody was told that they are prepared.
                self.verdicts[xid] = "commit" if xid in waiting and xid[-1] % 2 else "rollback"
            for xid in self.verdicts:
                await self.tell(client, xid)
            for xid in reversed(self.verdicts):
                await self.tell(client, xid)
            assert await client.recover() == []


def one_life(directory: str, at: dict[str, int], action: str) -> tuple[Log, object]:
    """A run against a broker whose disk fails at one call; what the client knows, and what the broker said last."""
    log = Log()
    broker = BrokerProcess(directory, at=at, action=action)
    try:
        url = broker.next_report()
        if not isinstance(url, str) or not url.startswith("tcp"):
            return log, url
        try:
            trio.run(log.work, url)
        except MeshqError:
            return log, broker.stop()
        return log, broker.stop()
    finally:
        broker.close()


def check(log: Log, directory: str) -> None:
    """What was decided is so, and stays so in the life after the next one."""
    found: dict[str, list[bytes]] = {}
    for last in (False, True):
        broker = BrokerProcess(directory)
        try:
            url = broker.next_report()
            assert isinstance(url, str) and url.startswith("tcp"), url
            trio.run(log.finish, url)
            if last:
                found = trio.run(drain, url)
        finally:
            broker.stop()
            broker.close()
    committed = [body for xid, bodies in log.begun.items() if log.verdicts[xid] == "commit" for body in bodies]
    for target in TARGETS:
        assert sorted(found[target]) == sorted(committed), "each transaction is there as was decided, once"
    assert len(set(found["in"])) == len(found["in"]), "something came twice"
    assert not {*found["in"]} & {*committed}, "what was acknowledged came again"
    if log.filled:
        assert len(found["in"]) == TRANSACTIONS * TAKEN - len(committed), "lost"


@pytest.fixture(scope="module")
def calls() -> Iterator[dict[str, int]]:
    """How many disk calls of each kind a whole run makes."""
    with tempfile.TemporaryDirectory() as directory:
        log, counted = one_life(directory, {}, "kill")
        assert isinstance(counted, dict), counted
        assert len(log.prepared) == TRANSACTIONS
        assert len(log.verdicts) == TRANSACTIONS - 1
        check(log, directory)
        yield counted


@pytest.mark.processes
@pytest.mark.parametrize(("call", "action"), [("write", "tear"), ("sync", "kill")])
def test_each_prepared_transaction_is_there_as_was_decided(
    call: str, action: str, calls: dict[str, int], tmp_path: Path
) -> None:
    assert calls[call] >= 5
    for number in range(1, calls[call] + 1):
        directory = str(tmp_path / f"{number}")
        log, _ = one_life(directory, {call: number}, action)
        check(log, directory)
