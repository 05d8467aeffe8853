"""Mutants: small changes of a source text, and tests that notice them or do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from qa.mutants import __main__ as command
from qa.mutants.operators import mutants_of

TEXT = '''"""No text is changed."""
LIMIT = 3


def f(a: int, b: dict[str, "int | None"]) -> int:
    """Nor this."""
    if a < LIMIT and not b:
        return a + 1
    g("ä", a * 2)
    a += 1
    while b:
        b.clear()
    return a is None
'''


def test_each_kind_of_change_is_made_and_nothing_else() -> None:
    found = [str(mutant) for mutant in mutants_of(TEXT)]
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
        "11: b -> (not (b))",
        "12: b.clear() -> pass",
        "13: a is None -> ((a) is not (None))",
    ]


@pytest.mark.slow
def test_every_mutant_of_the_units_is_a_program_that_differs_in_one_place() -> None:
    for unit in command.UNITS:
        assert all((command.ROOT / test).exists() for test in command.UNITS[unit][1])
        found = command.drawn(unit, 20, seed=1)
        assert len(found) == 20 and found == command.drawn(unit, 20, seed=1)
        for path, mutant in found:
            text = path.read_text(encoding="utf-8")
            changed = mutant.applied(text)
            ast.parse(changed)
            assert changed != text
            assert changed[: mutant.start] == text[: mutant.start]
            assert changed.endswith(text[mutant.end :])


@pytest.mark.slow
def test_tests_notice_a_change_of_the_copy_and_nothing_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with command.copy_of_the_product() as folder:
        file = folder / "src" / "meshq" / "selector" / "_like.py"
        tests = ("tests/selector/test_like.py",)
        assert not command.noticed(folder, tests, 120)
        file.write_text(file.read_text(encoding="utf-8").replace("return ", "return not ", 1), encoding="utf-8")
        assert command.noticed(folder, tests, 120)
    assert "return not " not in (command.ROOT / "src" / "meshq" / "selector" / "_like.py").read_text(encoding="utf-8")


def test_results_are_written_at_once_and_played_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[float | None] = []

    def noticed(folder: Path, tests: object, timeout_s: float | None) -> bool:
        asked.append(timeout_s)
        return timeout_s is not None and len(asked) != 3

    monkeypatch.setattr(command, "noticed", noticed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    arguments = ["--unit", "selector", "--number", "4", "--result", "mutants", "--resume"]
    assert command.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "selector: 3 of 4 were noticed, 75%"
    assert len(asked) == 5
    command.main(arguments)
    # The tests of the product itself, and no mutant twice.
    assert len(asked) == 6
