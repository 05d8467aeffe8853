"""Whose code the processor time of Python's processes goes to: this project's, Spark's, or neither.

A thread looks every few milliseconds at where the others stand, and gives each the processor time that it has taken
since.  What counts is the innermost function of this project's or Spark's: what that calls, in Arrow or the system,
is for it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

#: The environment variable with the folder of the counts; unset: nobody looks.
FOLDER: Final = "MESHQ_SAMPLES"
#: The place of what is neither this project's nor Spark's.
NOBODY: Final = "python"
#: Seconds between two looks, and looks between two notes.
_PERIOD_S: Final = 0.004
_NOTED: Final = 25
_SPARKS: Final = (f"{os.sep}pyspark{os.sep}", f"{os.sep}py4j", f"{os.sep}pyspark.zip{os.sep}")


def _folder() -> str:
    """Where this project is, with its package for Spark beside it."""
    found = importlib.util.find_spec("meshq")
    if found is None or found.origin is None:
        raise LookupError("meshq is not installed")
    return str(Path(found.origin).parents[1])


_OURS: Final = tuple(f"{_folder()}{os.sep}{name}{os.sep}" for name in ("meshq", "pyspark_meshq"))


def owner_of(path: str) -> str:
    """Whose a file is: ``meshq``, ``spark`` or nobody's, which is empty."""
    if any(part in path for part in _SPARKS):
        return "spark"
    return "meshq" if path.startswith(_OURS) else ""


def place_of(frame: FrameType | None) -> str:
    """The owner and the name of the innermost function that has an owner."""
    while frame is not None:
        code = frame.f_code
        if owner := owner_of(code.co_filename):
            return f"{owner} {Path(code.co_filename).name}:{code.co_qualname}"
        frame = frame.f_back
    return NOBODY


class Sampler:
    """Counts the processor seconds of the other threads of this process by place, and keeps them in a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._taken: dict[int, float] = {}
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """The processor seconds that were counted."""
        return sum(self._seconds.values())

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def _run(self) -> None:
        looks = 0
        while True:
            time.sleep(_PERIOD_S)
            self.look()
            looks += 1
            if looks % _NOTED == 0:
                self.note()

    def look(self) -> None:
        """Give every other thread the time that it has taken."""
        frames = sys._current_frames()
        for thread in threading.enumerate():
            # That of the main thread is its parent's after a fork.
            number = os.getpid() if thread is threading.main_thread() else thread.native_id
            if number is None or thread.ident == threading.get_ident():
                continue
            try:
                text = Path(f"/proc/self/task/{number}/schedstat").read_text()
            except OSError:
                continue
            taken = int(text.split()[0]) / 1e9
            since = taken - self._taken.get(number, 0.0)
            self._taken[number] = taken
            if since > 0:
                place = place_of(frames.get(thread.ident or 0))
                self._seconds[place] = self._seconds.get(place, 0.0) + since

    def note(self) -> None:
        """Write the counts down."""
        later = self._file.with_suffix(".new")
        later.write_text(json.dumps(self._seconds))
        later.replace(self._file)


def sample() -> None:
    """Sample this process, where the environment says so."""
    if folder := os.environ.get(FOLDER):
        Sampler(Path(folder)).start()


def sample_children() -> None:
    """Sample the processes that are forked from this process, where the environment says so."""
    os.register_at_fork(after_in_child=sample)


def counted(folder: Path) -> Counter[str]:
    """The counts of all processes until now."""
    total: Counter[str] = Counter()
    for file in folder.glob("*.json"):
        total.update(json.loads(file.read_text()))
    return total
