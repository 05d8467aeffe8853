"""The mutants of a source text: copies with one small change each, such as a mistyped operator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import attrs

#: What takes the place of what.
COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}


@attrs.frozen(kw_only=True)
class Mutant:
    """A change of one expression or statement: the characters from ``start`` to ``end``, and the new ones."""

    line: int
    column: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the text with this change."""
        return text[: self.start] + self.new + text[self.end :]

    @property
    def change(self) -> str:
        """The old characters and the new ones, on one line."""
        return f"{' '.join(self.old.split())} -> {' '.join(self.new.split())}"

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.change}"


def mutants_of(text: str) -> list[Mutant]:
    """Return all mutants of a source text, in the order of their places.

    Left alone are annotations, texts, what only asserts, and what is outside of functions: constants and tables.
    """
    places = _Places(text)
    found: dict[Mutant, None] = {}
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                for node in _code_of(statement):
                    found.update(dict.fromkeys(_changes(node, places)))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def _code_of(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through the nodes of a tree without annotations, texts and assertions."""
    if isinstance(node, ast.Assert | ast.JoinedStr) or _is_invariant(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code_of(child)


def _is_invariant(node: ast.AST) -> bool:
    """Tell whether a node is the statement ``invariant(...)``, which does nothing as long as the product is right."""
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "invariant"


@attrs.define
class _Places:
    """The places of nodes in a text, by characters."""

    text: str
    starts: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column_bytes: int) -> int:
        start = self.starts[line - 1]
        encoded = self.text[start : self.starts[line]].encode()
        return start + len(encoded[:column_bytes].decode())

    def mutant(self, node: ast.expr | ast.stmt, new: str) -> Mutant:
        """Return the change of a whole node."""
        start, end = self.of(node)
        return Mutant(
            line=node.lineno, column=node.col_offset + 1, start=start, end=end, old=self.text[start:end], new=new
        )

    def source(self, node: ast.expr) -> str:
        """Return a node as it is written, in brackets."""
        start, end = self.of(node)
        return f"({self.text[start:end]})"


def _changes(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = places.source(node.left), places.source(node.comparators[0])
        yield places.mutant(node, f"({left} {COMPARISONS[type(node.ops[0])]} {right})")
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield places.mutant(node, f"({word.join(places.source(value) for value in node.values)})")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield places.mutant(node, places.source(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = places.source(node.left), places.source(node.right)
        yield places.mutant(node, f"({left} {ARITHMETIC[type(node.op)]} {right})")
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield places.mutant(node, f"{node.value + 1}")
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield places.mutant(node, f"{not node.value}")
    elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield places.mutant(node.test, f"(not {places.source(node.test)})")
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield places.mutant(node, "pass")
