"""SIGKILL leaves the page cache whole, so it can't show that anything was synced.  The system calls can.

A broker is run under strace while a client sends, one confirmed message after the other and in batches.  In the
trace every frame that confirms a message stands after a completed sync, and that sync began after the last write of
the message's bytes into the journal had returned.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import trio

from meshq import connect
from meshq.limits import BODY_BYTES_MAX
from meshq.wire import FrameType, ReceiveBuffer

PROGRAM = """
import sys, trio
from meshq import Broker
async def main():
    async with Broker("traced", data_dir=sys.argv[1], acceptors=["tcp://127.0.0.1:0"]) as broker:
        print(broker.urls[0], flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
trio.run(main)
"""
SINGLES = 40
BATCHES = 10
STRACE = ["strace", "-f", "-ttt", "-yy", "-xx", "-s", "2000000", "-e"]
CALLS = "trace=pwrite64,pwritev,pwritev2,write,writev,fdatasync,fsync,sendto,sendmsg"


@attrs.frozen
class Call:
    """A system call of the trace: when it began and when it returned, as line numbers."""

    name: str
    target: str
    data: bytes
    began: int
    ended: int


_LINE = re.compile(r"^(?P<pid>\d+) +[\d.]+ (?P<rest>.*)$")
_START = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)$", re.DOTALL)
_RESUMED = re.compile(r"^<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)$", re.DOTALL)
_TARGET = re.compile(r"^\d+<(?P<target>[^>]*(?:->[^>]*)?)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def read_trace(text: str) -> list[Call]:
    """All calls that succeeded, in the order in which they returned."""
    pending_moves: dict[str, tuple[str, int]] = {}
    calls: list[Call] = []
    for number, line in enumerate(text.splitlines()):
        found = _LINE.match(line)
        if found is None:
            continue
        pid, rest = found["pid"], found["rest"]
        if rest.endswith("<unfinished ...>"):
            pending_moves[pid] = (rest.removesuffix("<unfinished ...>"), number)
            continue
        began = number
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            head, began = pending_moves.pop(pid)
            rest = head + resumed["rest"]
        start = _START.match(rest)
        if start is None or re.search(r"= -1 E", rest[-200:]):
            continue
        target = _TARGET.match(start["arguments"])
        data = b"".join(bytes.fromhex(part.replace("\\x", "")) for part in _STRING.findall(rest))
        name = target["target"] if target is not None else ""
        if name.startswith("\\x"):
            name = bytes.fromhex(name.replace("\\x", "")).decode()
        calls.append(Call(start["name"], name, data, began, number))
    return calls


async def traffic(url: str) -> list[bytes]:
    """Send; returns the bodies in the order in which they were confirmed."""
    sent: list[bytes] = []
    async with connect(url) as client:
        for number in range(SINGLES):
            sent.append(b"single-%04d" % number)
            await client.send("traced", sent[-1])
        for number in range(BATCHES):
            bodies = [b"batch-%04d-%02d" % (number, index) for index in range(20)]
            sent += bodies
            await client.send_many("traced", bodies)
    return sent


def confirms(calls: list[Call]) -> list[tuple[Call, int, int]]:
    """Every confirm that went out: the call, the producer's channel, the highest number."""
    streams: dict[str, ReceiveBuffer] = {}
    found: list[tuple[Call, int, int]] = []
    for call in calls:
        if call.name in ("sendto", "sendmsg") and "TCP" in call.target:
            buffer = streams.setdefault(call.target, ReceiveBuffer(BODY_BYTES_MAX))
            found += [
                (call, frame.channel, frame.first)
                for frame in buffer.feed(call.data)
                if frame.type is FrameType.CONFIRM
            ]
    return found


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("strace") is None, reason="skipped: strace is not installed")
def test_every_confirm_follows_a_sync_that_covers_its_message(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    broker = subprocess.Popen(
        [*STRACE, CALLS, "-o", str(trace), sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert broker.stdin is not None and broker.stdout is not None
    try:
        sent = trio.run(traffic, broker.stdout.readline().strip())
    finally:
        broker.stdin.close()
        broker.wait(timeout=30)
        broker.stdout.close()
    calls = read_trace(trace.read_text())
    writes = [call for call in calls if call.name.startswith("pwrite") and ".seg" in call.target]
    syncs = [call for call in calls if call.name in ("fdatasync", "fsync") and ".seg" in call.target]
    assert writes and syncs
    confirmed = confirms(calls)
    # One implicit producer: its numbers count the messages.
    assert {channel for _, channel, _ in confirmed} == {confirmed[0][1]}
    highest = 0
    for call, _, number in confirmed:
        assert number > highest
        for body in sent[highest:number]:
            write = next(write for write in writes if body in write.data)
            covering = [
                sync
                for sync in syncs
                if sync.target == write.target and write.ended < sync.began and sync.ended < call.began
            ]
            assert covering, f"{body!r} was confirmed in line {call.began}, written in line {write.ended}, never synced"
        highest = number
    assert highest == len(sent)


def test_the_reader_of_traces_joins_calls_that_were_interrupted() -> None:
    text = "\n".join(
        [
            r'7 1.0 pwrite64(5</d/1.seg>, "\x61\x62", 2, 4096 <unfinished ...>',
            r"8 1.1 fdatasync(5</d/1.seg>) = 0",
            r"7 1.2 <... pwrite64 resumed>) = 2",
            r"7 1.3 fdatasync(5</d/1.seg>) = -1 EIO (Input/output error)",
        ]
    )
    assert read_trace(text) == [
        Call("fdatasync", "/d/1.seg", b"", 1, 1),
        Call("pwrite64", "/d/1.seg", b"ab", 0, 2),
    ]
