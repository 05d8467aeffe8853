"""The demo's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import attrs

from meshq.demo._kill_plan import DELIVERED_MIN, READY_MIN, ROWS_MIN
from meshq.errors import SettingsError

_DESCRIPTION: Final = (
    "Send the flights that left New York in 2013 as durable messages through a broker that is killed twice, receive "
    "them in three processes, and account for every one."
)
_EPILOG: Final = (
    "The exit status is 0 if nothing was lost, nothing came twice and every number equals the file's own; 1 if "
    "something differs, which is named; 2 if the command line is wrong; 130 after Ctrl-C."
)


@attrs.frozen(kw_only=True)
class Options:
    """What the demo was asked for."""

    #: The first so many flights of the file; None for all.
    rows: int | None = None
    kill: bool = True
    json: bool = False
    data_dir: str | None = None


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from a command line; ``--help`` and unreadable ones end the program, as ``argparse`` does.

    Raises:
        SettingsError: a value isn't allowed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m meshq demo", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help=f"the first N flights only; at least {ROWS_MIN:,} unless --no-kill, because each kill waits until "
        f"{DELIVERED_MIN:,} messages are delivered and unacknowledged and {READY_MIN:,} are ready",
    )
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="let the broker live")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="keep the broker's data in DIR, which must be empty or missing, and leave it"
    )
    options = Options(**vars(parser.parse_args(arguments)))
    check_options(options)
    return options


def check_options(options: Options) -> None:
    """Raises: SettingsError: a value isn't allowed."""
    rows = options.rows
    if rows is None:
        return
    if rows < 1:
        raise SettingsError("rows", rows, "a whole number from 1")
    if options.kill and rows < ROWS_MIN:
        allowed = f"{ROWS_MIN} or more, for fewer can't fill the queue as both kills require; or any with --no-kill"
        raise SettingsError("rows", rows, allowed)
