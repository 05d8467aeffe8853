"""Which rows ``docs/conformance.toml`` has to have, and what each of them must say."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.tidy.sources import Problem, Source

PATH = "docs/conformance.toml"
#: The required rows, in their order: section → its first and its last number.
REQUIRED = {
    "A": (1, 77),
    "B": (1, 57),
    "C": (1, 22),
    "D": (1, 18),
    "E": (1, 22),
    "F": (1, 89),
    "G": (1, 29),
    "H": (1, 79),
    "I": (1, 16),
    "J": (1, 51),
    "K": (1, 76),
    "X": (101, 105),
}
#: State → what a row in it must say besides its id, its rule and the state; and nothing else.
SAYS = {
    "done": frozenset({"tests"}),
    "in part": frozenset({"tests", "rest"}),
    "to come": frozenset[str](),
    "not ours": frozenset({"why"}),
}


def required() -> list[str]:
    """The id of every required row."""
    return [f"{letter}{number}" for letter, (low, high) in REQUIRED.items() for number in range(low, high + 1)]


def lines_of(text: str) -> dict[str, int]:
    """Where each row stands: its id to its line."""
    starts = {line.strip(): number for number, line in reversed([*enumerate(text.splitlines(), 1)])}
    return {name: starts.get(f'id = "{name}"', 1) for name in required()}


def set_problems(text: str, document: Mapping[str, Any]) -> Iterator[Problem]:
    """Every required row is there once, in the order of the list, and no other."""
    names = [str(row.get("id")) for row in document.get("row", [])]
    wanted, where = required(), lines_of(text)
    for name in sorted(document.keys() - {"sections", "row"}):
        yield Problem(PATH, 1, f"unknown key: {name}")
    if list(document.get("sections", {})) != list(REQUIRED):
        yield Problem(PATH, 1, f"the sections are {', '.join(REQUIRED)}")
    count = Counter(names)
    for name in wanted:
        if count[name] != 1:
            yield Problem(PATH, where[name], f"{name} is there {count[name]} times")
    for name in sorted(count.keys() - set(wanted)):
        yield Problem(PATH, 1, f"{name} is no required row: see REQUIRED in tests/tidy/conformance.py")
    if not (count.keys() ^ set(wanted)) and len(names) == len(wanted) and names != wanted:
        first = next(name for name, right in zip(names, wanted, strict=True) if name != right)
        yield Problem(PATH, where[first], f"{first} is not in its place")


def row_problems(text: str, document: Mapping[str, Any], tests: frozenset[str]) -> Iterator[Problem]:
    """Every row says what its state asks for, and names tests that exist."""
    where = lines_of(text)
    for row in document.get("row", []):
        name, state = str(row.get("id")), row.get("state")
        line = where.get(name, 1)
        if state not in SAYS:
            yield Problem(PATH, line, f"{name}: the state {state!r} is none of {', '.join(SAYS)}")
            continue
        needed = {"id", "rule", "state"} | SAYS[state]
        for key in sorted(row.keys() ^ needed):
            yield Problem(
                PATH, line, f"{name}: a row that is {state!r} " + ("has no " if key in row else "needs ") + key
            )
        for key in ("rule", "why", "rest"):
            value = row.get(key, "A sentence.")
            if type(value) is not str or value != value.strip() or not value.endswith(".") or len(value) < 10:
                yield Problem(PATH, line, f"{name}: {key} is no sentence")
        named = row.get("tests", ["…"])
        if type(named) is not list or not named or any(type(test) is not str for test in named):
            yield Problem(PATH, line, f"{name}: tests is no list of node ids")
            continue
        if len(set(named)) != len(named):
            yield Problem(PATH, line, f"{name}: names a test twice")
        for test in named if "tests" in row else ():
            if test not in tests:
                yield Problem(PATH, line, f"{name}: there is no test {test}")


def node_ids(sources: tuple[Source, ...]) -> frozenset[str]:
    """Every test in these files, without its parameters."""
    return frozenset(name for source in sources if source.name.startswith("test_") for name in _node_ids(source))


def _node_ids(source: Source) -> Iterator[str]:
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{source.path}::{node.name}"
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name.startswith("test_"):
                    yield f"{source.path}::{node.name}::{method.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "TestCase":
            # A state machine of hypothesis: its one test has this name.
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield f"{source.path}::{target.id}::runTest"
