"""A run of many seeds in a file of results: written down as it goes, and taken up again where it was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qa.results import NUMBER, ResultFile, ResultFormat, about_here

#: The figures of a run that are sums over its seeds.
SUMS: Final = ("seeds", "simulated_s", "confirmed_sends", "faults", "cpu_s")
FORMAT: Final = ResultFormat(
    "simulation",
    parts="runs",
    part_fields={
        "stage": str,
        "first": int,
        **dict.fromkeys(SUMS, NUMBER),
        **dict.fromkeys(("failed", "commits"), list),
        "counters": dict,
    },
)
#: How many seeds are run before they are written down.
PART: Final = 20


def added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The figures of two parts of a run together."""
    counters = {
        name: before["counters"].get(name, 0) + now["counters"].get(name, 0)
        for name in sorted({*before["counters"], *now["counters"]})
    }
    sums = {name: round(before[name] + now[name], 1) for name in SUMS}
    return {**now, **sums, "failed": [*before["failed"], *now["failed"]], "counters": counters}


class SeedRun:
    """A run of a file of results: seeds of one simulation, from the first one on."""

    def __init__(
        self, file: ResultFile, arguments: Sequence[str], *, stage: str, first: int, wanted: int, resume: bool
    ) -> None:
        self._file = file
        self._about: dict[str, Any] = {"stage": stage, "first": first, "wanted": wanted}
        self._arguments = [one for one in arguments if one != "--resume"]
        runs = file.read()["runs"]
        same = [run for run in runs if self._about.items() <= run.items()] if resume else []
        # What was run of it before; None: nothing.
        self._before: dict[str, Any] | None = same[-1] if same else None
        self._place: int = runs.index(self._before) if self._before is not None else len(runs)

    @property
    def done(self) -> int:
        """The number of seeds that need not be run again."""
        return self._before["seeds"] if self._before is not None else 0

    @property
    def failed(self) -> bool:
        """Whether a seed has failed that need not be run again."""
        return self._before is not None and bool(self._before["failed"])

    def write(self, figures: dict[str, Any]) -> None:
        """Write the run down; ``figures``: of all seeds since the run was taken up."""
        here = about_here()
        commits = list(self._before["commits"]) if self._before is not None else []
        commits += [here["commit"]] if here["commit"] not in commits else []
        whole = added(self._before, figures) if self._before is not None else figures
        command = " ".join(["python -m qa.simulate", *self._arguments])
        result = self._file.read()
        result["runs"][self._place :] = [
            {"command": command, **here, "commits": commits, **self._about, **whole},
            *result["runs"][self._place + 1 :],
        ]
        self._file.write(result)
