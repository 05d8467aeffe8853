"""A real broker process is killed at every disk call while an operator moves messages to and fro.

Restarted on the same directory it has each message once, in one of the two queues; and of each run that is moved, all
of it or nothing.  The journal's batches have one record, so that a kill may come between any two of them.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from meshq import Client, Message, connect
from meshq.errors import MeshqError
from qa.broker_process import BrokerProcess

#: Runs that are sent, and messages of each: the last one of a run stays where it is.
RUNS, SIZE = 3, 3
#: A record of each run, and what becomes of it, stand in batches of their own.
FAILPOINTS = ("journal.batch_of_one",)
#: No life of this test makes as many calls of a kind.
CALLS_MAX = 80
MOVED = [[b"%d %d" % (run, index) for index in range(SIZE - 1)] for run in range(RUNS)]
STAYING = [b"%d %d" % (run, SIZE - 1) for run in range(RUNS)]


@attrs.define
class Run:
    """What the operator of the dying broker knows."""

    sent: int = 0
    moved: bool = False
    redriving: bool = False
    redriven: bool = False

    async def work(self, url: str) -> None:
        """Send runs, move the most of each aside, and send that back, until done or until the broker is gone."""
        async with connect(url, reconnect_attempts=0, call_timeout=5.0) as client:
            for run in range(RUNS):
                messages = [Message(b"%d %d" % (run, index), properties={"n": index}) for index in range(SIZE)]
                await client.send_many("in", messages)
                self.sent += 1
            assert await client.move_messages("in", "aside", filter=f"n < {SIZE - 1}") == RUNS * (SIZE - 1)
            self.moved = True
            # Whoever was told too early is caught here, by a kill between two calls.
            await client.queues()
            self.redriving = True
            assert await client.redrive("aside") == RUNS * (SIZE - 1)
            self.redriven = True


async def drained(client: Client, queue: str) -> list[bytes]:
    """All that a queue of the next life has."""
    if queue not in await client.queues():
        return []
    found: list[bytes] = []
    async with client.consumer(queue) as consumer:
        while (now := await client.queue(queue)).ready + now.delivering > len(found):
            found += [message.body for message in await consumer.receive_many(100, timeout=5)]
    return found


async def look(url: str) -> tuple[list[bytes], list[bytes]]:
    """What is where in the next life."""
    async with connect(url) as client:
        return await drained(client, "in"), await drained(client, "aside")


def one_life(directory: str, at: dict[str, int], action: str) -> tuple[Run, bool]:
    """What its operator knows, and whether it lived to the end."""
    run = Run()
    broker = BrokerProcess(directory, at=at, action=action, failpoint=FAILPOINTS)
    try:
        url = broker.next_report()
        if url is None:
            return run, False
        try:
            trio.run(run.work, url)
        except MeshqError:
            return run, False
        return run, broker.stop() is not None
    finally:
        broker.close()


def next_life(directory: str) -> tuple[list[bytes], list[bytes]]:
    broker = BrokerProcess(directory)
    try:
        url = broker.next_report()
        assert isinstance(url, str) and url.startswith("tcp"), url
        found = trio.run(look, url)
        broker.stop()
        return found
    finally:
        broker.close()


def judge(run: Run, here: list[bytes], aside: list[bytes]) -> int:
    """See that each message is there once; returns how many runs are aside."""
    assert len({*here, *aside}) == len(here) + len(aside), "a message is in both queues, or twice in one"
    there = {*here, *aside}
    runs = range(len(there) // SIZE)
    assert there == {body for index in runs for body in (*MOVED[index], STAYING[index])}, "lost, or a run by half"
    assert run.sent <= len(runs) <= run.sent + 1
    assert not {*STAYING} & {*aside}, "what was not to be moved was"
    moved = 0
    for index in runs:
        assert len({*MOVED[index]} & {*aside}) in (0, SIZE - 1), "a run was moved by half"
        moved += MOVED[index][0] in aside
    if run.redriven:
        assert moved == 0, "said to be back, and is not"
    elif run.moved and not run.redriving:
        assert moved == RUNS, "said to be moved, and is not"
    return moved


@pytest.mark.processes
@pytest.mark.parametrize(("call", "action"), [("write", "kill"), ("write", "tear"), ("sync", "kill")])
def test_after_a_kill_at_any_disk_call_each_message_is_in_one_of_the_two_queues(
    tmp_path: Path, call: str, action: str
) -> None:
    seen: dict[bool, set[int]] = {False: set(), True: set()}
    for number in range(1, CALLS_MAX):
        directory = str(tmp_path / f"{call}{number}")
        run, lived = one_life(directory, {call: number}, action)
        try:
            seen[run.redriving].add(judge(run, *next_life(directory)))
        except AssertionError as error:
            raise AssertionError(f"{action} at {call} {number}: {error}") from error
        if lived:
            break
    else:
        raise AssertionError("it is killed by every call")
    # It died before the move and in the middle of it, and of sending back; the disk may take two runs in one write.
    for found in seen.values():
        assert 0 in found and found & {*range(1, RUNS)}
