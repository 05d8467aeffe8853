"""Seeds that were found useful when somebody looked last: each catches a mistake, or meets what is rare.

What a seed does changes with the product, so nothing depends on them: whoever uses them tries them first, and then
seeds in a row.  ``MESHQ_KNOWN_SEEDS=write`` in the environment of a run of tests writes down those that it finds.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "data" / "known_seeds.json"
#: They are to be looked for anew, and written down.
WRITES: Final = os.environ.get("MESHQ_KNOWN_SEEDS") == "write"


def _known() -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return known


def _write(kind: str, name: str, found: object) -> None:
    known = _known()
    known[kind] = dict(sorted({**known[kind], name: found}.items()))
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def this_test() -> str:
    """The name of the test that runs, with its file."""
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]


def caught_first(seeds: Iterable[int]) -> list[int]:
    """These seeds, each once, and before them the one that caught the mistake of this test last."""
    known = _known()["caught"].get(this_test())
    return list(dict.fromkeys([*([] if known is None else [known]), *seeds]))


def caught_by(seed: int) -> None:
    """Note the seed that has caught the mistake of this test; warn if the one that is known has not."""
    known = _known()["caught"].get(this_test())
    if WRITES:
        _write("caught", this_test(), seed)
    elif known not in (None, seed):
        again = f"MESHQ_KNOWN_SEEDS=write python -m pytest -n0 '{this_test()}'"
        warnings.warn(f"the known seed {known} catches nothing any more, and {seed} does: {again}", stacklevel=2)


def rare(stage: str) -> Sequence[int]:
    """Seeds of a simulation that together met what the first ones did not."""
    found: list[int] = _known()["rare"].get(stage, [])
    return found


def note_rare(stage: str, missing: Collection[str], met: dict[int, set[str]]) -> None:
    """Note few seeds that meet together what is ``missing``; ``met``: what each seed has met."""
    if not WRITES:
        return
    left, chosen = set(missing), list[int]()
    while left and (best := max(met, key=lambda seed: (len(met[seed] & left), -seed), default=None)) is not None:
        if not met[best] & left:
            break
        chosen.append(best)
        left -= met[best]
    _write("rare", stage, chosen)
