"""A copy of the product in which one function is changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from meshq.errors import UsageError
from qa.seeded.source import PACKAGE, SOURCE, find_function

#: The folder that contains the package ``qa``.
ROOT: Final = Path(__file__).parents[2]


class Change(Protocol):
    """A change of one function of the product.

    ``function`` is a package and a qualified name, as in ``meshq.broker:Session.close``: the function may move to
    another file of the package.  ``old`` is a part of the function's source, moved to the left margin, and stands
    there exactly once; ``new`` replaces it.
    """

    @property
    def name(self) -> str:
        """The name of the change, for people."""

    @property
    def function(self) -> str:
        """The changed function."""

    @property
    def old(self) -> str:
        """The replaced part."""

    @property
    def new(self) -> str:
        """The replacement."""


def diff_of(change: Change) -> str:
    """Return a change as the lines of a diff."""
    old = [f"-{line}" for line in textwrap.dedent(change.old).splitlines()]
    new = [f"+{line}" for line in textwrap.dedent(change.new).splitlines()]
    return "\n".join(old + new)


def changed_file(change: Change) -> tuple[Path, str]:
    """Return the file of the changed function, from the folder above the package, and the file's text after the change.

    Raises:
        UsageError: the function, or the replaced part of it, is not there exactly once.
    """
    try:
        source = find_function(change.function)
        return source.path.relative_to(SOURCE), source.changed(change.old, change.new)
    except UsageError as error:
        raise UsageError(f"{change.name!r}: {error}") from error


@contextmanager
def changed_copy(change: Change) -> Iterator[Path]:
    """Make a copy of the package with this change, in a folder of its own that is removed afterwards.

    Raises:
        UsageError: the function, or the replaced part of it, is not there exactly once.
    """
    path, text = changed_file(change)
    with tempfile.TemporaryDirectory(prefix="seeded-") as directory:
        # Compiled files go along: they are used where the times of the sources are the same.
        shutil.copytree(PACKAGE, Path(directory) / PACKAGE.name)
        file = Path(directory) / path
        file.unlink()
        file.write_text(text, encoding="utf-8")
        yield Path(directory)


def run_changed(change: Change, module: str, arguments: Sequence[str], *, timeout_s: float | None = None) -> Any:
    """Run a command of ``qa`` with a changed copy of the product, and return the JSON that the command prints.

    ``qa`` comes from this checkout, ``meshq`` from the copy.  The command's JSON says in ``package`` which files were
    run.

    Raises:
        UsageError: the change does not fit, the command failed, or the files that were run are not those of the copy.
    """
    with changed_copy(change) as directory:
        command = [sys.executable, "-m", module, *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if done.returncode not in (0, 1) or not done.stdout:
            raise UsageError(f"{change.name!r}: {done.stderr}")
        found = json.loads(done.stdout)
        if Path(found["package"]) != directory / PACKAGE.name:
            raise UsageError(f"{change.name!r}: {found['package']} was run, not the changed copy")
    return found
