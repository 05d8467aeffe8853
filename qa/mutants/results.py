"""The file of results of mutants: a part for each unit, and the reasons why some mutants stay unnoticed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from qa.mutants.units import ROOT, Drawn
from qa.results import ResultError, ResultFile, ResultFormat, about_here

FORMAT: Final = ResultFormat(
    "mutants",
    parts="units",
    parts_type=dict,
    part_fields={"seed": int, "commit": str, "date": str, "files": dict, "mutants": dict},
    version=2,
)
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
    """The results of one unit, which are written to a file of several as soon as they are there.

    While fewer mutants are known than before, what is known is written beside the results of before, as ``begun``.
    """

    def __init__(self, file: ResultFile | None, unit: str, seed: int, digests: dict[str, str]) -> None:
        self._file = file
        self.unit = unit
        here = about_here()
        self._stamp = f"{datetime.now(UTC).isoformat(timespec='seconds')} {here['commit']}"
        self.found: dict[str, Any] = {"seed": seed, **here, "files": digests, "mutants": {}, "played": {}}
        whole = file.read() if file is not None else FORMAT.empty()
        self._before: dict[str, Any] = whole["units"].get(unit, {"mutants": {}})
        self._begun: dict[str, Any] = whole.get("begun", {}).get(unit, {"mutants": {}})

    def number(self, wanted: int | None, usual: int) -> int:
        """Return how many mutants are drawn.  Raises: ResultError, if fewer are wanted than are known."""
        known = len(self._before["mutants"])
        if wanted is not None and wanted < known:
            raise ResultError(f"{self._file} has {known} mutants of {self.unit}: --number has to be {known} or more")
        return max(usual, known) if wanted is None else wanted

    def resume(self, drawn: Iterable[Drawn], *, survivors: bool) -> None:
        """Take over the known results of these mutants, as long as their file is the same.

        A test that was written since can notice what has survived: ``survivors`` plays those anew.
        """
        wanted = list(drawn)
        for before in (self._before, self._begun):
            if before.get("seed") != self.found["seed"]:
                continue
            for one in wanted:
                name = str(one)
                known = before["mutants"].get(name)
                same = before["files"].get(one.path) == self.found["files"][one.path]
                if known is not None and same and not (survivors and not known):
                    self.found["mutants"][name] = known
                    # Results that do not say when each mutant was played were all found at their commit.
                    stamp = before.get("played", {}).get(name, f"{before['date']} {before['commit']}")
                    self.found["played"][name] = stamp

    def played(self, one: Drawn, *, noticed: bool) -> None:
        """Add the result of a mutant, and write all results down."""
        self.found["mutants"][str(one)] = noticed
        self.found["played"][str(one)] = self._stamp
        self._save(whole=len(self.found["mutants"]) >= len(self._before["mutants"]))

    def _save(self, *, whole: bool) -> None:
        """Write the results of this unit to the file.  The results of other units stay as they are."""
        # The commit of a unit is the oldest one at which a result of it was found.
        stamp = min(self.found["played"].values(), default=self._stamp)
        self.found["date"], self.found["commit"] = stamp[: len("2026-11-28")], stamp.partition(" ")[2]
        if self._file is None:
            return
        content = self._file.read()
        begun: dict[str, Any] = content.pop("begun", {})
        begun.pop(self.unit, None)
        (content["units"] if whole else begun)[self.unit] = self.found
        self._file.write({**content, **({"begun": begun} if begun else {})})

    def explain(self, drawn: Iterable[Drawn]) -> None:
        """Write the text of each survivor's line down, and the reason, if there is one."""
        known = reasons()
        self.found["survivors"] = {
            str(one): {"line": one.text, "why": reason_of(one, known)}
            for one in drawn
            if self.found["mutants"].get(str(one)) is False
        }
        self._save(whole=True)

    def __str__(self) -> str:
        mutants = self.found["mutants"]
        noticed = sum(mutants.values())
        return f"{self.unit}: {noticed} of {len(mutants)} were noticed, {noticed / max(1, len(mutants)):.0%}"
