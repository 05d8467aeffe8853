"""The lines of the keys of a TOML file.

The standard library's reader says what a file means and not where; this one says where, of a file that the other
one has understood.
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from typing import TypeAlias

#: Names of tables and keys, and places in lists, from the top.
Path: TypeAlias = tuple[str | int, ...]

_SPACE = " \t"
_GAPS = " \t\r\n"
_ENDS = ",]}#\r\n"


class KeyLines:
    """The lines of the keys of a TOML text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._starts = [0, *(place + 1 for place, character in enumerate(text) if character == "\n")]
        self._lines: dict[Path, int] = {}
        # The place of the last table in each list of tables.
        self._last: dict[Path, int] = {}
        self._scan()

    def of(self, path: Path) -> int:
        """Return the line of a key, or of the table in which it is missing."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    # -- reading

    def _scan(self) -> None:
        base: Path = ()
        self._skip_gaps()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                base = self._header()
            else:
                self._pair(base)
            self._skip_gaps()

    def _header(self) -> Path:
        several = self._text.startswith("[[", self._at)
        self._at += 2 if several else 1
        names = self._names()
        self._at += 2 if several else 1
        path: Path = ()
        for number, name in enumerate(names, start=1):
            path = (*path, name)
            self._note(path)
            if several and number == len(names):
                self._last[path] = self._last.get(path, -1) + 1
            if path in self._last:
                path = (*path, self._last[path])
                self._note(path)
        return path

    def _pair(self, base: Path) -> None:
        path = base
        for name in self._names():
            path = (*path, name)
            self._note(path)
        self._at += 1  # the equals sign
        self._value(path)

    def _note(self, path: Path) -> None:
        self._lines.setdefault(path, bisect_right(self._starts, self._at))

    def _names(self) -> list[str]:
        names = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._text[start] in "\"'":
                self._string()
                names.append(str(*tomllib.loads("key = " + self._text[start : self._at]).values()))
            else:
                while self._text[self._at] not in " \t.=]":
                    self._at += 1
                names.append(self._text[start : self._at])
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        first = self._text[self._at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._several(path, "]")
        elif first == "{":
            self._several(path, "}")
        else:
            while self._at < len(self._text) and self._text[self._at] not in _ENDS:
                self._at += 1

    def _several(self, path: Path, end: str) -> None:
        """Read the items between brackets or braces."""
        self._at += 1
        number = 0
        while True:
            self._skip_gaps()
            if self._text[self._at] == end:
                self._at += 1
                return
            if end == "}":
                self._pair(path)
            else:
                self._note((*path, number))
                self._value((*path, number))
                number += 1
            self._skip_gaps()
            if self._text[self._at] == ",":
                self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        mark = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._at += len(mark)
        while not self._text.startswith(mark, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(mark)
        if len(mark) == 3:
            # Up to two more quotes belong to the text.
            self._skip(quote)

    def _skip(self, characters: str) -> None:
        while self._at < len(self._text) and self._text[self._at] in characters:
            self._at += 1

    def _skip_gaps(self) -> None:
        """Space, ends of lines, and comments."""
        self._skip(_GAPS)
        while self._text.startswith("#", self._at):
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
            self._skip(_GAPS)


def shown(path: Path) -> str:
    """A path as one writes it in a file."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.isascii() and part.replace("-", "").replace("_", "").isalnum()
            quoted = part.replace("\\", "\\\\").replace('"', '\\"')
            text += ("." if text else "") + (part if bare else f'"{quoted}"')
    return text
