"""What may not be written, because a simulation could not repeat it or a failure would go unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from meshq.wire import BY_NAME
from tests.tidy import layers
from tests.tidy.sources import Problem, Source, within

#: Calls that reach the outside world, and who may make them.
BANNED_CALLS: dict[str, tuple[frozenset[str], str]] = {
    "open": (frozenset({"env"}), "files are opened by meshq.env"),
    "io.open": (frozenset({"env"}), "files are opened by meshq.env"),
    "input": (frozenset(), "a library asks nobody"),
    "breakpoint": (frozenset(), "left over from a search"),
    "eval": (frozenset(), "data is never code"),
    "exec": (frozenset(), "data is never code"),
    "print": (frozenset({"cli", "demo", "console", "__main__"}), "a library prints nothing: return it or log it"),
    "trio.to_thread.run_sync": (frozenset({"env"}), "threads are started by meshq.env"),
    "trio.open_file": (frozenset({"env"}), "files are opened by meshq.env"),
    "trio.open_tcp_stream": (frozenset({"env"}), "sockets are opened by meshq.env"),
    "trio.run_process": (frozenset({"cli", "demo", "env"}), "processes are started by meshq.env"),
}
#: Names of modules whose every call is one of those.
BANNED_PREFIXES = ("trio.socket.", "trio.Path", "datetime.datetime.now", "datetime.now", "datetime.utcnow")
SETS = (ast.Set, ast.SetComp)


def call_problems(source: Source) -> Iterator[Problem]:
    """Calls that only meshq.env, or only a program, may make."""
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        allowed, reason = BANNED_CALLS.get(name, (frozenset({source.unit}), ""))
        if source.unit not in allowed and not (source.name == "__main__.py" and "__main__" in allowed):
            yield source.problem(node, f"{name}(): {reason}")
        if name.startswith(BANNED_PREFIXES) and source.unit not in ("env", "testing"):
            yield source.problem(node, f"{name}(): only meshq.env reaches outside")


def finaliser_problems(source: Source) -> Iterator[Problem]:
    """What runs when the garbage collector likes can't be repeated."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield source.problem(node, "__del__ runs whenever the collector likes: close in a block")


#: Where the code of somebody else may fail in any way, and ends nothing but itself: a broker that is hosted, and the
#: stop of a service behind a block that has to end its task all the same.
OTHERS = (
    "src/meshq/node/hosting/_backup_host.py",
    "src/meshq/concurrency/_background_block.py",
)


def broad_except_problems(source: Source) -> Iterator[Problem]:
    """A broad except raises again."""
    if source.path in OTHERS:
        return
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = [ast.unparse(node.type)] if node.type is not None else ["Exception"]
        if isinstance(node.type, ast.Tuple):
            names = [ast.unparse(item) for item in node.type.elts]
        broad = [name for name in names if name in ("Exception", "BaseException", "builtins.Exception")]
        if broad and not any(isinstance(inner, ast.Raise) for inner in within(node.body)):
            yield source.problem(node, f"except {broad[0]} that does not raise again: name what you expect")


def async_generator_problems(source: Source) -> Iterator[Problem]:
    """An async generator that is not exhausted is finalised by the collector; context managers are."""
    for node in source.nodes:
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        names = [ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list]
        yields = any(isinstance(inner, ast.Yield) for inner in within(node.body))
        # pytest-trio takes a fixture to its end.
        if yields and not {"asynccontextmanager", "simulated_fixture"}.intersection(names):
            yield source.problem(node, f"{node.name} is an async generator: write a class with __anext__")


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    return isinstance(node, SETS)


def set_order_problems(source: Source) -> Iterator[Problem]:
    """The order of a set differs from run to run: sort it, or take a dict."""
    for node in source.nodes:
        iterated: list[ast.expr] = []
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            iterated = [node.iter]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("list", "tuple", "enumerate", "iter", "next"):
            iterated = node.args[:1]
        for item in iterated:
            if _is_set(item):
                yield source.problem(item, f"iterates a set ({ast.unparse(item)}): sort it, or take a dict")


def state_problems(source: Source) -> Iterator[Problem]:
    """Two brokers in a process share nothing: no module has a state of its own."""
    mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    for node in source.nodes:
        if isinstance(node, ast.Global):
            yield source.problem(node, f"global {', '.join(node.names)}: no module has a state of its own")
    for node in source.tree.body:
        if isinstance(node, ast.Assign):
            names, value, final = [ast.unparse(target) for target in node.targets], node.value, False
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names, value, final = [ast.unparse(node.target)], node.value, "Final" in ast.unparse(node.annotation)
        else:
            continue
        made = isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in (
            ("list", "dict", "set", "defaultdict", "deque", "OrderedDict", "Counter", "WeakValueDictionary")
        )
        constant = final or names[0].isupper() or names == ["__all__"]
        if (isinstance(value, mutable) and not constant) or (made and not final and names != ["__all__"]):
            yield source.problem(node, f"{names[0]} is mutable state of the module, or lacks Final")


#: What says that the outside has failed, and how.
BROKEN: Final = frozenset(
    {"BrokenError", "ConnectionBrokenError", "UnblockedError", "JournalBrokenError", "CallTimeoutError"}
)
#: How ``decline`` is asked for one of these.
DECLINED: Final = frozenset(name for name, entry in BY_NAME.items() if entry.error.__name__ in BROKEN)


def cause_problems(source: Source) -> Iterator[Problem]:
    """An error that says that the outside has failed says how: it is raised ``from`` that, or ``caused`` by it."""
    for function in source.nodes:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = list(within(function.body))
        known: set[int] = set()
        names: set[str] = set()
        for node in inside:
            if isinstance(node, ast.Raise) and node.cause is not None and node.exc is not None:
                known.add(id(node.exc))
                names.add(ast.unparse(node.exc))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "caused" and node.args:
                known.add(id(node.args[0]))
                names.add(ast.unparse(node.args[0]))
        for node in inside:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names:
                known.add(id(node.value))
        for node in inside:
            if isinstance(node, ast.Call) and _says_broken(node) and id(node) not in known:
                yield source.problem(node, f"{_says_broken(node)} without a cause: say from what, or use caused()")
            if isinstance(node, ast.Raise) and _forgets(node):
                yield source.problem(node, "a raise of what was caught from None forgets its cause")


def _says_broken(node: ast.Call) -> str:
    """How a call makes an error that says that the outside has failed; empty if it makes none."""
    name = ast.unparse(node.func)
    if name in BROKEN:
        return name
    entry = node.args[0] if name == "decline" and node.args else None
    declined = isinstance(entry, ast.Constant) and entry.value in DECLINED
    return f"decline({ast.unparse(node.args[0])})" if declined else ""


def _forgets(node: ast.Raise) -> bool:
    """Whether an error that was made elsewhere is raised ``from None``."""
    none = isinstance(node.cause, ast.Constant) and node.cause.value is None
    taken = isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) in ("first_error", "_alone", "copied_error")
    return none and (taken or (isinstance(node.exc, ast.Name) and node.exc.id.islower()))


def package_problems(source: Source) -> Iterator[Problem]:
    """A package's __init__ only imports and lists its names; its modules are private.

    A room inside a package is for that package alone: its __init__ may say what it is for, and offer nothing.
    """
    folders = source.module.split(".")
    if source.name != "__init__.py":
        public = ("__main__.py", *PUBLIC_MODULES.get(source.unit, ()))
        if len(folders) > 2 and not source.name.startswith("_") and source.name not in public:
            yield source.problem(1, f"a module inside a package is private: _{source.name}")
        return
    if source.module in ("meshq", "meshq.testing"):
        # Tables of names, loaded on first use.
        return
    for position, node in enumerate(source.tree.body):
        docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not (docstring or names or isinstance(node, ast.Import | ast.ImportFrom)):
            yield source.problem(node, "a package's __init__ has only imports and __all__")
    silent_room = source.unit in ROOMS and len(folders) > 2 and len(source.tree.body) == 1
    if not silent_room and not any(isinstance(node, ast.Assign) for node in source.tree.body):
        yield source.problem(1, "a package's __init__ lists its public names in __all__")


#: Packages that have rooms, folders of their own.
ROOMS = frozenset({"broker", "testing", *layers.ROOMS})
#: Modules in packages that are commands or plugins, and so have a public name.
PUBLIC_MODULES: dict[str, tuple[str, ...]] = {"testing": ("new_test.py", "plugin.py")}
