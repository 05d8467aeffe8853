"""A real broker process dies, or loses its disk, at every disk call while a client moves messages in transactions.

Restarted on the same directory it has each transaction whole, or nothing of it, and each that it had confirmed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from meshq import Client, connect
from meshq.errors import MeshqError
from qa.broker_process import BrokerProcess

TRANSACTIONS = 6
#: Messages that each takes; it sends each of them to both targets, in frames of their own.
TAKEN = 3
TARGETS = ("out", "copies")


class Run:
    """What a client of the dying broker knows."""

    def __init__(self) -> None:
        #: The first messages that were confirmed, and transactions that were begun to be committed, and were.
        self.filled = False
        self.begun: list[list[bytes]] = []
        self.committed: list[list[bytes]] = []

    async def work(self, url: str) -> None:
        """Move messages until done or until the broker is gone."""
        async with connect(url, reconnect_attempts=0, call_timeout=5.0) as client:
            bodies = [b"%d %s" % (number, b"x" * 700 * (number % 4)) for number in range(TRANSACTIONS * TAKEN)]
            await client.send_many("in", bodies)
            self.filled = True
            async with client.consumer("in") as consumer:
                for number in range(TRANSACTIONS):
                    await self._move(client, [await consumer.receive() for _ in range(TAKEN)], number)

    async def _move(self, client: Client, deliveries: list, number: int) -> None:  # type: ignore[type-arg]
        moved = [delivery.body for delivery in deliveries]
        async with client.transaction() as tx:
            for delivery in deliveries:
                for target in TARGETS:
                    await tx.send(target, delivery.body, duplicate_id=delivery.body[:8])
            await tx.ack(*deliveries)
            if number % 3 == 2:
                await tx.rollback()
                return
            self.begun.append(moved)
            await tx.commit()
            self.committed.append(moved)


async def drain(url: str) -> dict[str, list[bytes]]:
    """Everything that the restarted broker has, by queue."""
    found: dict[str, list[bytes]] = {}
    async with connect(url) as client:
        for queue in ("in", *TARGETS):
            got = found[queue] = []
            async with client.consumer(queue) as consumer:
                while True:
                    batch = await consumer.receive_many(100, timeout=0.05)
                    if batch:
                        got += [message.body for message in batch]
                        await consumer.ack(*batch, confirm=True)
                        continue
                    statistics = await client.queue(queue)
                    if statistics.ready + statistics.delivering == 0:
                        break
    return found


def one_life(directory: str, at: dict[str, int], action: str) -> tuple[Run, object]:
    """A run against a broker whose disk fails at one call; what the client knows, and what the broker said last."""
    run = Run()
    broker = BrokerProcess(directory, at=at, action=action)
    try:
        url = broker.next_report()
        if not isinstance(url, str) or not url.startswith("tcp"):
            return run, url
        try:
            trio.run(run.work, url)
        except MeshqError:
            return run, broker.stop()
        return run, broker.stop()
    finally:
        broker.close()


def check(run: Run, directory: str) -> None:
    """The restarted broker has what was promised."""
    broker = BrokerProcess(directory)
    try:
        url = broker.next_report()
        assert isinstance(url, str) and url.startswith("tcp"), url
        found = trio.run(drain, url)
    finally:
        broker.stop()
        broker.close()
    for queue, got in found.items():
        assert len(set(got)) == len(got), f"something came twice from {queue}"
    here = set(found["in"])
    for target in TARGETS:
        there = set(found[target])
        assert not here & there, "applied by half: a message is where it was and where it went"
        assert there <= {body for moved in run.begun for body in moved}, "what was rolled back was delivered"
        for moved in run.begun:
            assert len(there & set(moved)) in (0, TAKEN), "a transaction was applied by half"
        assert there >= {body for moved in run.committed for body in moved}, "confirmed and lost"
    assert set(found["out"]) == set(found["copies"]), "one of two sends was applied"
    if run.filled:
        assert len(here) + len(found["out"]) == TRANSACTIONS * TAKEN, "lost"


@pytest.fixture(scope="module")
def calls() -> Iterator[dict[str, int]]:
    """How many disk calls of each kind a whole run makes."""
    with tempfile.TemporaryDirectory() as directory:
        run, counted = one_life(directory, {}, "kill")
        assert isinstance(counted, dict), counted
        assert len(run.committed) == 4
        check(run, directory)
        yield counted


@pytest.mark.processes
@pytest.mark.parametrize(("call", "action"), [("write", "tear"), ("sync", "kill"), ("write", "eio")])
def test_each_transaction_is_there_whole_or_not_at_all(
    call: str, action: str, calls: dict[str, int], tmp_path: Path
) -> None:
    assert calls[call] >= 5
    for number in range(1, calls[call] + 1):
        directory = str(tmp_path / f"{number}")
        run, _ = one_life(directory, {call: number}, action)
        check(run, directory)
