"""Makes ``tests/data/formats/journal-<version>``: a store as this version leaves it behind when it is killed.

It is made once for each version of the format and then kept: every later version must read it.  Run it as
``python -m tests.store.make_journal_data DIRECTORY``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio
import trio.testing

from meshq.store import CheckpointRecord
from meshq.store.formats._layout_format import Layout
from meshq.testing import SimDisk
from tests.store.kit import Store, make_owner

#: With which a store of version 2 is encrypted.
KEYS = (bytes(range(32)),)


async def fill(store: Store) -> SimDisk:
    """A life with a compaction, a checkpoint, tombstones, a watermark and a torn tail; returns the disk as killed."""
    journal = store.journal(segment_bytes=12 * 1024, node_id=bytes(range(16)))
    journal.attach(make_owner(checkpoint=lambda: [CheckpointRecord(200, b"the owner's state")]))
    async with journal:
        await trio.testing.wait_all_tasks_blocked()
        journal.append_nowait(7, [b"the first record"])
        journal.append_nowait(8, [b"is killed by the next one"])
        journal.append_nowait(9, [b"replaces"], deletes=[3])
        journal.append_nowait(10, [b"half of the first one is done"], tombstone=True, refs=[2])
        fillers = [journal.append_nowait(1, [b"filler %d" % number, bytes(700)]) for number in range(30)]
        await journal.wait_durable(journal.last)
        for position in fillers[::2]:
            await journal.delete(position)
        store.failpoint["journal.compact_early"] = True
        await trio.sleep(3)
        store.failpoint.clear()
        await journal.append(b"before the watermark")
        await trio.sleep(3)
        await journal.append(b"the last one acknowledged")
        disk = store.disk.copy()
        path = next(Layout("/store").segment(entry.number) for entry in store.manifest().entries if not entry.sealed)
    file = disk.open(path)
    file.write_at(len(disk.content(path)) - 1024, [b"a torn tail"])
    file.close()
    return disk


def main() -> None:
    """Write the files and what they hold."""
    target = Path(sys.argv[1])
    disk = trio.run(fill, Store(keys=KEYS), clock=trio.testing.MockClock(autojump_threshold=0))
    for name in disk.files():
        path = target / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(disk.content(name))
    records = [
        [
            record.position,
            record.kind,
            record.payload.hex(),
            record.deletes,
            record.refs,
            not record.tombstone,
            record.deleted,
        ]
        for record in Store(disk=disk, keys=KEYS).records(deleted=True)
    ]
    (target / "records.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
