"""A child that a process forks keeps nothing of the parent's store: who dies leaves the directory to the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from meshq import BusyError
from meshq.store import Journal

#: Opens a journal and forks; the child lives until its input ends, whatever becomes of the parent.
PARENT = """
import os, sys, trio
from meshq.store import Journal

async def main():
    async with Journal(sys.argv[1]) as journal:
        await journal.append(b"mine")
        if not os.fork():
            print("forked", flush=True)
            sys.stdin.read()
            os._exit(0)
        await trio.sleep_forever()

trio.run(main)
"""


async def payloads(directory: Path) -> list[bytes]:
    """Open the store, and return its records."""
    journal = Journal(directory)
    await journal.open()
    try:
        return [record.payload for record in journal.recovered()]
    finally:
        await journal.aclose()


@pytest.mark.processes
def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    reading, writing = os.pipe()
    with (
        os.fdopen(writing, "wb"),
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PARENT, directory], stdin=reading, stdout=subprocess.PIPE
        ) as parent,
    ):
        os.close(reading)
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == b"forked\n"
            with pytest.raises(BusyError):
                # The child has closed its copy, and the parent still has the lock.
                trio.run(payloads, directory)
        finally:
            parent.kill()
        parent.wait()
        assert trio.run(payloads, directory) == [b"mine"]
