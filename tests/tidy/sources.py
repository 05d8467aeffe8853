"""The files that the rules look at, and what a broken rule looks like."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
#: Left out where there is no git to ask, as in a source archive.
GENERATED = {".git", ".venv", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache", "_build"}


@attrs.frozen
class Problem:
    """A line that breaks a rule, and how."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@attrs.frozen
class Source:
    """One Python file: its path from the root of the repository, its text and its tree."""

    path: str
    text: str

    @classmethod
    def of(cls, path: str, text: str) -> Source:
        """A file that exists only here, for a planted example."""
        return cls(path, text)

    @functools.cached_property
    def tree(self) -> ast.Module:
        """What it says.  Read when it is asked for: every process that runs tests imports these modules."""
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, as ``ast.walk`` gives them: two dozen rules look through all of them."""
        return tuple(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        """How many lines the file has."""
        return len(self.text.splitlines())

    @property
    def module(self) -> str:
        """The module's full name, ``meshq.wire._msgpack``; a package's own is the package."""
        parts = Path(self.path).with_suffix("").parts
        return ".".join(parts[parts.index("src") + 1 :] if "src" in parts else parts).removesuffix(".__init__")

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.path).name

    @property
    def unit(self) -> str:
        """The layer's name for this file: the package below ``meshq``, or the top module itself."""
        return unit_of(self.module)

    def problem(self, where: ast.AST | int, message: str) -> Problem:
        """This file, at that node or line."""
        return Problem(self.path, where if isinstance(where, int) else getattr(where, "lineno", 1), message)


def unit_of(module: str) -> str:
    """``meshq.wire._msgpack`` is in the unit ``wire``; ``meshq`` itself is ``__init__``; ``qa`` is one unit."""
    parts = module.split(".")
    if parts[0] in ("qa", "pyspark_meshq"):
        return parts[0]
    if parts[:3] == ["meshq", "lb", "balancer"]:
        return "lb.balancer"
    return parts[1] if len(parts) > 1 else "__init__"


def within(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything in these statements, except what belongs to a function among them."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


@functools.cache
def tracked() -> tuple[str, ...]:
    """Every file of the project that exists: tracked, or new and not ignored."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        answer = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return tuple(sorted(str(path) for path in found if not GENERATED.intersection(path.parts)))
    return tuple(sorted({name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()}))


@functools.cache
def python_files(*folders: str) -> tuple[Source, ...]:
    """The Python files in these folders of the project."""
    names = [name for name in tracked() if name.endswith(".py") and name.split("/")[0] in folders]
    return tuple(map(_read, names))


@functools.cache
def _read(name: str) -> Source:
    return Source.of(name, (ROOT / name).read_text(encoding="utf-8"))


def report(problems: Iterator[Problem] | list[Problem]) -> str:
    """One line per problem: empty if all is well."""
    return "\n".join(str(problem) for problem in problems)
