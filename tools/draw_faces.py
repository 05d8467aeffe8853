"""Draw what ``meshq.aio`` and ``meshq.blocking`` have in common with the trio classes: ``python -m tools.draw_faces``.

Signatures and documentation of the calls that a face only hands on to the trio object are those of the trio class, and
stand there alone.  A face has them as plain code in ``_generated_*.py``, so that editors and type checkers see them.
What differs by nature (how one waits, blocks, iteration, the buffers of producer and consumer) is written by hand,
and its methods get the documentation of the trio class.

A new coroutine of a trio class is drawn without any change here.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from tools.face_words import ADAPTED, FACES, OTHERWISE, WIDTH, Face, Method, method_of, said

from meshq import client, cluster, network
from meshq.lb import balancer

SOURCE: Final = Path(__file__).parents[1] / "src" / "meshq"


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
    {"send", "send_many", "request", "flush", "producer", "consumer", "subscribe", "serve", "statistics", "topology"}
    | {"cursor", "cursors", "delete_cursor"}
)
#: What is about stages and batches.
_STAGES: Final = frozenset({"stage", "commit_batch", "abandon_batch", "sinks", "stages", "delete_sink"})
#: What is about high availability.
_ROLES: Final = frozenset({"ha", "fail_over", "fail_back", "end_backup"})
_BY_HAND: Final = frozenset({"close", "session", "events", "stop_serving", "over", "balancer"})
#: What the parts of a trio class say to each other.
_INNER: Final = frozenset({"flush_now", "flush_idle", "ready", "renewed", "settle"})

PARTS: Final = (
    Part(
        "administration",
        "AdministrationCalls",
        "The calls of a client that create, delete and inspect queues and the like, and the calls of transactions.",
        client.Client,
        beside=_MESSAGES | _STAGES | _ROLES | _BY_HAND,
        declared=("_block: {Block}",),
    ),
    Part(
        "stages",
        "StageCalls",
        "The calls of a client that write stages and decide about batches, and those about high availability.",
        client.Client,
        only=_STAGES | _ROLES,
        declared=("_block: {Block}",),
    ),
    Part(
        "client",
        "ClientCalls",
        "The calls of a client that send and receive.",
        client.Client,
        only=_MESSAGES,
        declared=("_block: {Block}", "_loop: {Loop}", "_producers: OpenProducers"),
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
        "cursor",
        "CursorCalls",
        "The calls of a cursor.",
        client.Cursor,
        beside=frozenset({"release", "browse"}),
        declared=("_block: {Block}",),
    ),
    Part(
        "transaction",
        "TransactionCalls",
        "The calls of a transaction.",
        client.Transaction,
        beside=_INNER,
        declared=("_block: {Block}",),
        abstract='''\
    @abstractmethod
    async def _ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages in the loop."""
''',
    ),
)

#: Calls that go another way than to the trio object.
THROUGH: Final = {"Client.flush": "self._flush", "Transaction.ack": "self._ack"}
#: How a face makes its object around a trio object.
MADE: Final = {"Consumer": "Consumer(self, {})", "Producer": "Producer(self._block, self._producers, {})"} | {
    "Cursor": "Cursor(self, {})",
    "Transaction": "Transaction(self._block, {})",
}
#: Where a face has its own thing of this name.
MODULES: Final = {
    "Consumer": "_consumer",
    "Cursor": "_cursor",
    "Delivery": "_delivery",
    "Handler": "_delivery",
    "Producer": "_producer",
    "Transaction": "_transaction",
}
#: Classes written by hand, whose methods have the documentation of the trio class; and those whose calls hop.
BY_HAND: Final[Mapping[str, type[Any]]] = {
    "BodyStream": client.BodyStream,
    "BrokerBalancer": balancer.BrokerBalancer,
    "Client": client.Client,
    "ClientBalancer": client.ClientBalancer,
    "ClientFactory": client.ClientFactory,
    "ClusterConnection": cluster.ClusterConnection,
    "Consumer": client.Consumer,
    "Cursor": client.Cursor,
    "Delivery": client.Delivery,
    "EventStream": client.EventStream,
    "NetworkConnector": network.NetworkConnector,
    "Producer": client.Producer,
    "Transaction": client.Transaction,
}
HOPPING: Final = (
    client.BodyStream,
    balancer.BrokerBalancer,
    client.Client,
    client.ClientBalancer,
    client.Cursor,
    cluster.ClusterConnection,
    network.NetworkConnector,
    client.Transaction,
)
DUNDERS: Final = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__next__": "__anext__"}
LOOPS: Final = {"aio": "TaskLoop", "blocking": "ThreadLoop"}
BLOCKS: Final[dict[Face, str]] = {"aio": "TaskBlockRunner", "blocking": "ThreadBlockRunner"}
CALLS: Final = {"aio": "TaskCall", "blocking": "ThreadCall"}


def methods_of(part: Part) -> Iterator[Method]:
    """The methods of a part by name."""
    for name, _ in inspect.getmembers_static(part.owner):
        drawn = name in part.only if part.only else name not in part.beside
        method = method_of(part.owner, name) if drawn and not name.startswith("_") else None
        if method is not None:
            yield method


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
    return "\n".join([*lines, quoted(said(method, face)), _body(method, face)])


def quoted(text: str) -> str:
    """The docstring of a method."""
    lines = textwrap.indent(f'"""{text}', "        ")
    return f'{lines}\n        """' if "\n" in lines or len(lines) + 3 > WIDTH else f'{lines}"""'


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
    if method.result == "None":
        return f"        self._block.run_sync({inner})"
    return f"        return self._loop.run_sync_if_open({inner})"


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
        BLOCKS[face]: f"from meshq.{face}._block_runner import {BLOCKS[face]}",
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
            found = sorted(names, key=_order)
            many = "(\n" + "".join(f"    {name},\n" for name in found) + ")"
            lines.append(f"{head} {many if _long(head, names) else ', '.join(found)}")
    theirs = sorted((one for one in lines if "meshq" not in one.split()[1]), key=_line_order)
    ours = sorted((one for one in lines if "meshq" in one.split()[1]), key=_line_order)
    return "\n\n".join("\n".join(part) for part in (theirs, ours) if part)


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
    waits = "async " if face == "aio" else ""
    words: dict[str, str] = {"{Loop}": LOOPS[face], "{Block}": BLOCKS[face], "{async}": waits}
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


# -- what is written by hand


def said_anew(text: str, face: Face) -> str:
    """A file written by hand, with the documentation of the trio class at each method that the trio class has, too."""
    lines = text.split("\n")
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name in BY_HAND]
    for made in classes[::-1]:
        owner = BY_HAND[made.name]
        for node in made.body[::-1]:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or ast.get_docstring(node) is None:
                continue
            name = DUNDERS.get(node.name, node.name)
            method = method_of(owner, name) if not node.name.startswith("_") or name in DUNDERS.values() else None
            if method is not None and ast.get_docstring(method.node):
                doc = node.body[0]
                lines[doc.lineno - 1 : doc.end_lineno] = quoted(said(method, face, hops=owner in HOPPING)).split("\n")
    return "\n".join(lines)


def files() -> dict[Path, str]:
    """Every file of the faces that is drawn, whole or in part, as it should be."""
    found: dict[Path, str] = {}
    for face in FACES:
        found |= {SOURCE / face / f"_generated_{part.file}.py": drawn(part, face) for part in PARTS}
        for path in sorted((SOURCE / face).glob("_*.py")):
            if path not in found and not path.name.startswith("_generated_"):
                found[path] = said_anew(path.read_text(encoding="utf-8"), face)
    return found


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
