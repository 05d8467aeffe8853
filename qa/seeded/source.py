"""The source of a function of the product, found by the function's name."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

import meshq
from meshq.errors import UsageError

#: The package that is changed, and its parent folder.
PACKAGE: Final = Path(meshq.__file__).parent
SOURCE: Final = PACKAGE.parent

Function = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class FunctionSource:
    """The place of one function: a file, and the function's lines in it, decorators included."""

    #: A package and the qualified name of the function.
    name: str
    path: Path
    #: The whole file.
    file_text: str = attrs.field(repr=False)
    #: Offsets of the function in ``file_text``.
    start: int
    stop: int

    @property
    def text(self) -> str:
        """The function's lines as they stand in the file."""
        return self.file_text[self.start : self.stop]

    @property
    def indent(self) -> str:
        """The blanks in front of the function, as many as its class asks for."""
        return self.text[: len(self.text) - len(self.text.lstrip(" "))]

    @property
    def dedented(self) -> str:
        """The function's lines, moved to the left margin."""
        return _moved(self.text, self.indent, "")

    def changed(self, old: str, new: str) -> str:
        """Return the whole file with ``old``, a part of the dedented function, replaced by ``new``.

        Raises:
            UsageError: ``old`` does not stand in the function exactly once.
        """
        dedented = self.dedented
        count = dedented.count(old)
        if count != 1:
            raise UsageError(f"{old.strip()!r} stands {count} times in {self.name}")
        at = dedented.index(old)
        begins_line = at == 0 or dedented[at - 1] == "\n"
        there, wanted = textwrap.indent(old, self.indent), textwrap.indent(new, self.indent)
        if not begins_line:
            there, wanted = there.removeprefix(self.indent), wanted.removeprefix(self.indent)
        if self.text.count(there) != 1:
            raise UsageError(f"{old.strip()!r} crosses lines that are indented less than {self.name}")
        text = self.text.replace(there, wanted)
        return self.file_text[: self.start] + text + self.file_text[self.stop :]


def _moved(text: str, indent: str, wanted: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(wanted + line.removeprefix(indent) if line.startswith(indent) else line for line in lines)


def find_function(name: str, root: Path = SOURCE) -> FunctionSource:
    """Find a function by package and qualified name, as in ``meshq.broker:Session.close``.

    The function may be in any file below the package.  ``root`` is the folder that contains the package.  Overloads
    do not count, and a function inside of another function has no name.

    Raises:
        UsageError: no function below the package has that name, or several have.
    """
    package, _, qualified = name.partition(":")
    place = root.joinpath(*package.split("."))
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    definition = re.compile(rf"\bdef {re.escape(qualified.split('.')[-1])}\b")
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if definition.search(text):
            nodes = [node for own, node in _functions(ast.parse(text).body) if own == qualified]
            found += [_source(name, path, text, node) for node in nodes]
    if len(found) != 1:
        places = ", ".join(one.path.relative_to(root).as_posix() for one in found)
        raise UsageError(f"there are {len(found)} functions {name!r}" + (f": {places}" if found else ""))
    return found[0]


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """The qualified name and the definition of each function and method among these statements."""
    for node in body:
        if isinstance(node, Function):
            if not any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node.body, prefix)


def _source(name: str, path: Path, text: str, node: Function) -> FunctionSource:
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
    start = sum(map(len, lines[: first - 1]))
    return FunctionSource(name, path, text, start, start + sum(map(len, lines[first - 1 : node.end_lineno])))
