"""A real broker process is killed at every disk call of large sends: before or after, never in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from meshq import connect
from meshq.errors import MeshqError
from qa.broker_process import BrokerProcess

#: Three blocks and a bit: written in several calls.
BODIES = [random.Random(number).randbytes(800_000 + number) for number in range(2)]
#: No life of this test makes as many calls of a kind.
CALLS_MAX = 60


class Run:
    """What a client of the dying broker knows."""

    def __init__(self) -> None:
        self.confirmed = 0

    async def work(self, url: str) -> None:
        async with connect(url, reconnect_attempts=0, call_timeout=5.0) as client:
            for body in BODIES:
                await client.send("q", body)
                self.confirmed += 1


async def drain(url: str) -> list[bytes]:
    """All that the next life has."""
    found: list[bytes] = []
    async with connect(url) as client, client.consumer("q") as consumer:
        while (message := await consumer.receive(timeout=0.2)) is not None:
            found.append(message.body)
            await message.ack(confirm=True)
    return found


def one_life(directory: Path, at: dict[str, int], action: str) -> tuple[int, bool]:
    """How many sends were confirmed, and whether it lived to the end."""
    run = Run()
    broker = BrokerProcess(str(directory), at=at, action=action)
    try:
        url = broker.next_report()
        if url is None:
            return 0, False
        try:
            trio.run(run.work, url)
        except MeshqError:
            return run.confirmed, False
        return run.confirmed, broker.stop() is not None
    finally:
        broker.close()


@pytest.mark.processes
@pytest.mark.parametrize(("call", "action"), [("write", "kill"), ("write", "tear"), ("sync", "kill"), ("name", "kill")])
def test_after_a_kill_at_any_disk_call_there_is_the_whole_message_or_none(
    tmp_path: Path, call: str, action: str
) -> None:
    seen = set()
    for number in range(1, CALLS_MAX):
        directory = tmp_path / f"{call}{number}"
        confirmed, lived = one_life(directory, {call: number}, action)
        broker = BrokerProcess(str(directory))
        try:
            url = broker.next_report()
            assert str(url).startswith("tcp"), url
            files = sorted(path.suffix for path in (directory / "large").iterdir())
            found = trio.run(drain, url)
            broker.stop()
        finally:
            broker.close()
        assert found == BODIES[: len(found)], f"killed at {call} {number}"
        assert confirmed <= len(found) <= min(len(BODIES), confirmed + 1)
        assert files == [".body"] * len(found)
        assert list((directory / "large").iterdir()) == []
        seen.add(len(found))
        if lived:
            break
    else:
        raise AssertionError("it is killed by every call")
    assert seen == {0, 1, 2}
