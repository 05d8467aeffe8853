"""A siege: hostile frames, half-open connections and SIGKILLs under load, all at once, on an encrypted store.

Nothing that was confirmed is lost, nothing is torn or doubled, and memory and descriptors stay under their bounds.
``python -m tests.attacks.siege`` does all of it and writes the figures to ``docs/results/siege.json``;
with ``--folder`` it goes on where one has stopped whose time was up, or that was interrupted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from meshq import connect
from tests.attacks.half_open import Strangers
from tests.attacks.hostile import Hostiles
from tests.attacks.kit import Report, Sampler, Server
from tests.attacks.load import PAGED, QUEUES, Account, Load, Verdict

SEED: Final = 20_260
DESCRIPTORS: Final = 1_024
#: A broker of three quarters of them, and what Python has open.
DESCRIPTORS_BOUND: Final = DESCRIPTORS * 3 // 4 + 64
MEMORY_LIMIT_MIB: Final = 16
#: What the process itself takes, its limit, and one large frame of each of the load's clients.
MEMORY_BOUND_MIB: Final = 80 + MEMORY_LIMIT_MIB + 5 * 16
USERS: Final = {"app": "secret", "evil": "secret, too"}
SETTINGS: Final = f"""\
memory_limit = "{MEMORY_LIMIT_MIB} MiB"
[journal]
segment_bytes = "256 KiB"
encryption_keys = ["{"5a" * 32}"]
"""
#: Seconds of work between the first confirm of a life and its kill.
LIFE_S_MIN: Final = 0.1
LIFE_S_MAX: Final = 1.0
#: Seconds that are waited for a first confirm.
WORK_S_MAX: Final = 10.0
#: Messages of 4 kB: more than the broker's memory.
BACKLOG: Final = 6_000
#: Kills between two times that the progress is kept.
KEPT_EVERY: Final = 5
#: Numbers that are left out when a siege goes on: those since the progress was kept are not known.
SKIPPED: Final = 30_000


@attrs.frozen(kw_only=True)
class Scale:
    """How large a siege is."""

    kills: int = 100
    frames: int = 18_000
    half_open: int = 2_000
    #: Seconds after which no more is begun.
    time_s: float = 600.0


class Progress:
    """How far a siege has come, kept in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "progress.json"
        kept: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.kills: int = kept.get("kills", 0)
        self.frames: int = kept.get("frames", 0)
        self.half_open: int = kept.get("half_open", 0)
        self.seconds: float = kept.get("seconds", 0.0)
        self.rss_bytes: int = kept.get("rss_bytes", 0)
        self.descriptors: int = kept.get("descriptors", 0)
        self.account = Account(kept.get("account"))
        if kept:
            for worker in QUEUES:
                # Whole transactions of three, and batches.
                self.account.next[worker] += SKIPPED

    def keep(self) -> None:
        """Write it down."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_file", "account")}
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps({**kept, "account": self.account.kept()}))
        temporary.replace(self._file)


class Siege:
    """One siege of a broker in a folder."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self._scale = scale
        self._folder = folder
        self._progress = Progress(folder)
        self._server = Server(folder, descriptors=DESCRIPTORS, users=USERS, settings=SETTINGS)
        self._who = {"user": "app", "password": USERS["app"], "call_timeout": 20}
        self._paged = 0

    async def run(self) -> Report:
        """Lay siege, then let the broker alone and look at what it has."""
        progress, began = self._progress, time.monotonic()
        before = progress.seconds
        await trio.to_thread.run_sync(self._server.start)
        try:
            with Sampler(self._server) as sampler, trio.move_on_after(self._scale.time_s):
                await self._attack(sampler, before, began)
            progress.rss_bytes = max(progress.rss_bytes, sampler.rss_bytes)
            progress.descriptors = max(progress.descriptors, sampler.descriptors)
            progress.seconds = before + time.monotonic() - began
            if not self._finished():
                # Nothing is taken away from what a later one is to be held against.
                progress.keep()
                return self._report(None)
            if not self._server.running:
                await trio.to_thread.run_sync(self._server.start)
            async with connect(self._server.url, **self._who) as client:
                self._paged = (await client.queue(PAGED)).paged
            verdict = Verdict()
            with trio.fail_after(240):
                await verdict.drain(self._server.url, self._who)
        finally:
            if self._server.running:
                self._server.kill()
        progress.seconds = before + time.monotonic() - began
        return self._report(verdict)

    def _finished(self) -> bool:
        return self._progress.kills >= self._scale.kills and self._progress.frames >= self._scale.frames

    async def _attack(self, sampler: Sampler, before: float, began: float) -> None:
        scale, progress, server = self._scale, self._progress, self._server
        rng = random.Random(SEED + progress.kills)
        strangers = Strangers(server.port, scale.half_open)
        hostiles = Hostiles(server.port, random.Random(SEED + progress.frames), "evil", USERS["evil"])
        hostiles.said = progress.frames
        load = Load(server.url, progress.account, self._who)
        await load.fill(BACKLOG)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            nursery.start_soon(strangers.stay)
            nursery.start_soon(hostiles.run, scale.frames)
            while not self._finished():
                await self._some_work(rng)
                progress.frames, progress.half_open = hostiles.said, max(progress.half_open, strangers.most)
                if progress.kills < scale.kills:
                    server.kill()
                    progress.kills += 1
                    await trio.to_thread.run_sync(server.start)
                if not progress.kills % KEPT_EVERY:
                    progress.seconds = before + time.monotonic() - began
                    progress.rss_bytes = max(progress.rss_bytes, sampler.rss_bytes)
                    progress.descriptors = max(progress.descriptors, sampler.descriptors)
                    progress.keep()
            nursery.cancel_scope.cancel()

    async def _some_work(self, rng: random.Random) -> None:
        """Return a while after something was confirmed: a kill that nothing was under way at shows nothing."""
        account = self._progress.account
        account.worked = trio.Event()
        with trio.move_on_after(WORK_S_MAX):
            await account.worked.wait()
        await trio.sleep(rng.uniform(LIFE_S_MIN, LIFE_S_MAX))

    def _report(self, verdict: Verdict | None) -> Report:
        """``verdict`` is None if the time was up before the siege was finished."""
        progress, scale = self._progress, self._scale
        account = progress.account
        report = Report("a siege: hostile frames, half-open connections and kills under load")
        report.exactly("kills", progress.kills, scale.kills)
        report.at_least("hostile frames", progress.frames, scale.frames)
        report.at_least("half-open connections", progress.half_open, scale.half_open)
        if verdict is not None:
            report.exactly("confirmed messages lost", verdict.lost(account), 0)
            report.exactly("messages torn", verdict.torn, 0)
            report.exactly("transactions torn", verdict.torn_transactions(), 0)
            report.exactly("messages of transactions that were not done", verdict.undead(account), 0)
            report.exactly("messages doubled", verdict.doubled(), 0)
            report.at_least("messages that were paged at the end", self._paged, 1)
        for worker in QUEUES:
            report.at_least(f"confirmed {worker} messages", len(account.confirmed[worker]), 1)
        report.at_least("messages moved in transactions", account.moved, 1)
        report.at_most("descriptors of the broker", progress.descriptors, DESCRIPTORS_BOUND)
        report.at_most("MiB of the broker", progress.rss_bytes >> 20, MEMORY_BOUND_MIB)
        report.at_least("seconds", round(progress.seconds), 0)
        return report


async def attack(folder: Path, scale: Scale) -> Report:
    """A siege of this scale."""
    return await Siege(folder, scale).run()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.siege", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=Scale().kills)
    parser.add_argument("--frames", type=int, default=Scale().frames)
    parser.add_argument("--half-open", type=int, default=Scale().half_open)
    parser.add_argument("--time", type=float, default=Scale().time_s, help="seconds of attack, at most")
    parser.add_argument("--folder", type=Path, help="where the store and the progress are; a siege there goes on")
    parser.add_argument("--result", default="siege", help="the file below docs/results that gets the figures")
    given = parser.parse_args()
    scale = Scale(kills=given.kills, frames=given.frames, half_open=given.half_open, time_s=given.time)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = trio.run(partial(attack, folder, scale))
    print(report.text())
    if report.holds:
        # Where its folder was is nobody's concern.
        where = ("--folder", str(given.folder), f"--folder={given.folder}")
        report.record("siege", given.result, [word for word in sys.argv[1:] if word not in where])
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
