"""Draw what ``meshq.aio`` and ``meshq.blocking`` have in common with the trio classes: ``python -m tools.draw_faces``.

Signatures and documentation of the calls that a face only hands on to the trio object are those of the trio class, and
stand there alone.  A face has them as plain code in ``_generated_*.py``, so that editors and type checkers see them.
What differs by nature (how one waits, blocks, iteration, the buffers of producer and consumer) is written by hand.

A new coroutine of a trio class is drawn without any change here.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import attrs

from meshq import client

SOURCE: Final = Path(__file__).parents[1] / "src" / "meshq"
WIDTH: Final = 120
Face = Literal["aio", "blocking"]
FACES: Final = get_args(Face)


@attrs.frozen
class Part:
    """One generated class of each face: calls of one trio class."""

    #: The file ``_generated_<file>.py``, the class in it, and its first sentence.
    file: str
    name: str
    says: str
    owner: type[Any]
    #: Names of the trio class that are drawn; or names that are not, and stand in other parts or are written by hand.
    only: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    #: What is declared of ``self``, beside ``_inner`` and ``_call``.
    declared: tuple[str, ...] = ()
    #: Methods that the class by hand has to have, for the calls that go another way.
    abstract: str = ""


#: Of the client, what is about messages; all other calls are administration, and transactions.
_MESSAGES: Final = frozenset(
    {"send", "send_many", "request", "flush", "producer", "consumer", "subscribe", "serve", "statistics"}
)
_BY_HAND: Final = frozenset({"close", "session", "events", "stop_serving", "over"})
#: What the parts of a trio class say to each other.
_INNER: Final = frozenset({"flush_now", "flush_idle", "ready", "renewed", "settle"})

PARTS: Final = (
    Part(
        "administration",
        "AdministrationCalls",
        "The calls of a client that create, delete and look at things, and those of transactions.",
        client.Client,
        beside=_MESSAGES | _BY_HAND,
        declared=("_loop: {Loop}",),
    ),
    Part(
        "client",
        "ClientCalls",
        "The calls of a client that send and receive.",
        client.Client,
        only=_MESSAGES,
        declared=("_loop: {Loop}", "_producers: OpenProducers"),
        abstract='''\
    @abstractmethod
    async def _flush(self) -> None:
        """Flush as the trio client does, including messages gathered outside the loop."""

    @abstractmethod
    {async}def _serve(
        self, queue: str, handler: Handler, *, concurrency: int, on_error: Any, window: int | None, **consumer: Any
    ) -> None:
        """Run a worker; as ``serve``."""
''',
    ),
    Part(
        "transaction",
        "TransactionCalls",
        "The calls of a transaction.",
        client.Transaction,
        beside=_INNER,
        declared=("_loop: {Loop}",),
        abstract='''\
    @abstractmethod
    async def _ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages in the loop."""
''',
    ),
)

#: Calls that go another way than to the trio object.
THROUGH: Final = {"Client.flush": "self._flush", "Transaction.ack": "self._ack"}
#: Parameters that are looked at in the caller's thread.
ADAPTED: Final = {"messages": "in_full(messages)"}
#: How a face makes its object around a trio object.
MADE: Final = {"Consumer": "Consumer(self, {})", "Producer": "Producer(self._loop, self._producers, {})"} | {
    "Transaction": "Transaction(self._call, self._loop, {})"
}
#: Where a face has its own thing of this name.
MODULES: Final = {
    "Consumer": "_consumer",
    "Delivery": "_delivery",
    "Handler": "_delivery",
    "Producer": "_producer",
    "Transaction": "_transaction",
}
LOOPS: Final = {"aio": "TaskLoop", "blocking": "ThreadLoop"}
CALLS: Final = {"aio": "TaskCall", "blocking": "ThreadCall"}

#: What is said otherwise, because the call hops to another thread or because the face is no trio.
WORDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "aio": (),
    "blocking": (
        (r"``async with``", "``with``"),
        (r"\ban async iterator\b", "an iterator"),
        (r"\btask(s?)\b", r"thread\1"),
        (r"\bthe cancellation goes on\b", "the interrupt goes on"),
    ),
}
_TAKEN: Final = ("Cancellation: the message was not taken.", "Cancellation: it was taken or not: roll back.")
OTHERWISE: Final[Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]]] = {
    "aio": {
        "Transaction.send": (_TAKEN,),
        "Client.serve": (
            (
                "A handler that is not async ends the worker.",
                "A handler that is not async ends the worker.  A ``CancelledError`` of a handler's own is an "
                "exception, too, and told as a ``RuntimeError``.",
            ),
            (
                "before the cancellation goes on.",
                "before the cancellation goes on.  A second one cancels the handlers.",
            ),
        ),
    },
    "blocking": {
        "Transaction.send": (_TAKEN,),
        "Client.serve": (
            ("A handler that is not async ends the worker.", "Neither function may be async."),
            (
                "could not be opened or has failed.",
                "could not be opened or has failed.\n\nHandlers run in threads of the worker, which end with it.",
            ),
            ("before the cancellation goes on.", "before the interrupt goes on.  A second one does not wait for them."),
        ),
    },
}


@attrs.frozen
class Method:
    """A public method or property of a trio class, as its source says it."""

    owner: str
    name: str
    text: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    #: Where its module has its names from: name -> import line.
    imports: Mapping[str, str]

    @property
    def key(self) -> str:
        """The name with its class."""
        return f"{self.owner}.{self.name}"

    @property
    def is_property(self) -> bool:
        """Whether it is looked up and not called."""
        return any(ast.unparse(one) == "property" for one in self.node.decorator_list)

    @property
    def is_async(self) -> bool:
        """Whether it is awaited."""
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def result(self) -> str:
        """The annotation of what it returns."""
        return self.words(self.node.returns)

    def words(self, node: ast.expr | None) -> str:
        """An expression as it is written."""
        found = None if node is None else ast.get_source_segment(self.text, node)
        assert found is not None, f"{self.key} is not typed"
        return " ".join(found.split())

    def parameters(self) -> Iterator[tuple[str, str]]:
        """Each parameter after ``self`` as it is declared, and as it is handed on."""
        given = self.node.args
        plain = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
        for one, default in list(zip(plain, defaults, strict=True))[1:]:
            yield self._declared(one, default), ADAPTED.get(one.arg, one.arg)
        if given.vararg is not None:
            yield f"*{self._declared(given.vararg, None)}", f"*{given.vararg.arg}"
        elif given.kwonlyargs:
            yield "*", ""
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            yield self._declared(one, default), f"{one.arg}={one.arg}"

    def _declared(self, one: ast.arg, default: ast.expr | None) -> str:
        typed = f"{one.arg}: {self.words(one.annotation)}"
        return typed if default is None else f"{typed} = {self.words(default)}"

    def names(self) -> set[str]:
        """The names in its signature, for which imports are needed."""
        found = [self.node.returns, *self.node.args.defaults, *self.node.args.kw_defaults]
        found += [one.annotation for one in ast.walk(self.node.args) if isinstance(one, ast.arg)]
        names = {one.id for node in found if node is not None for one in ast.walk(node) if isinstance(one, ast.Name)}
        return {name for name in names if not hasattr(builtins, name) and name != "Self"}


def methods_of(part: Part) -> Iterator[Method]:
    """The methods of a part by name, wherever the trio class has them from."""
    for name, value in inspect.getmembers_static(part.owner):
        function = value.fget if isinstance(value, property) else value
        drawn = name in part.only if part.only else name not in part.beside
        if name.startswith("_") or not drawn or not inspect.isfunction(function):
            continue
        function = inspect.unwrap(function)
        text = textwrap.dedent(inspect.getsource(function))
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield Method(part.owner.__name__, name, text, node, imports_of(sys.modules[function.__module__]))


def imports_of(module: Any) -> dict[str, str]:
    """Where a module has its names from; its own come from the package that passes them on."""
    found: dict[str, str] = {}
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({one.name: f"import {one.name}" for one in node.names if one.asname is None})
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            # What is private to the client has its public name in the package.
            place = "meshq.client" if node.module.startswith("meshq.client.") else node.module
            found.update({one.asname or one.name: f"from {place} import {one.name}" for one in node.names})
    own = [name for name in vars(module) if name in client.__all__]
    return {**{name: f"from meshq.client import {name}" for name in own}, **found}


# -- what is said


def said(method: Method, face: Face) -> str:
    """The documentation of a method, in the words of a face."""
    text = ast.get_docstring(method.node) or ""
    for old, new in OTHERWISE[face].get(method.key, ()):
        words = re.compile(r"\s+".join(map(re.escape, old.split())))
        assert words.search(text), f"{method.key} does not say: {old}"
        text = words.sub(lambda _, new=new: new, text, count=1)
    if face == "aio":
        # A call that hops to another thread always waits.
        text = re.sub(r"(?<=Checkpoint: ).*?(?=\s*(Cancellation:|Raises:|\Z))", "always.", text, flags=re.DOTALL)
    else:
        text = re.sub(r"Checkpoint: .*?(?=\s*(Cancellation:|Raises:|\Z))\s*", "", text, flags=re.DOTALL)
        text = text.replace("Cancellation:", "Interrupted:").rstrip()
    for old, new in WORDS[face]:
        text = re.sub(old, new, text)
    return "\n".join(_filled(text))


def _filled(text: str) -> Iterator[str]:
    """The lines of a docstring; paragraphs with a line that is too long, or far too short, are filled anew."""
    for paragraph in re.split(r"\n(?=\n|Interrupted:|Cancellation:|Checkpoint:|Raises:|    \S)", text):
        lines = paragraph.lstrip("\n").split("\n")
        blank = [""] if paragraph.startswith("\n") else []
        indents = [re.match(r" *", line).group() for line in lines[:2]]  # type: ignore[union-attr]
        joined = " ".join(line.strip() for line in lines)
        joined = re.sub(r"(?<=[.:]) (?=[A-Z`])", "  ", joined) if max(map(len, lines)) > WIDTH - 8 else ""
        if joined:
            lines = textwrap.wrap(
                joined.replace(":  ", ": "),
                WIDTH - 8,
                initial_indent=indents[0],
                subsequent_indent=indents[-1],
                break_on_hyphens=False,
                break_long_words=False,
            )
        yield from [*blank, *lines]


# -- code


def laid_out(before: str, items: Iterable[str], after: str, indent: int) -> str:
    """A list in brackets, as the formatter would lay it out."""
    there = [one for one in items if one]
    pad, line = " " * indent, f"{' ' * indent}{before}{', '.join(there)}{after}"
    if len(line) <= WIDTH:
        return line
    inner = f"{pad}    {', '.join(there)}"
    if len(inner) <= WIDTH:
        return f"{pad}{before}\n{inner}\n{pad}{after}"
    listed = "".join(f"{pad}    {one},\n" for one in there)
    return f"{pad}{before}\n{listed}{pad}{after}"


def code_of(method: Method, face: Face) -> str:
    """A method of a face."""
    forwarded = _forwarded(method) if face == "aio" else None
    if forwarded is not None:
        return forwarded
    lines = ["    @property"] if method.is_property else []
    waits = "async " if method.is_async and face == "aio" else ""
    lines.append(
        laid_out(
            f"{waits}def {method.name}(",
            ["self", *(declared for declared, _ in method.parameters())],
            f") -> {method.result}:",
            4,
        )
    )
    lines.append(textwrap.indent(f'"""{said(method, face)}', "        "))
    lines[-1] += '\n        """' if "\n" in lines[-1] else '"""'
    return "\n".join([*lines, _body(method, face)])


def _forwarded(method: Method) -> str | None:
    """The line that stands for a coroutine of the trio class whose signature and documentation hold for asyncio."""
    own = method.names() & MODULES.keys()
    adapted = any(given in ADAPTED.values() for _, given in method.parameters())
    if not method.is_async or own or adapted or method.key in THROUGH or method.key in OTHERWISE["aio"]:
        return None
    wrapped = "with_body" if any(given == "body" for _, given in method.parameters()) else "forwarded"
    return f"    {method.name}: Final = {wrapped}(trio_client.{method.key})"


def _body(method: Method, face: Face) -> str:
    given = [given for _, given in method.parameters()]
    inner = f"self._inner.{method.name}"
    if method.is_property:
        return f"        return {inner}"
    if method.name == "serve":
        return laid_out("await self._serve(" if face == "aio" else "self._serve(", given, ")", 8)
    if method.is_async:
        waits = "await " if face == "aio" else ""
        back = "" if method.result == "None" else "return "
        return laid_out(f"{back}{waits}self._call(", [THROUGH.get(method.key, inner), *given], ")", 8)
    if method.result in MADE:
        made = laid_out(f"inner = {inner}(", given, ")", 8)
        return f"{made}\n        return {MADE[method.result].format('inner')}"
    assert not given, f"{method.key} is written by hand: a plain function with parameters"
    run = "run_sync" if method.result == "None" else "run_sync_if_open"
    return f"        {'' if method.result == 'None' else 'return '}self._loop.{run}({inner})"


def imports(part: Part, methods: Iterable[Method], face: Face, code: str) -> str:
    """The import lines of a file, sorted."""
    wanted: dict[str, None] = {"from meshq import client as trio_client": None}
    for method in methods:
        if face == "aio" and _forwarded(method) is not None:
            continue
        for name in sorted(method.names()):
            own = MODULES.get(name)
            wanted[f"from meshq.{face}.{own} import {name}" if own else method.imports[name]] = None
    known = {
        "Any": "from typing import Any",
        "Final": "from typing import Final",
        "abstractmethod": "from abc import abstractmethod",
        "ABC": "from abc import ABC",
        "OpenProducers": "from meshq.portal import OpenProducers",
        "in_full": "from meshq.portal import in_full",
        "with_body": "from meshq.aio._body_pieces import with_body",
        "forwarded": "from meshq.aio._loop_thread import forwarded",
        LOOPS[face]: f"from meshq.{face}._loop_thread import {LOOPS[face]}",
        CALLS[face]: f"from meshq.{face}._loop_thread import {CALLS[face]}",
        **{name: f"from meshq.{face}.{place} import {name}" for name, place in MODULES.items()},
    }
    wanted |= {line: None for name, line in known.items() if re.search(rf"(?<![\w.`]){name}\b(?!``)", code)}
    grouped: dict[str, set[str]] = {}
    for line in wanted:
        head, _, name = line.partition(" import ")
        grouped.setdefault(f"{head} import" if name else line, set()).update([name] if name else [])
    lines = ["import " + one.removeprefix("import ") for one in grouped if not grouped[one]]
    for head, names in grouped.items():
        if names and " as " in "".join(names):
            lines += [f"{head} {name}" for name in sorted(names)]
        elif names:
            lines.append(laid_out(f"{head} (" if _long(head, names) else f"{head} ", sorted(names, key=_order), "", 0))
    theirs = sorted((one for one in lines if "meshq" not in one.split()[1]), key=_line_order)
    ours = sorted((one for one in lines if "meshq" in one.split()[1]), key=_line_order)
    return "\n".join(theirs) + "\n\n" + "\n".join(ours)


def _long(head: str, names: Iterable[str]) -> bool:
    return len(f"{head} {', '.join(names)}") > WIDTH


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def _line_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line.split()[1]


def drawn(part: Part, face: Face) -> str:
    """A whole file."""
    methods = list(methods_of(part))
    words: dict[str, str] = {"{Loop}": LOOPS[face], "{async}": "async " if face == "aio" else ""}
    abstract = part.abstract
    declared = list(part.declared)
    for old, new in words.items():
        abstract = abstract.replace(old, new)
        declared = [one.replace(old, new) for one in declared]
    base = "(ABC)" if abstract else ""
    head = f'class {part.name}{base}:\n    """{part.says}{_about(part)}"""\n'
    fields = "".join(
        f"    {one}\n" for one in (f"_inner: trio_client.{part.owner.__name__}", f"_call: {CALLS[face]}", *declared)
    )
    lines: list[str] = []
    last = ""
    for method in methods:
        code = code_of(method, face)
        single = "\n" not in code
        lines.append(("" if single and last == "single" else "\n") + code)
        last = "single" if single else "many"
    body = f"{head}\n{fields}" + ("\n" + abstract.rstrip("\n") + "\n" if abstract else "") + "\n".join(lines) + "\n"
    source = f"``meshq.{part.owner.__name__}``"
    return (
        f'"""{part.says}\n\nDrawn by ``python -m tools.draw_faces`` from {source}: change that.\n"""'
        f"\n\nfrom __future__ import annotations\n\n{imports(part, methods, face, body)}\n\n\n{body}"
    )


def _about(part: Part) -> str:
    """What the class of the trio face says beyond its first sentence, for errors that refer to it."""
    if part.file != "administration":
        return ""
    return (
        "\n\n    Each is sent once.  ``CallTimeoutError``, ``UnblockedError`` and ``ConnectionBrokenError`` say in "
        "``outcome``\n    whether it may have been carried out; repeating it does no harm.\n    "
    )


def files() -> dict[Path, str]:
    """Every generated file as it should be."""
    return {
        SOURCE / face / f"_generated_{part.file}.py": drawn(part, face)  # type: ignore[arg-type]
        for face in FACES
        for part in PARTS
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
