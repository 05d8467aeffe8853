"""The line that repeats a failed test, as a shell takes it in the folder in which pytest was begun."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def again_line(nodeid: str, root: Path, folder: Path, seed: int) -> str:
    """Return the command for a test with a seed.

    ``nodeid``: the test as pytest names it, from ``root`` on.  ``folder``: where the command is to be given.
    """
    path, *names = nodeid.split("::")
    place = Path(os.path.relpath(root / path, folder)).as_posix()
    return f"pytest {shlex.quote('::'.join([place, *names]))} --meshq-seed {seed}"
