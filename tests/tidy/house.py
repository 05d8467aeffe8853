"""The figures of the house: circles of files, folders, fields, hooks and inheritance, which may only fall.

``python -m tests.tidy.house`` lists them, ``--root FOLDER`` of another checkout, ``--write`` lowers the ratchets of
``house.json`` to the figures of today.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.tidy.sources import ROOT, Source

RATCHETS: Final = Path(__file__).with_name("house.json")
#: Files in one folder.
FOLDER_FILES_MAX: Final = 25
#: Files that know each other in a circle, in the room ``broker.queue`` and elsewhere.
CIRCLE_FILES_MAX: Final = 4
CIRCLE_FILES_MAX_OF: Final[Mapping[str, int]] = {"broker.queue": 8}
#: Instance fields of one class.
FIELDS_MAX: Final = 20
#: Classes of the project with an implementation that one class inherits from, one above the other.
DEPTH_MAX: Final = 1

Graph = Mapping[str, Sequence[str]]


def sources_of(root: Path) -> list[Source]:
    """The product's files in a checkout, and those of ``qa``."""
    paths = [path for folder in ("src/meshq", "qa") for path in sorted((root / folder).rglob("*.py"))]
    return [Source.of(str(path.relative_to(root)), path.read_text(encoding="utf-8")) for path in paths]


def unit_of(source: Source) -> str:
    """The package of a file below ``meshq``, or ``qa``."""
    return "qa" if source.path.startswith("qa/") else source.unit


# -- who knows whom


def graph_of(sources: Sequence[Source]) -> Graph:
    """Which file imports which, also in functions and under ``TYPE_CHECKING``.

    A name that a package only passes on leads to the file where it is defined.
    """
    modules = {source.module for source in sources}
    packages = {source.module for source in sources if source.name == "__init__.py"}
    passed_on = {source.module: dict(_passed_on(source)) for source in sources if source.name == "__init__.py"}
    found: dict[str, list[str]] = {}
    for source in sources:
        known: dict[str, None] = {}
        for module, name in _imported(source):
            target = f"{module}.{name}" if name and f"{module}.{name}" in modules else module
            while target in packages and name in passed_on[target]:
                target = passed_on[target][name]
            if target in modules and target != source.module:
                known[target] = None
        found[source.module] = [] if source.module in packages else list(known)
    return found


def _imported(source: Source) -> Iterator[tuple[str, str]]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def _passed_on(package: Source) -> Iterator[tuple[str, str]]:
    for node in package.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, node.module) for alias in node.names)


def circles(graph: Graph) -> list[list[str]]:
    """Every set of files that know each other, over any number of steps; the largest first."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _walk(start, graph, seen, order)
    back: dict[str, list[str]] = defaultdict(list)
    for module, targets in graph.items():
        for target in targets:
            back[target].append(module)
    found: list[list[str]] = []
    seen = set()
    for start in reversed(order):
        circle: list[str] = []
        _walk(start, back, seen, circle)
        if len(circle) > 1:
            found.append(sorted(circle))
    return sorted(found, key=lambda circle: (-len(circle), circle))


def _walk(start: str, graph: Graph, seen: set[str], order: list[str]) -> None:
    """Put what can be reached from here into ``order``, the farthest first."""
    waiting = [(start, False)]
    while waiting:
        module, done = waiting.pop()
        if done:
            order.append(module)
        elif module not in seen:
            seen.add(module)
            waiting.append((module, True))
            waiting += [(target, False) for target in graph.get(module, ())]


def room_of(circle: Sequence[str]) -> str:
    """The folder below ``meshq`` that all files of a circle are in."""
    parts = [module.removeprefix("meshq.").split(".")[:-1] for module in circle]
    common: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def large_circles(sources: Sequence[Source]) -> dict[str, int]:
    """The files of the largest circle in each room, where a room has one that is too large."""
    found: dict[str, int] = {}
    for circle in circles(graph_of(sources)):
        room = room_of(circle)
        if len(circle) > CIRCLE_FILES_MAX_OF.get(room, CIRCLE_FILES_MAX):
            found[room] = max(found.get(room, 0), len(circle))
    return dict(sorted(found.items()))


def large_folders(sources: Sequence[Source]) -> dict[str, int]:
    """Folders with too many files."""
    found = Counter(str(Path(source.path).parent) for source in sources)
    return {folder: number for folder, number in sorted(found.items()) if number > FOLDER_FILES_MAX}


# -- classes


def classes_of(sources: Sequence[Source]) -> Iterator[tuple[Source, ast.ClassDef]]:
    """Every class, with its file."""
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                yield source, node


def fields_of(node: ast.ClassDef) -> set[str]:
    """The instance fields of a class: what its body declares and what its methods assign to ``self``."""
    found = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not ast.unparse(item.annotation).startswith(("ClassVar", "Final"))
    }
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store) and ast.unparse(item.value) == "self":
            found.add(item.attr)
    return found


def many_fields(sources: Sequence[Source]) -> dict[str, int]:
    """Classes with too many fields; dictionaries with typed keys have none."""
    counted = {
        f"{unit_of(source)}.{node.name}": len(fields_of(node))
        for source, node in classes_of(sources)
        if not any(ast.unparse(base).endswith(("TypedDict", "Options")) for base in node.bases)
    }
    return {name: number for name, number in sorted(counted.items()) if number > FIELDS_MAX}


def hooks(sources: Sequence[Source]) -> dict[str, int]:
    """How often each package assigns a hook, ``on_...``, of another object."""
    found = Counter(
        unit_of(source)
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr.startswith("on_")
        and ast.unparse(node.value) not in ("self", "cls")
    )
    return dict(sorted(found.items()))


def null_defaults(sources: Sequence[Source]) -> dict[str, int]:
    """How often each package has a function that does nothing for a default."""
    found: Counter[str] = Counter()
    for source in sources:
        empty = {
            node.name
            for node in source.nodes
            if isinstance(node, ast.FunctionDef) and all(_does_nothing(item) for item in node.body)
        }
        for node in source.nodes:
            for value in _defaults(node):
                named = isinstance(value, ast.Name) and value.id in empty
                silent = isinstance(value, ast.Lambda) and ast.unparse(value.body) == "None"
                found[unit_of(source)] += named or silent
    return {unit: number for unit, number in sorted(found.items()) if number}


def _does_nothing(item: ast.stmt) -> bool:
    if isinstance(item, ast.Return):
        return item.value is None or ast.unparse(item.value) == "None"
    return isinstance(item, ast.Pass) or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))


def _defaults(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.arguments):
        yield from (value for value in [*node.defaults, *node.kw_defaults] if value is not None)
    elif isinstance(node, ast.keyword):
        yield from [node.value] if node.arg == "default" else []
    elif isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
        yield node.value


def deep_classes(sources: Sequence[Source]) -> dict[str, int]:
    """Classes that inherit an implementation over more than one step; errors may."""
    bodies: dict[str, tuple[bool, list[str]]] = {}
    names: dict[str, str] = {}
    for source, node in classes_of(sources):
        texts = [ast.unparse(base).split("[")[0] for base in node.bases]
        bases = [text.split(".")[-1] for text in texts if not text.startswith("random.")]
        bodies[node.name] = (_implements(node), bases)
        names[node.name] = f"{unit_of(source)}.{node.name}"

    def depth(name: str) -> int:
        if name not in bodies or name.endswith("Error"):
            return 0
        return max((depth(base) + _has_body(base) for base in bodies[name][1] if base != name), default=0)

    def _has_body(name: str) -> int:
        return int(name in bodies and bodies[name][0])

    counted = {names[name]: depth(name) for name in bodies if not name.endswith("Error")}
    return {name: number for name, number in sorted(counted.items()) if number > DEPTH_MAX}


def _implements(node: ast.ClassDef) -> bool:
    """Whether a class has a method with a body."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            abstract = any("abstractmethod" in ast.unparse(decorator) for decorator in item.decorator_list)
            if not abstract and not all(_does_nothing(line) for line in item.body):
                return True
    return False


# -- all figures


def figures(sources: Sequence[Source]) -> dict[str, dict[str, int]]:
    """What may only fall."""
    return {
        "files of the largest circle": large_circles(sources),
        "files in a folder": large_folders(sources),
        "fields": many_fields(sources),
        "hooks assigned from outside": hooks(sources),
        "null functions as defaults": null_defaults(sources),
        "inherited implementations": deep_classes(sources),
    }


def allowed() -> dict[str, dict[str, int]]:
    """The figures of the last time."""
    loaded: dict[str, dict[str, int]] = json.loads(RATCHETS.read_text(encoding="utf-8"))
    return loaded


def grown(now: Mapping[str, Mapping[str, int]], before: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is more than it was."""
    return [
        f"{kind}: {name} has {number}, not {before.get(kind, {}).get(name, 'few enough')}"
        for kind, counted in now.items()
        for name, number in counted.items()
        if number > before.get(kind, {}).get(name, 0)
    ]


def main() -> None:
    """List the figures, or lower the ratchets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the ratchets to the figures of today")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the checkout to look at")
    options = parser.parse_args()
    sources = sources_of(options.root)
    now: dict[str, Any] = figures(sources)
    if options.write:
        RATCHETS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return
    lines: Counter[str] = Counter()
    for source in sources:
        lines[unit_of(source)] += source.lines
    sys.stdout.write(f"{len(sources)} files, {sum(lines.values())} lines: {dict(lines.most_common())}\n")
    for kind, counted in now.items():
        listed = ", ".join(f"{name} {number}" for name, number in sorted(counted.items(), key=lambda item: -item[1]))
        sys.stdout.write(f"{kind} ({sum(counted.values())}): {listed}\n")


if __name__ == "__main__":
    main()
