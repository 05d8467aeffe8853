"""A simulation that finds nothing proves nothing: bugs seeded in a copy of the product are found."""

from __future__ import annotations

import ast
import builtins
import json
from pathlib import Path

import pytest
from tools import draw_seeded_bugs

from meshq.errors import UsageError
from qa.seeded import hunt as hunting
from qa.seeded.broker_bugs import BUGS
from qa.seeded.bug import Bug
from qa.seeded.changed_copy import changed_copy, changed_file
from qa.seeded.hunt import SEEDS_MAX, Hunt, hunt
from qa.seeded.mesh_bugs import ALL_BUGS, MESH_BUGS
from qa.seeded.role_bugs import ROLE_BUGS
from qa.seeded.source import PACKAGE, SOURCE, find_function
from tests.tiers import cores_of_a_test

ROOT = Path(__file__).parents[2]
FOUND = {name: draw_seeded_bugs.found(name) for name in ("seeded", "seeded-mesh", "seeded-roles")}
RESULT = {name: result for found in FOUND.values() for name, result in found.items()}
REQUIRED = [bug for bug in ALL_BUGS if bug.required]
#: Seeds tried from the one on that found the bug last, before all of them are.
NEAR = 3


@pytest.mark.seeded_bugs
@pytest.mark.parametrize("bug", REQUIRED, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_caught_by_the_right_checker(bug: Bug) -> None:
    first = bug.soon_seed if bug.soon else RESULT[bug.name]["seed"]
    found = hunt(bug, first=first, seeds=NEAR, soon=bool(bug.soon))
    if not found.caught:
        # What a seed does changes with the product; the bug has to be found all the same.
        found = hunt(bug, seeds=SEEDS_MAX, jobs=cores_of_a_test())
    assert found.caught, f"{found.seeds} seeds, caught by {found.caught_by}: {found.what}"


def test_the_bugs_that_must_be_caught_are_there_and_were_caught_within_the_seeds_allowed() -> None:
    assert len([bug for bug in REQUIRED if not bug.mesh]) >= 7
    assert len(MESH_BUGS) >= 5
    assert len({bug.name for bug in ALL_BUGS}) == len(ALL_BUGS)
    assert list(FOUND["seeded"]) == [bug.name for bug in BUGS]
    assert list(FOUND["seeded-mesh"]) == [bug.name for bug in MESH_BUGS]
    assert len(ROLE_BUGS) + len(list(draw_seeded_bugs.planted())) >= 20
    assert list(FOUND["seeded-roles"]) == [bug.name for bug in ROLE_BUGS]
    assert all(bug.of_roles and RESULT[bug.name]["seed"] < SEEDS_MAX for bug in ROLE_BUGS)
    for bug in ALL_BUGS:
        result = RESULT[bug.name]
        assert result["caught"], bug.name
        assert result["seeds"] <= SEEDS_MAX, bug.name
        assert set(result["caught_by"]) & set(bug.checkers), bug.name


def unknown_names(text: str) -> set[str]:
    """The names that are read in a file and bound nowhere in it: they end the broker, whatever the bug would do."""
    known, read = set(dir(builtins)), set()
    tree = ast.parse(text)
    methods = {id(one) for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for one in owner.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            known |= set() if id(node) in methods else {node.name}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            known.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            known.add(node.name)
    return read - known - {"__file__", "__name__"}


@pytest.mark.parametrize("bug", ALL_BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_a_line_or_two_that_fits_the_product_as_it_is(bug: Bug) -> None:
    path, changed = changed_file(bug)
    assert changed != (SOURCE / path).read_text(encoding="utf-8")
    assert unknown_names(changed) == set()
    assert bug.old.count("\n") <= 2
    assert not bug.function.startswith("meshq.testing")


@pytest.mark.parametrize(
    ("function", "old", "message"),
    [
        ("meshq.address:no_function", "a", r"'x': there are 0 functions 'meshq\.address:no_function'"),
        ("meshq.nothing:f", "a", "there are 0 functions"),
        ("meshq.errors:MeshqError.__init__", "no such line", "'x': 'no such line' stands 0 times in meshq.errors:"),
        ("meshq.errors:MeshqError.__init__", "self", r"stands \d+ times in meshq.errors:MeshqError.__init__"),
    ],
)
def test_a_function_or_a_text_that_is_not_there_once_is_refused(function: str, old: str, message: str) -> None:
    bug = Bug(name="x", function=function, old=old, new="", checkers=("Q1",))
    with pytest.raises(UsageError, match=message), changed_copy(bug):
        pass


BEFORE = """\
class Box:
    def open(self, key: str) -> bool:
        return key == "right"

    @overload
    def shut(self) -> None: ...
    @overload
    def shut(self, key: str) -> None: ...
    def shut(self, key: str = "") -> None:
        if key:
            self.key = key

            self.locked = True
"""


def changed_source(name: str, root: Path, old: str, new: str) -> str:
    """The file of a function after a change."""
    return find_function(name, root).changed(old, new)


def test_a_function_is_found_wherever_it_stands_in_its_package(tmp_path: Path) -> None:
    house = tmp_path / "house"
    (house / "cellar").mkdir(parents=True)
    (house / "_box.py").write_text(BEFORE)
    old, new = "    if key:\n        self.key = key\n\n", "    if not key:\n\n        self.key = None\n"
    changed = changed_source("house:Box.shut", tmp_path, old, new)
    assert changed == BEFORE.replace(
        "        if key:\n            self.key = key\n\n", "        if not key:\n\n            self.key = None\n"
    )
    # It moves to another file of the package, behind other code.
    (house / "_box.py").rename(house / "cellar" / "_chest.py")
    in_front = "def shut(key: str) -> None:\n    if key:\n        self.key = key\n\n\n"
    (house / "cellar" / "_chest.py").write_text(in_front + BEFORE)
    assert changed_source("house:Box.shut", tmp_path, old, new) == in_front + changed
    assert changed_source("house.cellar:Box.open", tmp_path, 'right"', 'wrong"') == in_front + BEFORE.replace(
        "right", "wrong"
    )


def test_two_functions_of_one_name_and_a_text_across_the_margin_are_refused(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "_box.py").write_text(BEFORE)
    (tmp_path / "house" / "_chest.py").write_text(BEFORE)
    with pytest.raises(UsageError, match=r"there are 2 functions 'house:Box.open': house/_box.py, house/_chest.py"):
        find_function("house:Box.open", tmp_path)
    (tmp_path / "room.py").write_text('class A:\n    def f(self):\n        """One\ntwo"""\n')
    with pytest.raises(UsageError, match="indented less"):
        changed_source("room:A.f", tmp_path, '"""One\ntwo"""', '"""One"""')


def test_the_copy_is_the_product_but_for_the_bug() -> None:
    bug = REQUIRED[0]
    changed, text = changed_file(bug)
    with changed_copy(bug) as directory:
        assert (directory / changed).read_text(encoding="utf-8") == text
        for path in PACKAGE.rglob("*.py"):
            name = path.relative_to(SOURCE)
            same = (directory / name).read_bytes() == path.read_bytes()
            assert same is (name != changed)
    assert not directory.exists()


def test_the_table_in_the_documentation_is_not_stale() -> None:
    assert draw_seeded_bugs.PAGE.read_text(encoding="utf-8") == draw_seeded_bugs.page()


def test_a_hunt_is_written_as_it_goes_and_goes_on_where_it_was_broken_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hunted: list[str] = []

    def found(bug: Bug, **_: object) -> Hunt:
        if len(hunted) == 2:
            raise KeyboardInterrupt
        hunted.append(bug.name)
        return Hunt(bug=bug, seeds=1, seed=0, noticed=0, caught_by=bug.checkers, what="it")

    monkeypatch.setattr(hunting, "hunt", found)
    monkeypatch.chdir(tmp_path)
    command = ["--mesh", "--result", "r", "--resume"]
    with pytest.raises(KeyboardInterrupt):
        hunting.main(command)
    written = json.loads((tmp_path / "docs/results/r.json").read_text(encoding="utf-8"))
    assert list(written["bugs"]) == hunted == [bug.name for bug in MESH_BUGS[:2]]
    assert {bug["commit"] for bug in written["bugs"].values()} == {written["commit"]}
    hunted.clear()
    with pytest.raises(KeyboardInterrupt):
        hunting.main(command)
    assert hunted == [bug.name for bug in MESH_BUGS[2:4]]
    with pytest.raises(SystemExit):
        hunting.main(["--resume"])
