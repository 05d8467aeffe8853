"""Every single bit of a journal's last two segments, of an index and of its manifests, flipped.

The store is one that a killed process left behind: idle, so its last batch is proven by a watermark, its last
segment not sealed.  A flip must be noticed, as an error that names the file and the place, or do no harm: the same
records.  A flip where nothing durable lies must not be noticed as damage.  An index with a flipped bit must not be
believed; and a segment with one is found out although its index was believed: by whoever reads that batch.  Each
flip is judged by the functions that recovery uses on the bytes of the one file; every n-th flip also by a whole
recovery.

``python -m qa.journal.bit_flips SEED [SEED...]`` tries more stores.
"""

from __future__ import annotations

import random
import sys

import attrs
import trio
import trio.testing

from meshq.errors import DamagedError
from meshq.store import Journal
from meshq.store.formats._batch_format import BatchHeader
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import PURPOSE, Manifest, SegmentEntry
from meshq.store.formats._ping_pong_format import decode_copy
from meshq.store.formats._scan_format import scan
from meshq.store.formats._segment_format import decode_header
from meshq.store.formats._segment_index_format import SegmentIndex, decode_index
from meshq.store.recovery._recovery import read_manifest
from meshq.testing import SimDisk
from qa.journal.crash_images import one_step
from qa.journal.model import (
    ROOT_DIRECTORY,
    LostError,
    Model,
    journal_env,
    recover_and_check,
    recover_store,
)

SEGMENT_BYTES = 8 * 1024


@attrs.define(eq=False)
class BitFlips:
    """A store and its flips."""

    seed: int
    #: Every so many flips the whole store is recovered.
    whole_every: int = 499
    #: What the store is encrypted with.
    keys: tuple[bytes, ...] = ()
    #: How many of the last segments.
    segments: int = 2
    flips: int = 0
    #: Flips that were noticed, and those that did no harm.
    detected: int = 0
    harmless: int = 0
    whole: int = 0
    _disk: SimDisk = attrs.field(factory=SimDisk, repr=False)
    _model: Model = attrs.field(factory=Model, repr=False)

    def run(self) -> BitFlips:
        """Flip them all.  Raises: LostError."""
        trio.run(self._life, clock=trio.testing.MockClock(autojump_threshold=0))
        layout = Layout(ROOT_DIRECTORY)
        manifest = read_manifest(self._disk, layout)
        if manifest is None or len(manifest.entries) < 3 or manifest.entries[-1].sealed:
            raise AssertionError(f"the life must leave three segments, the last one open: {manifest}")
        for entry in manifest.entries[-self.segments :]:
            self._flip_segment(layout.segment(entry.number), entry, manifest)
        indexed = [entry for entry in manifest.entries if self._disk.is_file(layout.index(entry.number))]
        self._flip_index(indexed[-1])
        for slot in (0, 1):
            self._flip_manifest(f"{layout.journal}/{PURPOSE}-{slot}")
        return self

    async def _life(self) -> None:
        rng = random.Random(self.seed)
        env = journal_env(self._disk, seed=self.seed)
        journal = Journal(
            ROOT_DIRECTORY,
            segment_bytes=SEGMENT_BYTES,
            segment_bytes_min=SEGMENT_BYTES,
            env=env,
            encryption_keys=self.keys,
        )
        self._model.keyring = Keyring(self.keys)
        self._model.journal = journal
        async with journal:
            while journal.statistics().segments < 4 or journal.statistics().last % 3:
                await one_step(rng, self._model, journal)
            await journal.wait_durable(journal.last)
            # Long enough for a watermark.
            await trio.sleep(5)
            self._disk = self._disk.copy()

    def _flip_segment(self, path: str, entry: SegmentEntry, manifest: Manifest) -> None:
        data = self._disk.content(path)
        identity = (manifest.node_id, manifest.journal_id)
        whole = scan(data, path, entry, identity=identity, keyring=self._model.keyring)
        records = [batch for batch in whole.batches if batch.records]
        durable_end = records[-1].end
        flipped = bytearray(data)
        for bit in range(len(data) * 8):
            at = bit // 8
            flipped[at] ^= 1 << bit % 8
            self.flips += 1
            try:
                found = scan(bytes(flipped), path, entry, identity=identity, keyring=self._model.keyring)
            except DamagedError as error:
                self.detected += 1
                _check_error(error, path, bit, at < durable_end)
            else:
                self.harmless += 1
                _check_same(found.batches, records, path, bit)
            flipped[at] ^= 1 << bit % 8
            if self.flips % self.whole_every == 0:
                self._recover_whole(path, bit)

    def _flip_index(self, entry: SegmentEntry) -> None:
        layout = Layout(ROOT_DIRECTORY, self._model.keyring)
        path, segment = layout.index(entry.number), layout.segment(entry.number)
        data, header = self._disk.content(path), decode_header(self._disk.content(segment), segment)
        if not isinstance(decode_index(data, header, entry, layout), SegmentIndex):
            raise LostError(f"{path} is not believed as it is")
        flipped = bytearray(data)
        for bit in range(len(data) * 8):
            flipped[bit // 8] ^= 1 << bit % 8
            self.flips += 1
            if isinstance(decode_index(bytes(flipped), header, entry, layout), SegmentIndex):
                raise LostError(f"bit {bit} of {path} was flipped, and it is believed")
            self.detected += 1
            flipped[bit // 8] ^= 1 << bit % 8
            if self.flips % self.whole_every == 0:
                self._recover_whole(path, bit)

    def _flip_manifest(self, path: str) -> None:
        data = self._disk.content(path)
        flipped = bytearray(data)
        for bit in range(len(data) * 8):
            flipped[bit // 8] ^= 1 << bit % 8
            self.flips += 1
            try:
                decode_copy(PURPOSE.encode(), bytes(flipped), path)
            except DamagedError as error:
                self.detected += 1
                _check_error(error, path, bit, True)
            else:
                raise LostError(f"bit {bit} of {path} was flipped and nobody noticed")
            flipped[bit // 8] ^= 1 << bit % 8
            if self.flips % self.whole_every == 0:
                self._recover_whole(path, bit)

    def _recover_whole(self, path: str, bit: int) -> None:
        """Recover the store with this bit flipped: refused and unchanged, or the very same records."""
        self.whole += 1
        disk, model = self._disk.copy(), self._model
        disk.flip_bit(path, bit)
        last = max(model.placed)
        before = {name: disk.content(name) for name in disk.files()}
        try:
            recovery = recover_store(disk, 1, model.keyring)
        except DamagedError:
            if before != {name: disk.content(name) for name in disk.files()}:
                raise LostError(f"a store that was refused was changed (bit {bit} of {path})") from None
            return
        entries = recovery.manifest.by_number()
        trusted = {Layout(ROOT_DIRECTORY).segment(number) for number in recovery.forms if number in entries}
        try:
            recover_and_check(disk, model, last, last)
        except DamagedError as error:
            if path not in trusted or error.file != path:
                raise


def _check_error(error: DamagedError, path: str, bit: int, durable: bool) -> None:
    if error.file != path or not error.expected or not error.found:
        raise LostError(f"bit {bit} of {path} was reported as {error}")
    if not durable:
        raise LostError(f"a false alarm: bit {bit} of {path} was never durable, but {error}")


def _check_same(found: list[BatchHeader], records: list[BatchHeader], path: str, bit: int) -> None:
    if [batch for batch in found if batch.records] != records:
        raise LostError(f"bit {bit} of {path} was flipped: records changed, and nobody noticed")


def main() -> None:
    """Try the stores whose seeds are given."""
    for seed in [int(argument) for argument in sys.argv[1:]] or [0]:
        sys.stdout.write(f"{BitFlips(seed).run()}\n")


if __name__ == "__main__":
    main()
