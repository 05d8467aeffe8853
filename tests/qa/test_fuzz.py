"""What fuzzing has found is replayed: nothing but typed errors comes out of any format."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import attrs
import pytest

from qa.fuzz import __main__ as command
from qa.fuzz import corpus
from qa.fuzz.target import Target, split, text_of
from qa.fuzz.targets import TARGETS
from qa.results import ResultFile

RESULTS = corpus.ROOT / "docs" / "results" / "fuzz.json"


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_a_corpus_is_read_or_refused_with_a_typed_error(name: str) -> None:
    inputs = corpus.inputs_of(TARGETS[name])
    accepted = [TARGETS[name].accepts(data) for data in inputs]
    assert any(accepted) and len(inputs) >= 15
    assert all(accepted) is (not TARGETS[name].errors)


@pytest.mark.parametrize("name", TARGETS)
def test_the_first_inputs_of_a_target_are_as_good_as_they_look(name: str) -> None:
    target = TARGETS[name]
    accepted = [target.accepts(data) for data in target.seeds()]
    assert any(accepted) and all(len(data) <= target.bytes_max for data in target.seeds())


def test_a_datagram_a_file_of_a_member_and_a_message_that_are_refused_count_as_refused() -> None:
    target = TARGETS["datagrams"]
    plain, signed, member, message = (target.seeds()[index] for index in (0, 1, 4, 5))
    assert all(target.accepts(data) for data in (plain, signed, member, message))
    wrong = [plain[:-1], b"\1" + plain[1:], member[:-1], message[:-40], *(bytes([kind]) + b"?" for kind in range(6))]
    assert [target.accepts(data) for data in wrong] == [False] * len(wrong)


def test_the_corpora_are_small_and_name_no_machine() -> None:
    files = [path for path in corpus.CORPORA.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(TARGETS)
    assert sum(path.stat().st_size for path in files) < 300_000
    assert not any(b"/home/" in path.read_bytes() or b"/root/" in path.read_bytes() for path in files)


def read_a_number(data: bytes) -> None:
    """A reader that forgets what stands behind a number, and that zero divides nothing."""
    if not data.isdigit():
        raise ValueError("no number")
    if len(data) > 2:
        100 // int(data)


NUMBER = Target("number", read_a_number, (ValueError,), lambda: [b"1"], 8)


def test_any_other_error_of_a_target_comes_out() -> None:
    assert NUMBER.accepts(b"123") and not NUMBER.accepts(b"x")
    with pytest.raises(ZeroDivisionError):
        NUMBER.accepts(b"000")


def test_a_corpus_keeps_the_shortest_inputs_that_take_every_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(corpus, "_PRODUCT", str(Path(__file__)))
    inputs = [b"12345", b"12", b"x", b"123", b"yy", b"123456789"]
    kept, steps = corpus.minimized(NUMBER, inputs)
    assert sorted(kept) == [b"12", b"123", b"x"] and steps > 3
    assert len(corpus.minimized(attrs.evolve(NUMBER, inputs_max=1), inputs)[0]) == 1
    monkeypatch.setattr(corpus, "CORPORA", tmp_path)
    corpus.write(NUMBER, [b"12", b"x"])
    (tmp_path / "number" / f"{corpus.FOUND}zeros").write_bytes(b"0")
    corpus.write(NUMBER, [b"12"])
    assert sorted(corpus.inputs_of(NUMBER)) == [b"0", b"12"]


def test_bytes_become_texts_with_whatever_halves_of_characters_a_program_may_have() -> None:
    assert text_of("\u20ac".encode()) == "\u20ac"
    assert text_of(b"\xed\xa0\x80") == "\ud800" and text_of(b"a\xff") == "a\udcff"
    assert split(b"\x07ab", 4) == (3, b"ab") and split(b"", 4) == (0, b"")


def test_the_command_replays_a_corpus_and_says_what_it_lacks_for_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert command.main(["urls"]) == 2
    assert capsys.readouterr().err == f"{command.MISSING}\n"
    file = tmp_path / "url"
    file.write_bytes(b"tcp://a:1")
    assert command.main(["urls", "--replay", str(file)]) == 0
    assert capsys.readouterr().out == "urls: 1 inputs, 1 of them read, the others refused\n"
    assert command.main(["urls", "--replay"]) == 0
    assert f"urls: {len(corpus.inputs_of(TARGETS['urls']))} inputs" in capsys.readouterr().out


def test_the_figures_of_each_target_are_kept(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "fuzz.json", command.FORMAT)
    command.add(file, TARGETS["urls"], {"executions": 1})
    command.add(file, TARGETS["filters"], {"executions": 2})
    command.add(file, TARGETS["urls"], {"executions": 3})
    found = file.read()["targets"]
    assert {name: result["executions"] for name, result in found.items()} == {"urls": 3, "filters": 2}
    assert set(json.loads(RESULTS.read_text(encoding="utf-8"))["targets"]) == set(TARGETS)
