"""The whole simulator on the smallest broker that it can break: seeded bugs are caught, the sound one passes.

The toy keeps one queue in one file, one record to a sector: ``<uid> <duplicate id> <checksum>``.  It confirms a
send once its record is synced, and knows duplicate ids from the file after a restart.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from collections.abc import Collection
from pathlib import Path

import pytest
import trio

from meshq.abc import Disk, Env, File, Stream
from meshq.errors import ConnectionBrokenError
from meshq.testing import MemoryNetwork, SimNode, Simulation, SimulationResult, run_seed
from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import History
from qa.checkers.end import check_history

ROOT = Path(__file__).parents[2]
SECTOR = 512
SENDS = 30
#: Seeds within which each seeded bug has to be caught.
SEEDS = 60


def read_log(file: File) -> list[tuple[int, str]]:
    """The (uid, duplicate id) of every whole record up to the first that is not."""
    found: list[tuple[int, str]] = []
    data = file.read_at(0, file.size())
    for at in range(0, len(data), SECTOR):
        text, _, checksum = data[at : at + SECTOR].rstrip(b"\0").rpartition(b" ")
        if not text or checksum != b"%08x" % zlib.crc32(text):
            break
        uid, duplicate_id = text.decode().split()
        found.append((int(uid), duplicate_id))
    return found


def open_log(disk: Disk) -> File:
    disk.make_directory("/data")
    disk.sync_directory("/")
    if "log" not in disk.names("/data"):
        disk.open("/data/log", create=True).close()
    disk.sync_directory("/data")
    return disk.open("/data/log")


class ToyBroker:
    """One life of it, with ``defects`` built in by name."""

    def __init__(self, env: Env, defects: Collection[str]) -> None:
        self.env = env
        self.defects = defects
        self.records = 0
        self.failed = False
        self.known: dict[str, trio.Event] = {}

    async def run(self) -> None:
        try:
            self.file = await self.env.threads.run(open_log, self.env.disk, pool="journal")
        except OSError:
            return
        assert self.file.lock()
        for _, duplicate_id in read_log(self.file):
            self.records += 1
            if "forget duplicate ids at restart" not in self.defects:
                self.known[duplicate_id] = trio.Event()
                self.known[duplicate_id].set()
        listener = await self.env.network.listen("broker", 5000)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self.serve, await listener.accept())

    async def serve(self, stream: Stream) -> None:
        buffer = b""
        try:
            while data := await stream.receive(4096):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    await self.place(line)
                    stream.send_nowait(b"ok\n")
                    await stream.flush()
        except ConnectionBrokenError:
            pass
        except OSError:
            # Fail-stop: whoever waits for an answer gets none.
            await trio.sleep_forever()
        finally:
            stream.close()

    async def place(self, line: bytes) -> None:
        duplicate_id = line.split()[1].decode()
        if duplicate_id in self.known:
            await self.known[duplicate_id].wait()
            return
        self.known[duplicate_id] = stored = trio.Event()
        at, self.records = self.records, self.records + 1
        await self.env.threads.run(self.write, at, line, pool="journal")
        stored.set()

    def write(self, at: int, line: bytes) -> None:
        if self.failed:
            raise OSError(errno.EIO, "failed before")
        self.failed = True
        self.file.write_at(at * SECTOR, [(line + b" %08x" % zlib.crc32(line)).ljust(SECTOR, b"\0")])
        try:
            if "confirm without sync" not in self.defects:
                self.file.sync()
        except OSError:
            if "ignore a sync error" not in self.defects:
                raise
        self.failed = False


class ToyClient:
    """Sends its messages one after the other, each until it is confirmed."""

    def __init__(self, node: SimNode, history: History, first: int) -> None:
        self.node = node
        self.history = history
        self.uids = range(first, first + SENDS)
        self.stream: Stream | None = None
        self.done = trio.Event()

    async def run(self) -> None:
        for uid in self.uids:
            await self.send(uid)
            await trio.sleep(1.0)
        self.done.set()

    async def send(self, uid: int, *, barrier: bool = False) -> None:
        for _ in range(1000):
            if await self.attempt(uid, barrier):
                return
            await trio.sleep(0.5)

    async def attempt(self, uid: int, barrier: bool) -> bool:
        op = self.history.sent(self.node.name, "q", uid, duplicate_id=f"d{uid}", barrier=barrier)
        try:
            with trio.fail_after(2):
                if self.stream is None:
                    self.stream = await self.node.env.network.connect("broker", 5000)
                self.stream.send_nowait(b"%d d%d\n" % (uid, uid))
                await self.stream.flush()
                if await self.stream.receive(100) != b"ok\n":
                    raise ConnectionBrokenError("the broker closed")
        except (ConnectionBrokenError, trio.TooSlowError):
            self.history.send_failed(op, "unknown")
            if self.stream is not None:
                self.stream.close()
                self.stream = None
            return False
        self.history.send_ok(op)
        return True


async def faults(simulation: Simulation, broker: SimNode, history: History, defects: Collection[str]) -> None:
    """Every ten seconds something dies, fails or is cut, as the seed decides."""
    rng, fabric = simulation.swarm.rng("faults"), simulation.fabric
    assert isinstance(fabric, MemoryNetwork)
    for _ in range(4):
        kind = rng.choice(["power", "kill", "fuse", "sync", "full", "cut", "pause"])
        await trio.sleep(5 + 5 * rng.random())
        history.note(kind)
        if kind == "fuse":
            broker.fuse(rng.randrange(1, 30))
        elif kind == "sync":
            broker.disk.faults.inject("sync", errno.EIO)
        elif kind == "full":
            broker.disk.faults.inject("write", errno.ENOSPC)
        elif kind == "cut":
            fabric.cut("c0", "broker")
        elif kind == "pause":
            broker.pause()
        await trio.sleep(4 * rng.random())
        fabric.heal()
        broker.resume()
        broker.disk.faults.clear()
        if kind not in ("cut", "pause"):
            (broker.kill if kind == "kill" else broker.power_off)()
            await trio.sleep(rng.random())
            broker.start()
            broker.spawn(ToyBroker(broker.env, defects).run)


async def scenario(simulation: Simulation, defects: Collection[str] = ()) -> History:
    history = History(trio.current_time)
    broker = simulation.node("broker")
    broker.spawn(ToyBroker(broker.env, defects).run)
    clients = [ToyClient(simulation.node(f"c{number}"), history, 1000 * number) for number in range(2)]
    for client in clients:
        client.node.spawn(client.run)
    await faults(simulation, broker, history, defects)
    for client in clients:
        await client.done.wait()
    history.healed()
    await clients[0].send(9999, barrier=True)
    broker.power_off()
    log = read_log(open_log(broker.start().disk))
    history.final.recounted("q", [(uid, sequence) for sequence, (uid, _) in enumerate(log, start=1)])
    check_history(history)
    return history


def run(seed: int, *defects: str) -> SimulationResult:
    async def main(simulation: Simulation) -> History:
        return await scenario(simulation, defects)

    return run_seed(seed, main, network=lambda simulation: MemoryNetwork(simulation.swarm.rng("network")))


@pytest.mark.slow
def test_the_sound_toy_keeps_every_promise_and_meets_every_fault() -> None:
    counters: dict[str, int] = {}
    for seed in range(SEEDS):
        result = run(seed).check()
        assert len(result.value.sends) >= 2 * SENDS
        assert not result.abandoned
        for kind, number in result.counters.items():
            counters[kind] = counters.get(kind, 0) + number
    for kind in ("power_loss", "kill", "fuse", "lost_sector", "sync.EIO", "write.ENOSPC"):
        assert counters[f"disk.{kind}"] > 0, kind
    for kind in ("node.kill", "node.pause", "node.power_off", "network.cut", "network.held", "network.vanished"):
        assert counters[kind] > 0, kind


@pytest.mark.parametrize(
    ("defect", "checker"),
    [
        ("confirm without sync", "Q1"),
        ("ignore a sync error", "Q1"),
        ("forget duplicate ids at restart", "Q4"),
    ],
)
def test_a_seeded_bug_is_caught_by_the_checker_of_its_promise(defect: str, checker: str) -> None:
    for seed in range(SEEDS):
        failure = run(seed, defect).failure
        if failure is not None:
            assert isinstance(failure, HistoryError)
            assert checker in failure.checkers
            again = run(seed, defect)
            assert str(again.failure) == str(failure)
            return
    pytest.fail(f"{defect}: not caught by {SEEDS} seeds")


def traces() -> list[int]:
    return [run(seed).trace for seed in range(5)]


@pytest.mark.slow
def test_a_run_with_network_and_faults_has_one_trace_per_seed_in_every_process() -> None:
    here = traces()
    assert len(set(here)) == 5
    code = "from tests.qa.test_simulated_broker import traces; print(traces())"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
        )
        assert there.stdout == f"{here}\n"
