"""Identifiers and docstrings speak the field's language, and what is left of the other falls."""

from __future__ import annotations

import pytest

from tests.tidy import words
from tests.tidy.sources import ROOT, Source, python_files

PRODUCT = python_files("src", "qa")
pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]


def planted(path: str, *lines: str) -> Source:
    """A file of the product with these lines."""
    return Source.of(f"src/meshq/{path}", "\n".join(lines) + "\n")


def test_no_more_docstrings_are_riddles_than_the_last_time() -> None:
    found = words.counts(PRODUCT)["riddles"]
    allowed = words.allowed()["riddles"]
    grown = {
        owner: (number, allowed.get(owner, 0)) for owner, number in found.items() if number > allowed.get(owner, 0)
    }
    assert not grown, f"(now, allowed): {grown}; `python -m tests.tidy.words {' '.join(grown)}` lists them"


def test_no_banned_identifier_comes_back() -> None:
    found = words.counts(PRODUCT)["banned"]
    allowed = words.allowed()["banned"]
    grown = {name: words.BANNED[name.strip("_")] for name, number in found.items() if number > allowed.get(name, 0)}
    assert not grown, f"say instead: {grown}"


def test_a_class_name_stands_once_in_its_layer() -> None:
    allowed = words.allowed()["classes"]
    again = {name: paths for name, paths in words.repeated_classes(PRODUCT).items() if name not in allowed}
    assert not again


@pytest.mark.parametrize(
    "sentence",
    [
        "It is later: do what is due by now.",
        "Nobody is there yet.",
        "They stay what they are for as long as the queue lives.",
        "One of the nodes that is gone.",
        "One queue.",
        "Something has happened.",
        "There is work.",
        "The queue, for whoever asks.",
        "Run what is due.",
        "Give the messages to those that wait.",
        "Who received it.",
    ],
)
def test_a_sentence_without_a_noun_for_a_subject_is_found(sentence: str) -> None:
    (riddle,) = words.riddles([planted("broker/_x.py", "def f():", f"    '''{sentence}'''")], {})
    assert (riddle.owner, riddle.line, riddle.sentence) == ("broker", 1, sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Run the timers that are due at ``now_ms``.  Return True if any are left.",
        "A page of one queue.",
        "Whether the file is open.",
        "Close the file if it is open.",
        "The value of ``what``.",
        "The first sentence is plain.  What comes later may say what it wants.",
    ],
)
def test_a_plain_sentence_is_left_alone(sentence: str) -> None:
    assert list(words.riddles([planted("broker/_x.py", "def f():", f"    '''{sentence}'''")], {})) == []


def test_users_see_public_classes_and_their_public_methods() -> None:
    lines = [
        "class Seen:",
        "    '''It is seen.'''",
        "    def method(self):",
        "        '''It is seen, too.'''",
        "    def _own(self):",
        "        '''It is not.'''",
        "class Own:",
        "    '''It is not.'''",
    ]
    found = list(words.riddles([planted("node/_x.py", *lines)], {"node": frozenset({"Seen"})}))
    assert [riddle.owner for riddle in sorted(found, key=lambda riddle: riddle.line)] == [
        "public",
        "public",
        "node",
        "node",
    ]
    assert {"Broker", "Client"} <= {name for names in words.public_names().values() for name in names}
    (everyones,) = words.riddles([planted("abc/_x.py", "class File:", "    '''It is open.'''")], {})
    assert everyones.owner == "public"


def test_what_is_defined_under_a_banned_name_is_found() -> None:
    lines = ["class Voice: ...", "def chaos(lane): ...", "self.tier = 1", "strays = 2", "uses = lane"]
    found = words.banned_identifiers([planted("broker/_x.py", *lines)])
    assert found == {"Voice": 1, "chaos": 1, "lane": 1, "tier": 1, "strays": 1}


def test_a_banned_word_is_allowed_only_in_the_file_where_it_is_the_fields_word() -> None:
    for name, path in words.RIGHT.items():
        lines = (ROOT / path).read_text(encoding="utf-8")
        assert words.banned_identifiers([Source.of(path, lines)]) == {}
        assert words.banned_identifiers([planted("broker/_x.py", lines)])[name], f"{path} no longer says {name}"


def test_a_class_name_that_stands_twice_in_a_layer_is_found() -> None:
    files = [planted(path, "class Reader: ...") for path in ("store/_a.py", "wire/_b.py", "client/_c.py", "aio/_d.py")]
    assert words.repeated_classes(files) == {"L1 Reader": ["src/meshq/store/_a.py", "src/meshq/wire/_b.py"]}


def test_the_glossary_has_at_most_sixty_terms_each_once_and_none_that_is_banned() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [
        line.split("|")[1:-1] for line in lines if line.startswith("| ") and not line.startswith(("| term", "| ---"))
    ]
    assert rows and {len(row) for row in rows} == {5}
    terms = [term.strip() for row in rows for term in row[0].split(",")]
    assert len(rows) <= 60
    assert len(set(terms)) == len(terms)
    assert not set(terms) & {name.lower() for name in words.BANNED}
    assert all(row[1].strip().endswith(".") for row in rows)
