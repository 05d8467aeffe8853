"""The corpora of the targets: a few dozen inputs each, which are replayed in every run of the tests."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from qa.fuzz.target import Target

ROOT: Final = Path(__file__).parents[2]
CORPORA: Final = ROOT / "tests" / "data" / "fuzz"
#: The beginning of the name of an input that once broke something: it stays.
FOUND: Final = "found-"
_ADDRESS: Final = re.compile(rb"\d+\.\d+\.\d+\.\d+")
_PRODUCT: Final = str(ROOT / "src" / "meshq")

#: A step from one line to the next one, in a function of the product.
Step = tuple[CodeType, int, int]


def folder_of(target: Target) -> Path:
    """Return the folder of a corpus."""
    return CORPORA / target.name


def inputs_of(target: Target) -> list[bytes]:
    """Return the inputs of a corpus."""
    return [path.read_bytes() for path in sorted(folder_of(target).glob("*"))]


def minimized(target: Target, inputs: Iterable[bytes]) -> tuple[list[bytes], int]:
    """Return the inputs that are needed to take all the steps that all of them take, and the number of the steps.

    The shortest ones are tried first; of more than the target wants those stay that add the most.
    """
    known: set[Step] = set()
    own = {address for data in target.seeds() for address in _ADDRESS.findall(data)}
    kept: list[tuple[int, bytes]] = []
    for data in sorted(set(inputs), key=lambda one: (len(one), one)):
        # A changed address could be that of somebody's machine.
        if (
            len(data) <= target.bytes_max
            and own.issuperset(_ADDRESS.findall(data))
            and (new := _steps(target, data) - known)
        ):
            known |= new
            kept.append((len(new), data))
    most = sorted(kept, reverse=True)[: target.inputs_max]
    return [data for _, data in most], len(known)


def write(target: Target, inputs: Iterable[bytes]) -> None:
    """Make these inputs the corpus of a target.  An input that once broke something stays."""
    folder = folder_of(target)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not path.name.startswith(FOUND):
            path.unlink()
    for data in inputs:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def _steps(target: Target, data: bytes) -> set[Step]:
    """Return the steps that an input takes in the product."""
    found: set[Step] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_PRODUCT):
            return None
        before = frame.f_lineno

        def line(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal before
            if event == "line":
                found.add((code, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        target.accepts(data)
    finally:
        sys.settrace(previous)
    return found
