"""Rules about size and documentation."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Sequence

from tests.tidy.sources import Problem, Source

FILE_LINES_MAX = 500
FILE_LINES_MEDIAN_MAX = 250
FOLDER_FILES_MAX = 25
FUNCTION_LINES_MAX = 60
CONSTRUCTOR_PARAMETERS_MAX = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def file_problems(source: Source) -> Iterator[Problem]:
    """A file is one noun, and short."""
    if source.lines > FILE_LINES_MAX:
        yield source.problem(source.lines, f"a file has at most {FILE_LINES_MAX} lines: split it")


def median_problems(sources: Sequence[Source]) -> Iterator[Problem]:
    """Half of the files are really short.  Files of a line or two don't count."""
    sizes = [source.lines for source in sources if source.name != "__init__.py"]
    if sizes and statistics.median(sizes) >= FILE_LINES_MEDIAN_MAX:
        longest = max(sources, key=lambda source: source.lines)
        message = f"the median file has {statistics.median(sizes):.0f} lines, not under {FILE_LINES_MEDIAN_MAX}"
        yield longest.problem(1, message + "; this is the longest")


def folder_problems(sources: Sequence[Source]) -> Iterator[Problem]:
    """A folder is a shelf: a reader sees all of its files at a glance."""
    folders: dict[str, list[Source]] = {}
    for source in sources:
        if source.name != "__init__.py":
            folders.setdefault(source.path.rpartition("/")[0], []).append(source)
    for folder, files in folders.items():
        if len(files) > FOLDER_FILES_MAX:
            yield files[0].problem(1, f"{folder} has {len(files)} files, more than {FOLDER_FILES_MAX}: make rooms")


def has_docstring(node: ast.AST) -> bool:
    """Whether a module, class or function says what it is."""
    return isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None


def function_problems(source: Source) -> Iterator[Problem]:
    """The body of a function fits on a screen; its docstring and signature don't count."""
    for node in source.nodes:
        if isinstance(node, Function):
            body = node.body[1:] if has_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > FUNCTION_LINES_MAX:
                yield source.problem(node, f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}")


def _keyword(call: ast.expr | None, name: str) -> object:
    """What a call is given under this name: a constant's value, True for anything else, None if it isn't."""
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg == name:
            return keyword.value.value if isinstance(keyword.value, ast.Constant) else True
    return None


def _generates_init(decorator: ast.expr) -> bool:
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).split(".")[-1]
    return name in ("define", "frozen", "mutable", "dataclass") and _keyword(decorator, "init") is not False


def _taken_by_position(item: ast.stmt) -> bool:
    """Whether this is a field that has to be given, and may be by position.  Defaults are for names or for state."""
    if not isinstance(item, ast.AnnAssign) or "ClassVar" in ast.unparse(item.annotation):
        return False
    if item.value is None:
        return True
    field = isinstance(item.value, ast.Call) and ast.unparse(item.value.func).split(".")[-1] in ("field", "ib")
    keywords = [_keyword(item.value, name) for name in ("default", "factory", "kw_only")]
    return field and not any(keywords) and _keyword(item.value, "init") is not False


def constructor_problems(source: Source) -> Iterator[Problem]:
    """Beyond a handful, parameters are named where they are given."""
    for node in source.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        taken: list[str] = []
        for decorator in node.decorator_list:
            if _generates_init(decorator) and not _keyword(decorator, "kw_only"):
                taken = [ast.unparse(item) for item in node.body if _taken_by_position(item)]
        for item in node.body:
            if isinstance(item, Function) and item.name == "__init__":
                taken = [argument.arg for argument in [*item.args.posonlyargs, *item.args.args][1:]]
        if len(taken) > CONSTRUCTOR_PARAMETERS_MAX:
            message = f"{node.name} takes {len(taken)} parameters by position, more than {CONSTRUCTOR_PARAMETERS_MAX}"
            yield source.problem(node, message)


class Documented:
    """Which methods each class of the tree documents, so that an override may leave it to the contract."""

    def __init__(self, sources: Sequence[Source]) -> None:
        classes = [node for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)]
        self._methods = {node.name: {item.name for item in node.body if _documented(item)} for node in classes}
        self._bases = {node.name: [ast.unparse(base).split("[")[0] for base in node.bases] for node in classes}

    def inherits(self, name: str, method: str) -> bool:
        """Whether a base of class ``name`` documents ``method``."""
        waiting, seen = list(self._bases.get(name, ())), {name}
        while waiting:
            base = waiting.pop().split(".")[-1]
            if method in self._methods.get(base, ()):
                return True
            if base not in seen:
                seen.add(base)
                waiting += self._bases.get(base, ())
        return False


def _documented(node: ast.stmt) -> bool:
    return isinstance(node, Function) and has_docstring(node)


def _exempt(node: Function) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name in ("overload", "typing.overload") or name.endswith(".setter") for name in names)


def _public(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[ast.ClassDef | Function, str]]:
    """Public classes and functions, and the public methods of the former with the class's name."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node, owner
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body, node.name)


def docstring_problems(source: Source, documented: Documented) -> Iterator[Problem]:
    """Every module, and every public class, function and method says what it is."""
    if not has_docstring(source.tree):
        yield source.problem(1, "the module has no docstring")
    for node, owner in _public(source.tree.body):
        exempt = isinstance(node, Function) and (_exempt(node) or documented.inherits(owner, node.name))
        if not exempt and not has_docstring(node):
            yield source.problem(node, f"{owner + '.' if owner else ''}{node.name} has no docstring")


def coroutine_problems(source: Source, documented: Documented, names: frozenset[str]) -> Iterator[Problem]:
    """A public coroutine says when it is a checkpoint, what a cancelled call has done, and what it raises."""
    for node, owner in _public(source.tree.body):
        if not isinstance(node, ast.AsyncFunctionDef) or (owner or node.name) not in names:
            continue
        if documented.inherits(owner, node.name) and not has_docstring(node):
            continue
        text = ast.get_docstring(node) or ""
        wanted = ["Checkpoint:", "Cancellation:"]
        if any(isinstance(inner, ast.Raise) and inner.exc is not None for inner in ast.walk(node)):
            wanted.append("Raises:")
        for word in wanted:
            if word not in text:
                yield source.problem(node, f"{owner}.{node.name} doesn't say '{word}' in its docstring")
