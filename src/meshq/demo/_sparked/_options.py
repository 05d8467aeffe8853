"""The command line of the demo of Spark, and a check of the installed packages."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from collections.abc import Sequence
from typing import Final

import attrs

from meshq.errors import SettingsError, UsageError

#: With fewer rows one batch would have them all.
ROWS_MIN: Final = 15_000


@attrs.frozen(kw_only=True)
class SparkOptions:
    """The options.  ``rows``: the first so many flights of the year; None for all."""

    rows: int | None = None
    seed: int = 1


def parse_sparked(arguments: Sequence[str]) -> SparkOptions:
    """Options from a command line.

    Raises:
        SettingsError: a value is not allowed.
        UsageError: something is not installed; says how to install it.
    """
    parser = argparse.ArgumentParser(prog="python -m meshq demo", allow_abbrev=False, description=__doc__)
    parser.add_argument("--spark", action="store_true", required=True, help="a query of Spark reads a mesh")
    parser.add_argument("--rows", type=int, metavar="N", help=f"the first N flights only, {ROWS_MIN:,} at least")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which node is killed, and when")
    given = vars(parser.parse_args(arguments))
    del given["spark"]
    options = SparkOptions(**given)
    if options.rows is not None and options.rows < ROWS_MIN:
        raise SettingsError("rows", options.rows, f"a whole number from {ROWS_MIN:,}: the kills come on the way")
    check_installed()
    return options


def check_installed() -> None:
    """Raises: UsageError: Spark or its Java is not installed."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {missing[0]}, which is not installed: pip install 'meshq[spark]'")
    if shutil.which("java") is None:
        raise UsageError("the demo needs Java, which is not installed: apt-get install openjdk-17-jre-headless")
