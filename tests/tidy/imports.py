"""Rules about imports.  Nested imports and those under TYPE_CHECKING count too: knowing is knowing."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterator, Sequence

import attrs

from tests.tidy import layers
from tests.tidy.sources import Problem, Source, unit_of


@attrs.frozen
class Import:
    """One imported module (or name of one), and where."""

    node: ast.AST
    module: str
    name: str | None = None


@functools.cache
def imports_of(source: Source) -> tuple[Import, ...]:
    """Every import in a file, relative ones made absolute."""
    return tuple(_imports_of(source))


def _imports_of(source: Source) -> Iterator[Import]:
    package = source.module if source.name == "__init__.py" else source.module.rpartition(".")[0]
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = ".".join(filter(None, [base, node.module])) if node.level else node.module or ""
            for alias in node.names:
                yield Import(node, module, alias.name)


def target_of(imported: Import, modules: frozenset[str]) -> str:
    """The meshq module that is really imported: a name may be a module, or be re-exported from one."""
    if imported.name is None:
        return imported.module
    if f"{imported.module}.{imported.name}" in modules:
        return f"{imported.module}.{imported.name}"
    if imported.module == "meshq":
        home: dict[str, str] = importlib.import_module("meshq")._HOME
        return home.get(imported.name, "meshq")
    return imported.module


def is_pure(path: str) -> bool:
    """Whether a file decides and does nothing else, from its place or its name."""
    parts = path.split("/")
    unit = unit_of(".".join(parts[parts.index("src") + 1 :]).removesuffix(".py").removesuffix(".__init__"))
    return unit in layers.PURE_UNITS or parts[-1].endswith(layers.PURE_SUFFIXES)


def layer_problems(source: Source, modules: frozenset[str]) -> Iterator[Problem]:
    """Imports go down only, and only where the table says."""
    allowed = layers.MAY_IMPORT.get(source.unit)
    if allowed is None:
        yield source.problem(1, f"unit {source.unit!r} is not in tests/tidy/layers.py: say what it may import")
        return
    for imported in imports_of(source):
        if imported.module.split(".")[0] != "meshq":
            continue
        target = target_of(imported, modules)
        unit = unit_of(target)
        if unit != source.unit and unit not in allowed:
            yield source.problem(imported.node, f"{source.unit} may not import {unit} ({target})")
        elif unit != source.unit and "._" in target:
            yield source.problem(imported.node, f"{target} is private to {unit}")


def room_of(module: str, modules: frozenset[str]) -> tuple[str, str]:
    """The package and the room of a module: ``meshq.store.formats._record`` is in the room ``formats`` of ``store``.

    A module at the top of a package is in the room with the package's name, and the package itself is, too.
    """
    parts = module.removeprefix("meshq.").split(".")
    package, room = parts[0], parts[1] if len(parts) > 1 else ""
    start = module.removesuffix(".".join(parts[1:]))
    return package, room if room and any(other.startswith(f"{start}{room}.") for other in modules) else package


def room_problems(source: Source, modules: frozenset[str]) -> Iterator[Problem]:
    """The rooms of a package import each other only where the table says."""
    package, room = room_of(source.module, modules)
    rooms = layers.ROOMS.get(package)
    if rooms is None:
        return
    if room not in rooms:
        yield source.problem(1, f"the room {room} of {package} is not in tests/tidy/layers.py: say what it may import")
        return
    for imported in imports_of(source):
        target = target_of(imported, modules)
        if target not in modules:
            continue
        home, other = room_of(target, modules)
        if home == package and other != room and other not in rooms[room]:
            yield source.problem(imported.node, f"the room {room} of {package} may not import {other}")


def published_problems(source: Source, package: str, published: frozenset[str]) -> Iterator[Problem]:
    """A public name is imported from the package that publishes the name, not from a private module below."""
    for imported in imports_of(source):
        if imported.module.startswith(f"{package}._") and imported.name in published:
            yield source.problem(imported.node, f"import {imported.name} from {package}")


def worldly_modules(sources: Sequence[Source], modules: frozenset[str]) -> frozenset[str]:
    """The modules that know clock, I/O, chance or trio, themselves or through what they import."""
    targets: dict[str, set[str]] = {}
    for source in sources:
        found = imports_of(source)
        targets[source.module] = {target_of(item, modules) for item in found if item.module.startswith("meshq")}
        if any(item.module.split(".")[0] in layers.IMPURE_MODULES and not is_harmless(source, item) for item in found):
            targets[source.module].add("")
    # The interfaces name what lies outside; nobody reaches it by them.
    worldly, size = {""}, 0
    while size != len(worldly):
        size = len(worldly)
        worldly |= {module for module, known in targets.items() if known & worldly and unit_of(module) != "abc"}
    return frozenset(worldly - {""})


def purity_problems(source: Source, modules: frozenset[str], worldly: frozenset[str]) -> Iterator[Problem]:
    """Deciders know neither clock nor I/O nor chance nor trio, and no module that does."""
    if not is_pure(source.path):
        return
    for imported in imports_of(source):
        top = imported.module.split(".")[0]
        if top in layers.IMPURE_MODULES and imported.name not in layers.TYPES_OF_SSL:
            yield source.problem(imported.node, f"a decider may not import {top}: pass in what it needs")
        target = target_of(imported, modules)
        if target in worldly:
            yield source.problem(imported.node, f"a decider may not import the doer {target}")


def names_of_os(source: Source, imported: Import) -> frozenset[str]:
    """What a file takes of ``os``: the imported name, or every attribute that it uses."""
    if imported.name is not None:
        return frozenset({imported.name})
    uses = [node for node in source.nodes if isinstance(node, ast.Attribute)]
    return frozenset(node.attr for node in uses if ast.unparse(node.value) == "os")


def is_harmless(source: Source, imported: Import) -> bool:
    """Whether an import of the outside world only names a path or a type."""
    top = imported.module.split(".")[0]
    if top == "ssl":
        return imported.name in layers.TYPES_OF_SSL
    return top == "os" and names_of_os(source, imported) <= layers.PATHS_OF_OS


def outside_world_problems(source: Source) -> Iterator[Problem]:
    """Files, sockets, clocks, chance and threads are reached through ``meshq.abc``."""
    allowed = layers.OUTSIDE_WORLD.get(source.unit, frozenset()) | layers.EVERYBODYS
    if source.name == "__main__.py":
        allowed |= layers.OUTSIDE_WORLD["__main__"]
    for imported in imports_of(source):
        top = imported.module.split(".")[0]
        harmless = is_harmless(source, imported)
        if top in layers.IMPURE_MODULES - allowed and not harmless:
            yield source.problem(imported.node, f"{source.unit} may not import {top}: only meshq.env reaches outside")


def dependency_problems(source: Source) -> Iterator[Problem]:
    """The core depends on little; an extra's library is imported only where it is used."""
    extra = "spark" if source.unit == "pyspark_meshq" else source.unit
    own = source.module.split(".")[0]
    allowed = layers.CORE_DEPENDENCIES | layers.EXTRA_DEPENDENCIES.get(extra, frozenset()) | {"meshq", own}
    for imported in imports_of(source):
        top = imported.module.split(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            yield source.problem(imported.node, f"{source.unit} may not depend on {top}")


def private_trio_problems(source: Source) -> Iterator[Problem]:
    """Private names of trio stand in one file, which a canary test watches."""
    if source.path.endswith("meshq/testing/_scheduler.py"):
        return
    for imported in imports_of(source):
        names = [*imported.module.split("."), imported.name or ""]
        if names[0] == "trio" and any(name.startswith("_") for name in names):
            yield source.problem(imported.node, "private names of trio belong in testing/_scheduler.py")
    for node in source.nodes:
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if ast.unparse(node.value).split(".")[0] == "trio":
            yield source.problem(node, f"private name of trio: {ast.unparse(node)}")


def cycles(graph: dict[str, frozenset[str]]) -> list[str]:
    """Units that can reach themselves: the table itself must go down."""
    problems = []
    for start in graph:
        reached, waiting = set[str](), list(graph[start] - {start})
        while waiting:
            unit = waiting.pop()
            if unit not in reached:
                reached.add(unit)
                waiting += graph.get(unit, frozenset()) - {unit}
        if start in reached:
            problems.append(start)
    return problems
