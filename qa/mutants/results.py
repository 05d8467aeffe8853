"""The file of results of mutants: a part for each unit, and the reasons why some mutants stay unnoticed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import attrs

from qa.mutants.units import ROOT, Drawn
from qa.results import about_here

KIND: Final = "mutants"
FORMAT: Final = 2
REASONS: Final = ROOT / "qa" / "mutants" / "reasons.toml"


@attrs.frozen
class Reason:
    """The reason why no test can notice a mutant, with the text of the line and the change."""

    file: str
    line: str
    change: str
    why: str


def reasons() -> list[Reason]:
    """Return all reasons that were written down."""
    found = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return [Reason(**row) for row in found["reasons"]]


def reason_of(one: Drawn, among: Iterable[Reason]) -> str:
    """Return the reason of a survivor, or nothing: the line may have moved, and not changed."""
    looked_for = (one.path, one.text, one.mutant.change)
    return next((reason.why for reason in among if (reason.file, reason.line, reason.change) == looked_for), "")


class UnitResults:
    """The results of one unit, which are written to a file of several as soon as they are there."""

    def __init__(self, file: Path | None, unit: str, seed: int, digests: dict[str, str]) -> None:
        self._file = file
        self._unit = unit
        self.found: dict[str, Any] = {"seed": seed, **about_here(), "files": digests, "mutants": {}}

    def resume(self, drawn: Iterable[Drawn], *, survivors: bool) -> None:
        """Take over the known results of these mutants, as long as their file is the same.

        A test that was written since can notice what has survived: ``survivors`` plays those anew.
        """
        before = _read(self._file)["units"].get(self._unit)
        if before is None or before["seed"] != self.found["seed"]:
            return
        for one in drawn:
            known = before["mutants"].get(str(one))
            same = before["files"].get(one.path) == self.found["files"][one.path]
            if known is not None and same and not (survivors and not known):
                self.found["mutants"][str(one)] = known

    def played(self, one: Drawn, *, noticed: bool) -> None:
        """Add the result of a mutant, and write all results down."""
        self.found["mutants"][str(one)] = noticed
        self.save()

    def save(self) -> None:
        """Write the results of this unit to the file.  The results of other units stay as they are."""
        if self._file is None:
            return
        whole = _read(self._file)
        whole["units"][self._unit] = self.found
        self._file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")

    def explain(self, drawn: Iterable[Drawn]) -> None:
        """Write the text of each survivor's line down, and the reason, if there is one."""
        known = reasons()
        self.found["survivors"] = {
            str(one): {"line": one.text, "why": reason_of(one, known)}
            for one in drawn
            if self.found["mutants"].get(str(one)) is False
        }
        self.save()

    def __str__(self) -> str:
        mutants = self.found["mutants"]
        noticed = sum(mutants.values())
        return f"{self._unit}: {noticed} of {len(mutants)} were noticed, {noticed / max(1, len(mutants)):.0%}"


def _read(file: Path | None) -> dict[str, Any]:
    if file is not None and file.exists():
        whole: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if whole.get("format") == FORMAT:
            return whole
    return {"kind": KIND, "format": FORMAT, "units": {}}
