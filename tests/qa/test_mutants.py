"""Mutants: small changes of a source text, and tests that notice them or do not."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools import draw_mutants

from qa.mutants import __main__ as command
from qa.mutants import results, trial
from qa.mutants.operators import mutants_of
from qa.mutants.trial import CoveredLines
from qa.mutants.units import ROOT, UNITS, Drawn, drawn

TEXT = '''"""No text is changed."""
LIMIT = 3


def f(a: int, b: dict[str, "int | None"]) -> int:
    """Nor this."""
    if a < LIMIT and not b:
        return a + 1
    g("ä", a * 2)
    a += 1
    assert a > 1
    invariant(a > 1, "a is large")
    while b:
        b.clear()
    return a is None
'''


def test_each_kind_of_change_is_made_and_nothing_else() -> None:
    found = [f"{mutant.line}: {mutant.change}" for mutant in mutants_of(TEXT)]
    assert found == [
        "7: a < LIMIT -> ((a) <= (LIMIT))",
        "7: a < LIMIT and not b -> ((a < LIMIT) or (not b))",
        "7: not b -> (b)",
        "8: a + 1 -> ((a) - (1))",
        "8: 1 -> 2",
        '9: g("ä", a * 2) -> pass',
        "9: a * 2 -> ((a) + (2))",
        "9: 2 -> 3",
        "10: a += 1 -> pass",
        "10: 1 -> 2",
        "13: b -> (not (b))",
        "14: b.clear() -> pass",
        "15: a is None -> ((a) is not (None))",
    ]
    assert str(mutants_of("def f(a):\n    return a[1:1]\n")[1]) == "2:16: 1 -> 2"


@pytest.mark.slow
def test_every_mutant_of_the_units_is_a_program_that_differs_in_one_place() -> None:
    for unit in UNITS:
        assert all((ROOT / test).exists() for test in UNITS[unit].tests)
        found = drawn(unit, 20, seed=1)
        assert found == drawn(unit, 30, seed=1)[:20] and len(set(map(str, found))) == 20
        for one in found:
            mutant, text = one.mutant, (ROOT / one.path).read_text(encoding="utf-8")
            changed = mutant.applied(text)
            ast.parse(changed)
            assert changed != text
            assert changed[: mutant.start] == text[: mutant.start]
            assert changed.endswith(text[mutant.end :])


def test_the_usual_number_is_that_of_the_page() -> None:
    assert {len(unit["mutants"]) for unit in draw_mutants.read().values()} == {command.NUMBER}


#: Played in a process of its own, which has not imported the product.
PLAYED = """
from qa.mutants import trial

path, tests = "src/meshq/selector/_like.py", ("tests/selector/test_like.py",)
with trial.copy_of_the_product() as folder:
    file = folder / path
    text = file.read_text(encoding="utf-8")
    covered = trial.cover(folder, tests, [path])
    names = covered.of(path, text[: text.index("return text.startswith")].count("\\n") + 1)
    print(0 < len(names) < len(covered.seconds))
    print(trial.noticed(folder, names))
    file.write_text(text.replace("return text.starts", "return not text.starts", 1), encoding="utf-8")
    print(trial.noticed(folder, names))
    print(trial.noticed(folder, {name: 1.0 for name in [*covered.seconds][:3] if name not in names}))
    try:
        trial.cover(folder, tests, [path])
    except SystemExit as error:
        print(error)
    endless = "while True:\\n                pass\\n            return text.starts"
    file.write_text(text.replace("return text.starts", endless, 1), encoding="utf-8")
    print(trial.noticed(folder, dict.fromkeys([*names][:1], 0.0)))
"""


@pytest.mark.slow
def test_tests_notice_a_change_of_the_copy_and_nothing_without_one() -> None:
    command = [sys.executable, "-c", PLAYED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    failed = "the tests fail without any change: tests/selector/test_like.py"
    assert done.stdout.splitlines() == ["True", "False", "True", "False", failed, "True"]


def test_a_process_that_has_the_product_plays_no_mutant(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="has imported the product"):
        trial.noticed(tmp_path, {"tests/a.py::one": 1.0})


def test_the_tests_of_a_line_are_those_that_run_it_or_the_statement_above() -> None:
    seconds = {"slow": 2.0, "quick": 0.5, "other": 1.0}
    lines = {1: [""], 2: ["slow", "quick"], 4: ["other"], 5: [], 8: ["", "slow"]}
    covered = CoveredLines(seconds, {"file": lines})
    assert covered.of("file", 2) == {"quick": 0.5, "slow": 2.0}
    assert [*covered.of("file", 3)] == ["quick", "slow"]
    assert [*covered.of("file", 5)] == ["other"]
    assert [*covered.of("file", 8)] == ["quick", "other", "slow"], "a line that makes a table is for all tests"
    assert covered.of("file", 9) == {}, "a line that nothing runs, below the head of its function"
    assert covered.of("another", 2) == {}


SELECTOR, OTHERS = drawn("selector", 4, 0), drawn("selector", 4, 1)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mutants that a run has played; the third one survives."""
    asked: list[str] = []

    def noticed(folder: Path, tests: object) -> bool:
        texts = {one.path: (folder / one.path).read_bytes() for one in [*SELECTOR, *OTHERS]}
        asked.extend(path for path, text in texts.items() if text != (ROOT / path).read_bytes())
        return len(asked) != 3

    @contextmanager
    def small_copy() -> Iterator[Path]:
        shutil.copytree(ROOT / "src/meshq/selector", tmp_path / "src/meshq/selector", dirs_exist_ok=True)
        yield tmp_path

    class Everything(CoveredLines):
        def of(self, path: str, line: int) -> dict[str, float]:
            return {"tests/a.py::one": 1.0}

    covered = Everything({"tests/a.py::one": 1.0}, {})
    monkeypatch.setattr(trial, "noticed", noticed)
    monkeypatch.setattr(trial, "copy_of_the_product", small_copy)
    monkeypatch.setattr(trial, "cover", lambda folder, files, sources: covered)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    return asked


ARGUMENTS = ["--unit", "selector", "--number", "4", "--result", "mutants", "--resume"]


#: The results of a unit that is not played.
OTHER_UNIT = {"seed": 0, "commit": "1", "date": "2026-01-01", "files": {}, "mutants": {"x": True}}


def test_results_are_written_at_once_and_played_once(
    played: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "docs" / "results" / "mutants.json"
    file.write_text(json.dumps({"kind": "mutants", "format": 2, "units": {"wire": OTHER_UNIT}}))
    assert command.main(ARGUMENTS) == 0
    out = capsys.readouterr().out
    assert f"survived 1 tests: {SELECTOR[2]}\n" in out and "selector: 3 of 4 were noticed, 75%" in out
    assert played == [one.path for one in SELECTOR]
    found = json.loads(file.read_text())["units"]
    assert found["wire"] == OTHER_UNIT, "another unit stays as it is"
    assert list(found["selector"]["survivors"]) == [str(SELECTOR[2])]
    assert found["selector"]["survivors"][str(SELECTOR[2])]["line"] == SELECTOR[2].text
    command.main(ARGUMENTS)
    assert len(played) == 4, "no mutant is played twice"
    command.main([*ARGUMENTS, "--survivors"])
    assert len(played) == 5, "but those that have survived, if that is asked for"
    assert json.loads(file.read_text())["units"]["selector"]["survivors"] == {}


def test_of_a_file_that_has_changed_mutants_are_played_anew(played: list[str], tmp_path: Path) -> None:
    file = tmp_path / "docs" / "results" / "mutants.json"
    command.main(ARGUMENTS)
    found = json.loads(file.read_text())
    changed = SELECTOR[0].path
    found["units"]["selector"]["files"][changed] = "other"
    file.write_text(json.dumps(found))
    command.main(ARGUMENTS)
    assert played[4:] == [one.path for one in SELECTOR if one.path == changed]
    command.main([*ARGUMENTS, "--seed", "1"])
    assert len(played) > 5, "another seed draws other mutants"


def test_no_result_ever_has_fewer_mutants_than_before(
    played: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "docs" / "results" / "mutants.json"
    command.main(ARGUMENTS)
    before = json.loads(file.read_text())
    with pytest.raises(SystemExit) as ended:
        command.main([*ARGUMENTS, "--number", "3"])
    assert ended.value.code == 2
    assert "has 4 mutants of selector: --number has to be 4 or more" in capsys.readouterr().err
    assert json.loads(file.read_text()) == before
    with monkeypatch.context() as patched:
        patched.setattr(command, "NUMBER", 2)
        command.main(["--unit", "selector", "--result", "mutants", "--resume"])
    assert json.loads(file.read_text()) == before, "as many are drawn as are known"


def test_what_another_seed_has_begun_stands_beside_the_whole_result_until_it_is_one(
    played: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "docs" / "results" / "mutants.json"
    command.main(ARGUMENTS)
    before = json.loads(file.read_text())
    noticed = trial.noticed

    def broken_off(folder: Path, tests: dict[str, float]) -> bool:
        if len(played) == 6:
            raise KeyboardInterrupt
        return noticed(folder, tests)

    # Another seed knows nothing of the mutants that were drawn before.
    with monkeypatch.context() as patched:
        patched.setattr(trial, "noticed", broken_off)
        with pytest.raises(KeyboardInterrupt):
            command.main([*ARGUMENTS, "--seed", "1"])
    found = json.loads(file.read_text())
    assert found["units"] == before["units"]
    assert list(found["begun"]["selector"]["mutants"]) == [str(one) for one in OTHERS[:2]]
    command.main([*ARGUMENTS, "--seed", "1"])
    assert len(played) == 8, "what was begun is gone on with"
    found = json.loads(file.read_text())
    assert list(found["units"]["selector"]["mutants"]) == [str(one) for one in OTHERS] and "begun" not in found


def test_the_commit_of_a_unit_is_the_oldest_at_which_a_mutant_was_played(
    played: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "docs" / "results" / "mutants.json"
    monkeypatch.setattr(results, "about_here", lambda: {"commit": "new", "date": "2026-11-28"})
    command.main(ARGUMENTS)
    found = json.loads(file.read_text())
    unit = found["units"]["selector"]
    # As it was written before the commit of each mutant was kept.
    unit |= {"commit": "old", "date": "2026-01-02"}
    del unit["played"], unit["mutants"][str(SELECTOR[0])]
    file.write_text(json.dumps(found))
    command.main(ARGUMENTS)
    unit = json.loads(file.read_text())["units"]["selector"]
    assert (unit["commit"], unit["date"]) == ("old", "2026-01-02")
    commits = {name: stamp.partition(" ")[2] for name, stamp in unit["played"].items()}
    assert commits == {str(one): "new" if one is SELECTOR[0] else "old" for one in SELECTOR}
    command.main([argument for argument in ARGUMENTS if argument != "--resume"])
    unit = json.loads(file.read_text())["units"]["selector"]
    assert unit["commit"] == "new" and len(unit["mutants"]) == 4


def test_a_reason_belongs_to_a_line_wherever_that_has_gone() -> None:
    one = Drawn(SELECTOR[0].path, SELECTOR[0].mutant)
    reason = results.Reason(one.path, one.text, one.mutant.change, "nothing changes")
    other = results.Reason(one.path, "another line", one.mutant.change, "no")
    assert results.reason_of(one, [other, reason]) == "nothing changes"
    assert results.reason_of(one, [other]) == ""


def test_every_reason_is_one_of_a_mutant_that_can_be_made() -> None:
    found = results.reasons()
    assert len(set(found)) == len(found)
    for file in {reason.file for reason in found}:
        text = (ROOT / file).read_text(encoding="utf-8")
        lines = text.splitlines()
        changes = {(lines[mutant.line - 1].strip(), mutant.change) for mutant in mutants_of(text)}
        for reason in found:
            assert reason.file != file or (reason.line, reason.change) in changes, reason


def test_the_results_name_mutants_of_the_units_and_all_that_survived_has_a_reason() -> None:
    found = json.loads((ROOT / "docs" / "results" / "mutants.json").read_text(encoding="utf-8"))["units"]
    assert set(found) == set(UNITS)
    for unit, result in found.items():
        noticed = sum(result["mutants"].values())
        assert len(result["mutants"]) >= 60 and noticed >= 0.85 * len(result["mutants"]), unit
        assert len(result["survivors"]) == len(result["mutants"]) - noticed
        assert all(survivor["why"] for survivor in result["survivors"].values()), unit
    assert draw_mutants.PAGE.read_text(encoding="utf-8") == draw_mutants.page()
