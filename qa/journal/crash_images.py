"""Every state in which a power failure could leave a journal, and its recovery.

A scripted life of a journal with small segments runs on a simulated disk: records come and go, segments roll, are
compacted and removed.  After each call that changes the disk, every image is built that a loss of power at that
moment could leave: each subset of up to twelve things not synced, each prefix of more; lost sectors of new files
once as zeros, once as bytes of removed files.  Each image is recovered, compared with what was acknowledged and
placed, and recovered again.  From every n-th image the recovery itself is crashed at each of its calls.

``python -m qa.journal.crash_images --images 1000000 --result crash_images --resume`` tries more lives until they have
had so many images, and writes down which; lives with other ``--steps`` are another run of the file.  ``--seed N`` tries
one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any, Final

import attrs
import trio
import trio.testing

from meshq.store import Journal
from meshq.store.formats._keyring_format import Keyring
from meshq.testing import DiskOperation, SimDisk
from qa.arguments import COUNT, NATURAL
from qa.journal.model import ROOT_DIRECTORY, Model, journal_env, recover_and_check, recover_store
from qa.results import NUMBER, ResultFile, ResultFormat, about_here, add_result_option, with_commit

SEGMENT_BYTES = 16 * 1024
FORMAT: Final = ResultFormat(
    "crash images",
    parts="runs",
    part_fields={
        **dict.fromkeys(("steps", "lives", "images", "inside_recovery", "moments"), int),
        "cpu_s": NUMBER,
        "commits": list,
    },
)
#: CI tries the lives before it.
FIRST: Final = 2
CHANGES = ("create", "write", "truncate", "sync", "replace", "remove", "sync_directory")


@attrs.define(eq=False)
class CrashImages:
    """A scripted life and its images."""

    seed: int
    #: From every so many images the recovery is crashed, too.
    nested_every: int = 400
    checkpoints: bool = True
    #: What the store is encrypted with.
    keys: tuple[bytes, ...] = ()
    steps: int = 30
    images: int = 0
    nested: int = 0
    moments: int = 0
    segments: int = 0
    compactions: int = 0
    #: Moments at which an index was being written or removed.
    indexing: int = 0

    def run(self) -> CrashImages:
        """Try them all.  Raises: LostError, or what a recovery raises."""
        trio.run(self._life, clock=trio.testing.MockClock(autojump_threshold=0))
        return self

    async def _life(self) -> None:
        rng = random.Random(self.seed)
        disk, model = SimDisk(random.Random(self.seed)), Model(keyring=Keyring(self.keys))
        switches = {"journal.compact_early": False}
        env = journal_env(disk, seed=self.seed, failpoint=lambda name: switches.get(name, False))
        journal = Journal(
            ROOT_DIRECTORY,
            segment_bytes=SEGMENT_BYTES,
            segment_bytes_min=SEGMENT_BYTES,
            env=env,
            encryption_keys=self.keys,
        )
        model.journal = journal
        if self.checkpoints:
            journal.attach(model.owner())

        def watch(operation: DiskOperation) -> None:
            if operation.call in CHANGES:
                self.indexing += ".idx" in operation.path
                self._try_all(disk, model, journal)

        disk.watch = watch
        async with journal:
            for step in range(self.steps):
                switches["journal.compact_early"] = step % 10 == 9
                await one_step(rng, model, journal)
                if step % 10 == 9:
                    # Long enough for a watermark, reclaiming, a compaction and indexes.
                    await trio.sleep(5)
                self.segments = max(self.segments, journal.statistics().segments)
            self.compactions = journal.statistics().compactions

    def _try_all(self, disk: SimDisk, model: Model, journal: Journal) -> None:
        self.moments += 1
        for image in disk.crash_images():
            self.images += 1
            nested = image.copy() if self.images % self.nested_every == 0 else None
            found = recover_and_check(image, model, journal.durable, journal.last)
            again = recover_and_check(image, model, journal.durable, journal.last, seed=2)
            if found != again:
                raise AssertionError(f"recovered again, the records differ: {found} {again}")
            if nested is not None:
                self._crash_inside(nested, model, journal)

    def _crash_inside(self, disk: SimDisk, model: Model, journal: Journal) -> None:
        """Recover, and try every image of every moment of that."""

        def watch(operation: DiskOperation) -> None:
            if operation.call in CHANGES:
                for image in disk.crash_images():
                    self.nested += 1
                    recover_and_check(image, model, journal.durable, journal.last, seed=3)

        disk.watch = watch
        recover_store(disk, keyring=model.keyring)


async def one_step(rng: random.Random, model: Model, journal: Journal) -> None:
    """A batch or two: new records, and the end of old ones.

    Checkpoint: not always.
    Cancellation: what was placed is in the model.
    """
    for _ in range(rng.choice((1, 1, 2, 5))):
        model.place(rng.randrange(1, 9), rng.randbytes(rng.choice((0, 3, 90, 400, 1500))))
    living = model.alive(journal.last)
    rng.shuffle(living)
    living = [position for position in living if model.placed[position].kind < 9]
    half = len(living) * 2 // 5
    if half > 5:
        model.place(20, b"done", tombstone=True, deletes=living[: half // 2], lazy=True)
        model.place(21, b"replaced", deletes=living[half // 2 : half])
        model.place(22, b"half of it", tombstone=True, refs=living[half : half + 2], lazy=rng.random() < 0.5)
    if rng.random() < 0.8:
        await journal.wait_durable(journal.last)


def life(seed: int, steps: int) -> CrashImages:
    """The life of a seed: every second one with checkpoints, and every fourth one encrypted."""
    return CrashImages(seed, steps=steps, checkpoints=seed % 2 == 0, keys=(bytes(32),) if seed % 4 == 3 else ())


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m qa.journal.crash_images", description=__doc__)
    made.add_argument("--seed", type=NATURAL, metavar="N", help="try this life, and no other")
    made.add_argument("--images", type=COUNT, default=10_000, metavar="N", help="until so many (%(default)s)")
    made.add_argument("--steps", type=COUNT, default=30, metavar="N", help="batches of each life (%(default)s)")
    add_result_option(made, FORMAT)
    made.add_argument("--resume", action="store_true", help="go on with the run of the result")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Try lives, one after the other; returns the exit status.  Raises: what the first loss is found as."""
    options = parser().parse_args(arguments)
    if options.resume and not options.result:
        parser().error("--resume goes on with what is in a result: name it by --result")
    if options.seed is not None:
        sys.stdout.write(f"{life(options.seed, options.steps).run()}\n")
        return 0
    file: ResultFile | None = options.result
    # Lives of other steps are other lives, and never counted with these.
    about = {"steps": options.steps}
    run: dict[str, Any] = {"lives": 0, "images": 0, "inside_recovery": 0, "moments": 0, "cpu_s": 0.0, "commits": []}
    if options.resume and file is not None:
        run = file.run_of(about) or run
    while run["images"] + run["inside_recovery"] < options.images:
        cpu, tried = time.process_time(), life(FIRST + run["lives"], options.steps).run()
        here = about_here()
        run = {
            "command": f"python -m qa.journal.crash_images --images {options.images} --steps {options.steps}",
            **here,
            **about,
            "first": FIRST,
            "lives": run["lives"] + 1,
            "images": run["images"] + tried.images,
            "inside_recovery": run["inside_recovery"] + tried.nested,
            "moments": run["moments"] + tried.moments,
            "cpu_s": round(run["cpu_s"] + time.process_time() - cpu, 1),
            "commits": with_commit(run["commits"], here["commit"]),
        }
        if file is not None:
            file.put_run(about, run)
    sys.stdout.write(f"{run['lives']} lives, {run['images']} images, {run['inside_recovery']} inside recoveries\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
