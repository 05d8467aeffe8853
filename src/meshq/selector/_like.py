"""LIKE without trying again: a text is passed once, however the pattern looks.

A pattern is pieces of a fixed length with ``%`` between them.  The first and the last piece have their places; each
of the others is taken where it fits first, which is never worse than a later place.  A piece of plain characters is
found by the interpreter's own search, and so is the longest plain part of one with ``_`` in it.

Where the rest of such a piece fits nowhere near, all places of a stretch of the text are judged at once: for each
character of the piece there is a number whose bits are the places at which it stands, and these, moved by where it
stands in the piece, are ANDed.  So it doesn't matter how the text and the pattern look: nothing is tried twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Stands for ``_`` in a piece.
_ANY: Final = None
#: Places that are tried one by one before a stretch is judged at once.
_TRIES: Final = 8
#: Characters of a stretch, at least.
_STRETCH: Final = 1_024
#: Different characters of a piece up to which stretches are judged at once; with more, one number follows the text.
_DISTINCT_MAX: Final = 16
#: By value of a byte: what makes a text of bytes the digits of a number that says where this value stands.
_DIGITS: Final = tuple(b"0" * value + b"1" + b"0" * (255 - value) for value in range(256))


class PatternError(ValueError):
    """An escape character before a character that needs no escape; ``index`` is its place in the pattern."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class PatternPiece:
    """Adjacent characters of a pattern, some of which may be any character."""

    __slots__ = ("_any", "_literal", "_parts", "characters", "masks", "size")

    def __init__(self, characters: list[str | None]) -> None:
        self.characters = characters
        self.size = len(characters)
        #: The piece as text, None if it has places for any character.
        self._literal = None if _ANY in characters else "".join(filter(None, characters))
        self._parts = _plain_parts(characters)
        # Bit i of a mask: the character fits at place i.
        self._any = sum(1 << place for place, character in enumerate(characters) if character is _ANY)
        self.masks: dict[str, int] = {}
        for place, character in enumerate(characters):
            if character is not _ANY:
                self.masks[character] = self.masks.get(character, self._any) | 1 << place

    def fits(self, text: str, at: int) -> bool:
        """Whether the piece matches at this place of the text, which is long enough."""
        if self._literal is not None:
            return text.startswith(self._literal, at)
        part = text[at : at + self.size]
        return all(wanted is _ANY or wanted == found for wanted, found in zip(self.characters, part, strict=True))

    def find(self, text: str, start: int, stop: int) -> int:
        """Return the first place from ``start`` on where the piece matches, whole, before ``stop``; -1: nowhere."""
        if self._literal is not None:
            return text.find(self._literal, start, stop)
        if not self._parts:
            return start if start + self.size <= stop else -1
        (anchor, offset), *rest = self._parts
        limit = stop - self.size + offset + len(anchor)
        for _ in range(_TRIES):
            place = text.find(anchor, start + offset, limit) - offset
            if place < start:
                return -1
            if all(text.startswith(part, place + shift) for part, shift in rest):
                return place
            start = place + 1
        if len(self.masks) > _DISTINCT_MAX:
            return self._follow(text, start, stop)
        step = max(_STRETCH, 4 * self.size)
        while start + self.size <= stop:
            place = self._judge(text[start : min(stop, start + step + self.size - 1)])
            if place >= 0:
                return start + place
            start += step
        return -1

    def _judge(self, text: str) -> int:
        """Return the first match in a stretch of text; -1: nowhere."""
        if text.isascii():
            planes = [text.encode()]
        else:
            data = text.encode("utf-32-le", "surrogatepass")
            planes = [data[byte::4] for byte in range(3)]
        # The first character is the highest bit.  Every place that leaves room for the whole piece may be one.
        places = (1 << len(text)) - (1 << self.size - 1)
        for character, mask in self.masks.items():
            code = ord(character)
            if code >> 8 * len(planes):
                return -1
            found = -1
            for byte, plane in enumerate(planes):
                found &= int(plane.translate(_DIGITS[code >> 8 * byte & 255]), 2)
            mask &= ~self._any
            while mask:
                lowest = mask & -mask
                places &= found << lowest.bit_length() - 1
                mask ^= lowest
            if not places:
                return -1
        return len(text) - places.bit_length()

    def _follow(self, text: str, start: int, stop: int) -> int:
        """Search as ``find`` does; the bits of a number are the partial matches at the end of the text read so far."""
        masks, other = self.masks, self._any
        last = 1 << self.size - 1
        begun = 0
        for at in range(start, stop):
            begun = (begun << 1 | 1) & masks.get(text[at], other)
            if begun & last:
                return at - self.size + 1
        return -1


def _plain_parts(characters: list[str | None]) -> list[tuple[str, int]]:
    """Return the parts of a piece without ``_``, each with its place in the piece, the longest first."""
    parts: list[tuple[str, int]] = []
    begin = 0
    for place, character in enumerate([*characters, _ANY]):
        if character is _ANY:
            if place > begin:
                parts.append(("".join(filter(None, characters[begin:place])), begin))
            begin = place + 1
    return sorted(parts, key=_longest_first)


def _longest_first(part: tuple[str, int]) -> int:
    return -len(part[0])


def pieces_of(pattern: str, escape: str) -> list[PatternPiece]:
    """Split a pattern at its ``%``: one piece more than there are of these.

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
    return [PatternPiece(piece) for piece in pieces]


def compile_like(pattern: str, escape: str) -> Callable[[str], bool]:
    """Compile a pattern: the function returns whether a text matches.

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
