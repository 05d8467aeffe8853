"""Seeds that were found useful are tried first, and written down when somebody asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import known_seeds


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of known seeds of its own, which is written."""
    file = tmp_path / "known_seeds.json"
    file.write_text('{"caught": {}, "rare": {"chain": [9]}}', encoding="utf-8")
    monkeypatch.setattr(known_seeds, "FILE", file)
    monkeypatch.setattr(known_seeds, "WRITES", True)
    return file


def test_the_seed_that_caught_a_mistake_last_is_tried_first_and_once(file: Path) -> None:
    assert known_seeds.caught_first(range(3)) == [0, 1, 2]
    known_seeds.caught_by(2)
    assert known_seeds.caught_first(range(3)) == [2, 0, 1]
    assert list(json.loads(file.read_text(encoding="utf-8"))["caught"]) == [known_seeds.this_test()]


def test_a_known_seed_that_catches_nothing_any_more_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known_seeds.caught_by(2)
    monkeypatch.setattr(known_seeds, "WRITES", False)
    known_seeds.caught_by(2)
    with pytest.warns(UserWarning, match=r"the known seed 2 catches nothing any more, and 1 does: MESHQ_KNOWN_SEEDS="):
        known_seeds.caught_by(1)


def test_few_seeds_are_noted_that_together_met_what_was_missing(file: Path) -> None:
    met = {5: {"a"}, 6: {"a", "b"}, 7: {"c"}, 8: {"b", "c"}}
    known_seeds.note_rare("chain", {"a", "b", "c", "never"}, met)
    assert known_seeds.rare("chain") == [6, 7]
    assert known_seeds.rare("drain") == []


def test_nothing_is_written_unless_somebody_asks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_seeds, "WRITES", False)
    before = file.read_text(encoding="utf-8")
    known_seeds.caught_by(1)
    known_seeds.note_rare("chain", {"a"}, {5: {"a"}})
    assert file.read_text(encoding="utf-8") == before
