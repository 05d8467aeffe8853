"""LIKE without trying again: a text is passed once, however the pattern looks.

A pattern is pieces of a fixed length with ``%`` between them.  The first and the last piece have their places; each
of the others is taken where it fits first, which is never worse than a later place.  A piece of plain characters is
found by the interpreter's own search.  One with ``_`` in it is found by keeping, as the bits of one number, which
beginnings of the piece the text read so far ends with: a step per character, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Stands for ``_`` in a piece.
_ANY: Final = None


class PatternError(ValueError):
    """An escape character stands before something that needs none; says which character of the pattern that is."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Piece:
    """Characters that stand side by side, some of which may be any."""

    __slots__ = ("_any", "_literal", "characters", "masks", "size")

    def __init__(self, characters: list[str | None]) -> None:
        self.characters = characters
        self.size = len(characters)
        #: The piece as text, None if it has places for any character.
        self._literal = None if _ANY in characters else "".join(filter(None, characters))
        # Bit i of a mask: the character fits at place i.
        self._any = sum(1 << place for place, character in enumerate(characters) if character is _ANY)
        self.masks: dict[str, int] = {}
        for place, character in enumerate(characters):
            if character is not _ANY:
                self.masks[character] = self.masks.get(character, self._any) | 1 << place

    def fits(self, text: str, at: int) -> bool:
        """Whether it stands at this place of the text, which is long enough."""
        if self._literal is not None:
            return text.startswith(self._literal, at)
        part = text[at : at + self.size]
        return all(wanted is _ANY or wanted == found for wanted, found in zip(self.characters, part, strict=True))

    def find(self, text: str, start: int, stop: int) -> int:
        """The first place from ``start`` on where it stands whole before ``stop``; -1: nowhere."""
        if self._literal is not None:
            return text.find(self._literal, start, stop)
        masks, other = self.masks, self._any
        last = 1 << self.size - 1
        begun = 0
        for at in range(start, stop):
            begun = (begun << 1 | 1) & masks.get(text[at], other)
            if begun & last:
                return at - self.size + 1
        return -1


def pieces_of(pattern: str, escape: str) -> list[Piece]:
    """The pieces between the pattern's ``%``: one more than there are of these.

    Raises:
        PatternError: the escape character stands before another character, or last.
    """
    pieces: list[list[str | None]] = [[]]
    escaped = False
    for index, character in enumerate(pattern):
        if escaped:
            if character not in ("%", "_", escape):
                raise PatternError(index - 1)
            pieces[-1].append(character)
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(_ANY if character == "_" else character)
    if escaped:
        raise PatternError(len(pattern) - 1)
    return [Piece(piece) for piece in pieces]


def compile_like(pattern: str, escape: str) -> Callable[[str], bool]:
    """What says whether a text fits the pattern.

    Raises:
        PatternError: the escape character stands before another character, or last.
    """
    first, *floating = pieces_of(pattern, escape)
    if not floating:
        return lambda text: len(text) == first.size and first.fits(text, 0)
    last = floating.pop()
    middle = [piece for piece in floating if piece.size]
    size = first.size + last.size + sum(piece.size for piece in middle)

    def fits(text: str) -> bool:
        stop = len(text) - last.size
        if len(text) < size or not first.fits(text, 0) or not last.fits(text, stop):
            return False
        at = first.size
        for piece in middle:
            at = piece.find(text, at, stop)
            if at < 0:
                return False
            at += piece.size
        return True

    return fits
