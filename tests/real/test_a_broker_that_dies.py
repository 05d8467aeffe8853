"""A real broker process dies or loses its disk at every single disk call of a short run.

Restarted on the same directory it has everything that it had confirmed, nothing twice and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from meshq import connect
from meshq.errors import MeshqError
from qa.broker_process import BrokerProcess

MESSAGES = 24
QUEUE = "orders"


class Run:
    """What a client of the dying broker knows."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.confirmed: dict[bytes, None] = {}
        self.acknowledging: dict[bytes, None] = {}
        self.acknowledged: dict[bytes, None] = {}

    async def work(self, url: str) -> None:
        """Send and acknowledge in small steps, each confirmed, until done or until the broker is gone."""
        async with connect(url, reconnect_attempts=0, call_timeout=5.0) as client:
            for number in range(MESSAGES // 3):
                bodies = [b"%d/%d %s" % (number, index, b"x" * 900 * index) for index in range(3)]
                self.sent += bodies
                await client.send_many(QUEUE, bodies)
                self.confirmed.update(dict.fromkeys(bodies))
            async with client.consumer(QUEUE, window=6) as consumer:
                while len(self.acknowledged) < MESSAGES // 2:
                    batch = await consumer.receive_many(4, timeout=5)
                    taken = [message.body for message in batch]
                    self.acknowledging.update(dict.fromkeys(taken))
                    await consumer.ack(*batch, confirm=True)
                    self.acknowledged.update(dict.fromkeys(taken))


async def drain(url: str) -> list[bytes]:
    """Everything that the restarted broker has."""
    found: list[bytes] = []
    async with connect(url) as client, client.consumer(QUEUE) as consumer:
        while True:
            batch = await consumer.receive_many(100, timeout=0.05)
            if not batch:
                statistics = await client.queue(QUEUE)
                if statistics.ready + statistics.delivering == 0:
                    return found
                continue
            found += [message.body for message in batch]
            await consumer.ack(*batch, confirm=True)


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
    assert len(set(found)) == len(found), "something came twice"
    missing = [body for body in run.confirmed if body not in found and body not in run.acknowledging]
    assert not missing, f"confirmed and lost: {missing}"
    assert not [body for body in run.acknowledged if body in found], "acknowledged and delivered again"
    assert not [body for body in found if body not in run.sent], "from nowhere"


@pytest.fixture(scope="module")
def calls() -> Iterator[dict[str, int]]:
    """How many disk calls of each kind a whole run makes."""
    with tempfile.TemporaryDirectory() as directory:
        run, counted = one_life(directory, {}, "kill")
        assert isinstance(counted, dict), counted
        assert len(run.confirmed) == MESSAGES
        check(run, directory)
        yield counted


@pytest.mark.processes
@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("write", "tear"),
        *((call, action) for call in ("write", "sync", "name") for action in ("kill", "eio", "enospc")),
    ],
)
def test_whatever_was_confirmed_is_there_after_any_disk_call_went_wrong(
    call: str, action: str, calls: dict[str, int], tmp_path: Path
) -> None:
    assert calls[call] >= 5
    for number in range(1, calls[call] + 1):
        directory = str(tmp_path / f"{number}")
        run, last = one_life(directory, {call: number}, action)
        try:
            check(run, directory)
        except AssertionError as error:
            raise AssertionError(f"{action} at {call} {number} ({last}): {error}") from error
