"""A simulation that finds nothing proves nothing: bugs planted in a copy of the product are found by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools import draw_planted_bugs

from meshq.errors import UsageError
from qa.seeded import hunt as _planted
from qa.seeded.broker_bugs import BUGS
from qa.seeded.bug import Bug
from qa.seeded.hunt import PACKAGE, SEEDS_MAX, Hunt, hunt, planted, planted_text
from qa.seeded.mesh_bugs import ALL_BUGS, MESH_BUGS

ROOT = Path(__file__).parents[2]
FOUND = {name: draw_planted_bugs.found(name) for name in ("planted", "planted-mesh")}
RESULT = {**FOUND["planted"], **FOUND["planted-mesh"]}
REQUIRED = [bug for bug in ALL_BUGS if bug.required]
#: Seeds tried from the one on that found the bug last, before all of them are.
NEAR = 3


@pytest.mark.parametrize("bug", REQUIRED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_by_the_right_checker(bug: Bug) -> None:
    found = hunt(bug, first=RESULT[bug.name]["seed"], seeds=NEAR)
    if not found.caught:
        # What a seed does changes with the product; the bug has to be found all the same.
        found = hunt(bug, seeds=SEEDS_MAX, jobs=2)
    assert found.caught, f"{found.seeds} seeds, caught by {found.caught_by}: {found.what}"


def test_the_bugs_that_must_be_caught_are_planted_and_were_caught_within_the_seeds_allowed() -> None:
    assert len([bug for bug in REQUIRED if not bug.mesh]) >= 7
    assert len(MESH_BUGS) >= 5
    assert len({bug.name for bug in ALL_BUGS}) == len(ALL_BUGS)
    assert list(FOUND["planted"]) == [bug.name for bug in BUGS]
    assert list(FOUND["planted-mesh"]) == [bug.name for bug in MESH_BUGS]
    for bug in ALL_BUGS:
        result = RESULT[bug.name]
        assert result["caught"], bug.name
        assert result["seeds"] <= SEEDS_MAX, bug.name
        assert set(result["caught_by"]) & set(bug.checkers), bug.name


@pytest.mark.parametrize("bug", ALL_BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_a_line_or_two_that_fits_the_product_as_it_is(bug: Bug) -> None:
    text = (PACKAGE / bug.file).read_text(encoding="utf-8")
    changed = planted_text(bug, text)
    assert changed != text
    compile(changed, bug.file, "exec")
    assert bug.old.count("\n") <= 2
    assert not bug.file.startswith("testing/")


def test_what_is_not_there_once_can_not_be_changed() -> None:
    bug = Bug(name="none", file="limits.py", old="no such line", new="", checkers=("Q1",))
    with pytest.raises(UsageError, match=r"stands 0 times in limits\.py"), planted(bug):
        pass
    with pytest.raises(UsageError, match="stands 2 times"):
        planted_text(bug, "no such line, no such line")


def test_the_copy_is_the_product_but_for_the_bug() -> None:
    bug = REQUIRED[0]
    with planted(bug) as directory:
        for path in PACKAGE.rglob("*.py"):
            name = path.relative_to(PACKAGE).as_posix()
            same = (directory / PACKAGE.name / name).read_bytes() == path.read_bytes()
            assert same is (name != bug.file)
    assert not directory.exists()


def test_the_table_in_the_documentation_is_not_stale() -> None:
    assert draw_planted_bugs.PAGE.read_text(encoding="utf-8") == draw_planted_bugs.page()


def test_a_hunt_is_written_as_it_goes_and_goes_on_where_it_was_broken_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hunted: list[str] = []

    def found(bug: Bug, **_: object) -> Hunt:
        if len(hunted) == 2:
            raise KeyboardInterrupt
        hunted.append(bug.name)
        return Hunt(bug=bug, seeds=1, seed=0, noticed=0, caught_by=bug.checkers, what="it")

    monkeypatch.setattr(_planted, "hunt", found)
    monkeypatch.setattr(_planted, "RESULTS", str(tmp_path))
    command = ["--mesh", "--result", "r", "--resume"]
    with pytest.raises(KeyboardInterrupt):
        _planted.main(command)
    written = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert list(written["bugs"]) == hunted == [bug.name for bug in MESH_BUGS[:2]]
    assert {bug["commit"] for bug in written["bugs"].values()} == {written["commit"]}
    hunted.clear()
    with pytest.raises(KeyboardInterrupt):
        _planted.main(command)
    assert hunted == [bug.name for bug in MESH_BUGS[2:4]]
    with pytest.raises(SystemExit):
        _planted.main(["--resume"])
