"""LIKE beside regular expressions, and what it costs."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshq.selector import _like
from meshq.selector._like import PatternError, PatternPiece, compile_like, pieces_of
from tests.selector.views import verdict

PATTERNS = st.lists(st.sampled_from(["a", "b", "ab", "%", "_", "é", "\n", "!%", "!_", "!!", "."]), max_size=12)


def regex_of(parts: list[str]) -> str:
    """The same pattern for ``re``, made from its parts."""
    known = {"%": ".*", "_": "."}
    return "".join(known.get(part, re.escape(part.removeprefix("!"))) for part in parts)


@pytest.mark.slow
@settings(max_examples=1_000)
@given(PATTERNS, st.text("abé\n%_!.", max_size=14))
def test_it_agrees_with_regular_expressions(parts: list[str], text: str) -> None:
    assert compile_like("".join(parts), "!")(text) is bool(re.fullmatch(regex_of(parts), text, re.DOTALL))


@pytest.mark.slow
@settings(max_examples=500)
@given(PATTERNS)
def test_a_text_made_from_the_pattern_fits(parts: list[str]) -> None:
    text = "".join({"%": "xyz", "_": "?"}.get(part, part.removeprefix("!")) for part in parts)
    assert compile_like("".join(parts), "!")(text)


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("", [""], ["a"]),
        ("%", ["", "a", "a\nb"], []),
        ("_", ["a", "é", "🐘"], ["", "ab"]),
        ("12%3", ["123", "12993"], ["1234", "12"]),
        ("l_se", ["lose"], ["loose", "lse"]),
        ("ab%ab", ["abab", "abxab"], ["ab", "aba"]),
        ("%a_c%", ["abc", "xabcx", "aacaxc"], ["ac", "abd"]),
        ("a", ["a"], ["A", " a", "a "]),
        # What stands between is not part of the end.
        ("a%b%bc", ["abbc", "axbxbc"], ["axbc", "abc"]),
        ("a%b_%bc", ["abxbc"], ["axbbc", "abbc"]),
    ],
)
def test_examples(pattern: str, fitting: list[str], others: list[str]) -> None:
    fits = compile_like(pattern, "")
    assert all(map(fits, fitting)) and not any(map(fits, others))


def test_escape_takes_the_meaning_away() -> None:
    assert verdict("a LIKE '!_%' ESCAPE '!'", a="_x") is True
    assert verdict("a LIKE '!_%' ESCAPE '!'", a="x") is False
    assert verdict("a LIKE '50!%!!' ESCAPE '!'", a="50%!") is True
    assert verdict("a LIKE '%%' ESCAPE '%'", a="%") is True
    assert verdict("a LIKE 'x''''%' ESCAPE ''''", a="x'yz") is True
    for pattern, index in (("!a", 0), ("ab!", 2), ("!!!", 2)):
        with pytest.raises(PatternError) as caught:
            compile_like(pattern, "!")
        assert caught.value.index == index


class Counting(dict[str, int]):
    """Masks that count how often they are looked at."""

    looks = 0

    def get(self, key: str, default: int = 0) -> int:  # type: ignore[override]
        self.looks += 1
        return super().get(key, default)


def test_a_piece_of_many_characters_passes_the_text_once() -> None:
    text = "abc" * 20_000
    (_, piece, _) = pieces_of("%abca_" + "_".join(map(chr, range(300, 350))) + "%", "")
    piece.masks = masks = Counting(piece.masks)
    assert piece.find(text, 0, len(text)) == -1
    # But for the places that were tried before.
    assert len(text) - 50 < masks.looks <= len(text)


@pytest.mark.parametrize("text", ["a" * 60_000, "a" * 59_000 + "bb" * 500, "aé" * 15_000, "ab" * 30_000])
@pytest.mark.parametrize("pattern", ["%a_c%", "%" + "a" * 200 + "_" * 50 + "b%", "%a_é_b%", "%" + "a_" * 900 + "bb%"])
def test_stretches_are_judged_at_once_and_each_character_once(
    monkeypatch: pytest.MonkeyPatch, pattern: str, text: str
) -> None:
    """However the two look: so much text is read for a piece, and its own length of overlap for each stretch."""
    judged: list[int] = []
    judge = PatternPiece._judge

    def counting(self: PatternPiece, stretch: str) -> int:
        judged.append(len(stretch))
        return judge(self, stretch)

    monkeypatch.setattr(PatternPiece, "_judge", counting)
    monkeypatch.setattr(_like, "_TRIES", 0)
    assert not compile_like(pattern + "!", "")(text + "!") or re.search(regex_of(list(pattern[1:-1])), text)
    assert sum(judged) <= 1.5 * len(text)


@pytest.mark.slow
@settings(max_examples=500)
@given(PATTERNS, st.text("abé\n%_!.", max_size=40), st.integers(0, 2), st.sampled_from([0, 2, 16]))
def test_it_agrees_also_where_stretches_are_short(parts: list[str], text: str, tries: int, distinct: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_like, "_TRIES", tries)
        patch.setattr(_like, "_STRETCH", 3)
        patch.setattr(_like, "_DISTINCT_MAX", distinct)
        found = compile_like("".join(parts), "!")(text)
    assert found is bool(re.fullmatch(regex_of(parts), text, re.DOTALL))


@pytest.mark.parametrize("piece", ["a", "ab", "a_", "_b", "a_b", "__", "ab_é_a", "_a_b_", "b__ba"])
@pytest.mark.parametrize(("tries", "distinct"), [(0, 16), (1, 16), (8, 16), (0, 0), (2, 1)])
def test_a_piece_is_found_where_it_stands_first(
    monkeypatch: pytest.MonkeyPatch, piece: str, tries: int, distinct: int
) -> None:
    monkeypatch.setattr(_like, "_TRIES", tries)
    monkeypatch.setattr(_like, "_STRETCH", 3)
    monkeypatch.setattr(_like, "_DISTINCT_MAX", distinct)
    (made,) = pieces_of(piece, "")
    chance = random.Random(piece)
    for text in ("", "a", "b", *("".join(chance.choices("aabbé", k=chance.randrange(40))) for _ in range(20))):
        for start in range(0, len(text) + 1, 3):
            # Whoever searches has seen that the piece fits before the stop.
            for stop in range(max(start, made.size), len(text) + 1):
                fitting = re.compile(regex_of(list(piece)), re.DOTALL).search(text, start, stop)
                assert made.find(text, start, stop) == (-1 if fitting is None else fitting.start())


def test_many_pieces_together_pass_the_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Text(str):
        """A text that knows how many of its characters were read one by one."""

        def __getitem__(self, index: object) -> str:
            if isinstance(index, int):
                looked.append(index)
            return super().__getitem__(index)  # type: ignore[index]

    fits = compile_like("%" + "a_a%" * 100 + "b", "")
    assert not fits(Text("a" * 10_000 + "c"))
    assert looked == []
    assert not fits(Text("a" * 5_000 + "c" + "a" * 5_000 + "d"))
    fits = compile_like("%" + "a_a%" * 100 + "c_c%", "")
    assert not fits(Text("a" * 10_000))
    assert looked == []
