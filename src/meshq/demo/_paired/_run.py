"""The demos of backups: a node that serves is killed, comes back, and is stopped, and every flight is accounted for."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from meshq.demo._flights import find_file, read_lines
from meshq.demo._paired._account import FlightAccount
from meshq.demo._paired._flow import ROWS_MIN
from meshq.demo._paired._replicated import WITNESSES, ReplicaDemo
from meshq.demo._paired._shared import PairDemo
from meshq.demo._process import ungrouped
from meshq.errors import SettingsError


async def _shared_store(data_dir: str, lines: list[bytes], nursery: trio.Nursery) -> FlightAccount:
    return await PairDemo(data_dir, lines, nursery).run()


async def _replication(data_dir: str, lines: list[bytes], nursery: trio.Nursery) -> FlightAccount:
    return await ReplicaDemo(data_dir, lines, nursery).run()


async def _quorum(data_dir: str, lines: list[bytes], nursery: trio.Nursery) -> FlightAccount:
    return await ReplicaDemo(data_dir, lines, nursery, witnesses=WITNESSES).run()


#: The ways to have a backup that the demo shows.
WAYS: Final = {"shared-store": _shared_store, "replication": _replication, "quorum": _quorum}


@attrs.frozen
class PairOptions:
    """The options of the demo: the way, and how many flights; None: all."""

    way: str
    rows: int | None


async def run_paired(options: PairOptions) -> FlightAccount:
    """Run the demo; no process and no file is left.

    Checkpoint: always.  Cancellation: the processes are killed.
    Raises: DemoError: it could not be carried through.
    """
    lines = read_lines(find_file(), options.rows)
    with ungrouped(), tempfile.TemporaryDirectory(prefix="meshq-demo-") as data_dir:
        async with trio.open_nursery() as nursery:
            account = await WAYS[options.way](data_dir, lines, nursery)
            nursery.cancel_scope.cancel()
    return account


def parse_paired(arguments: Sequence[str]) -> PairOptions:
    """Return the way and the number of flights that a command line names.

    Raises:
        SettingsError: that is not allowed.
    """
    parser = argparse.ArgumentParser(prog="python -m meshq demo", allow_abbrev=False, description=__doc__)
    parser.add_argument(
        "--ha", choices=tuple(WAYS), required=True, help="how the backup gets what is stored, or who decides"
    )
    parser.add_argument("--rows", type=int, metavar="N", help=f"the first N flights only, {ROWS_MIN:,} at least")
    given = parser.parse_args(arguments)
    rows: int | None = given.rows
    if rows is not None and rows < ROWS_MIN:
        raise SettingsError("rows", rows, f"a whole number from {ROWS_MIN:,}: the kill and the stop come under load")
    return PairOptions(given.ha, rows)
