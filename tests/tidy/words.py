"""Rules about words: banned identifiers, class names used twice in a layer, and riddles in docstrings.

``python -m tests.tidy.words`` lists every riddle by package, ``--names`` the identifiers and the class names, and
``--write`` lowers the ratchets of ``words.json`` to the counts of today.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

import meshq
from meshq import testing
from tests.tidy.sources import Source, python_files

RATCHETS: Final = Path(__file__).with_name("words.json")
#: Identifiers that a reader has to look up -> the field's word.
BANNED: Final[dict[str, str]] = {
    "Voice": "InternalProducer",
    "Notices": "EventBus",
    "Announcer": "NotificationPublisher",
    "pledged": "acked_in_transaction",
    "Grant": "Dispatch",
    "Gate": "ProducerCredit",
    "Gates": "ProducerCredit",
    "RunLine": "SendQueue",
    "CallLine": "PendingCalls",
    "PeerLine": "ClusterLinkChannel",
    "ReadLine": "BodyReads",
    "lane": "filter_group",
    "Lane": "FilterGroup",
    "tier": "consumer_priority_group",
    "Tier": "ConsumerPriorityGroup",
    "Level": "PriorityList",
    "Terms": "QueueSpec",
    "Traits": "DeliveryOptions",
    "RowTraits": "DeliveryOptions",
    "on_use": "auto_created",
    "passing": "auto_delete",
    "Settler": "Acknowledger",
    "Returner": "Redelivery",
    "Mover": "MessageMover",
    "Expirer": "Expiry",
    "Placer": "Ingress",
    "Entering": "RecordWriter",
    "Ledger": "ReleaseQueue, SegmentUsage",
    "Books": "JournalState",
    "Sheaf": "BatchData",
    "Pair": "PingPongFile",
    "Blank": "PreallocatedSegment",
    "Gathered": "PendingBatch",
    "Draft": "CheckpointRecord",
    "Alone": "RecordLog",
    "Tidying": "Maintenance",
    "mark_wanted": "high_watermark",
    "Excerpts": "RecordPrefix",
    "strays": "resident",
    "chaos": "failpoint",
    "Bell": "Wakeup",
    "Waiter": "Completion",
    "Promise": "Completion",
    "Opening": "Completion",
    "Borrowing": "BufferedConsumer",
    "Lending": "ConsumerTap",
    "Gathering": "BufferedProducer",
    "Feeding": "BufferedConsumer",
    "Host": "BlockRunner",
    "Hosted": "BackgroundBlock",
    "Job": "LongOperation",
    "pursue": "schedule",
    "go_on": "resume",
    "Event": "ConnectionEvent",
    "Sighting": "MessageLocation",
    "Received": "ReceivedMessage",
}
#: Where a banned identifier is the field's word after all: the parts of an integer that is computed with as a vector.
RIGHT: Final[dict[str, str]] = {"lane": "src/meshq/wire/_run_check.py"}
#: The layer of each package, as ``layers.py`` has them; the faces may carry the names of trio's face.
LAYERS: Final[dict[str, str]] = {
    **dict.fromkeys(("wire", "store", "lb"), "L1"),
    **dict.fromkeys(("broker", "client", "discovery"), "L2"),
    **dict.fromkeys(("cli", "config", "demo", "console"), "L7"),
    **{
        name: name
        for name in ("aio", "blocking", "testing", "qa", "spark", "bridge", "cluster", "ha", "node", "portal")
    },
}
_SUBJECT: Final = re.compile(
    r"(?:it|they|those|these|this one|that one|somebody|someone|nobody|no one|whoever|whatever|everybody|everyone"
    r"|anybody|something|there|what|who|none|all that|the one|one)\b",
    re.IGNORECASE,
)
_WITHIN: Final = re.compile(
    r"\b(?:somebody|someone|nobody|whoever|whatever|whichever|everybody|everyone|anybody|this one|that one"
    r"|those (?:that|who|which|of)|what)\b",
    re.IGNORECASE,
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Riddle:
    """A docstring whose first sentence needs something else to be understood."""

    path: str
    line: int
    #: The package of ``meshq``, or ``public`` where users see the docstring.
    owner: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.owner}] {self.sentence}"


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    return " ".join(re.split(r"(?<=[.!?;:])\s+(?=[A-Z`])|\n\n", text.strip())[0].split())


def is_riddle(sentence: str) -> bool:
    """Whether a first sentence has a pronoun for a subject, or says somebody, nobody, whoever or what ... is."""
    plain = re.sub(r"``[^`]*``", "``", sentence)
    return _SUBJECT.match(plain) is not None or _WITHIN.search(plain) is not None


def public_names() -> dict[str, frozenset[str]]:
    """The public classes and functions of each package that users import from."""
    names: dict[str, set[str]] = defaultdict(set)
    for name, home in meshq._HOME.items():
        names[home.split(".")[1]].add(name)
    names["testing"].update(testing._HOME)
    for source in python_files("src"):
        if source.module in ("meshq.aio", "meshq.blocking"):
            for node in source.tree.body:
                if isinstance(node, ast.ImportFrom):
                    names[source.unit].update(alias.asname or alias.name for alias in node.names)
    return {unit: frozenset(found) for unit, found in names.items()}


def riddles(sources: Sequence[Source], public: dict[str, frozenset[str]]) -> Iterator[Riddle]:
    """Every docstring of these files whose first sentence does not make sense alone."""
    for source in sources:
        for node, seen in _documented(source, public):
            text = ast.get_docstring(node)
            if text is not None and is_riddle(first_sentence(text)):
                owner = "public" if seen else source.unit
                yield Riddle(source.path, getattr(node, "lineno", 1), owner, first_sentence(text))


def _documented(source: Source, public: dict[str, frozenset[str]]) -> Iterator[tuple[Documented, bool]]:
    """Whatever may have a docstring, and whether users see it."""
    known = public.get(source.unit, frozenset())
    waiting: list[tuple[Documented, bool]] = [(source.tree, source.name == "__init__.py" or source.unit == "abc")]
    while waiting:
        node, seen = waiting.pop()
        yield node, seen
        for child in ast.iter_child_nodes(node):
            waiting += [(inner, _is_public(inner, node, seen, known, source)) for inner in _definitions(child)]


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    elif isinstance(node, ast.stmt):
        for child in ast.iter_child_nodes(node):
            yield from _definitions(child)


def _is_public(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
    parent: Documented,
    seen: bool,
    known: frozenset[str],
    source: Source,
) -> bool:
    if node.name.startswith("_"):
        return False
    if isinstance(parent, ast.Module):
        return node.name in known or source.unit == "abc"
    return seen and isinstance(parent, ast.ClassDef)


def banned_identifiers(sources: Sequence[Source]) -> Counter[str]:
    """How often each banned identifier is defined: as a class, a function, a parameter, a field or a variable."""
    return Counter(
        name
        for source in sources
        for node in source.nodes
        for name in _defined(node)
        if name.strip("_") in BANNED and RIGHT.get(name.strip("_")) != source.path
    )


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def layer_of(unit: str) -> str:
    """The layer within which a class name stands once."""
    return LAYERS.get(unit, "L0")


def repeated_classes(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Class names that stand in one layer more than once: ``L2 Name`` -> the files."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                places[f"{layer_of(source.unit)} {node.name}"].append(source.path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def counts(sources: Sequence[Source]) -> dict[str, Any]:
    """The figures that may only fall."""
    found = Counter(riddle.owner for riddle in riddles(sources, public_names()))
    return {
        "riddles": dict(sorted(found.items())),
        "banned": dict(sorted(banned_identifiers(sources).items())),
        "classes": sorted(repeated_classes(sources)),
    }


def allowed() -> dict[str, Any]:
    """The figures of the last time."""
    return dict(json.loads(RATCHETS.read_text(encoding="utf-8")))


def main() -> None:
    """List what breaks a rule, or lower the ratchets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the ratchets to the counts of today")
    parser.add_argument("--names", action="store_true", help="list identifiers and class names instead")
    parser.add_argument("packages", nargs="*", help="only riddles of these packages, or `public`")
    options = parser.parse_args()
    product = python_files("src", "qa")
    if options.write:
        RATCHETS.write_text(json.dumps(counts(product), indent=1) + "\n", encoding="utf-8")
    elif options.names:
        sys.stdout.writelines(
            f"{name.strip('_')} ({number}): say {BANNED[name.strip('_')]}\n"
            for name, number in sorted(banned_identifiers(product).items())
        )
        sys.stdout.writelines(f"{name}: {', '.join(paths)}\n" for name, paths in repeated_classes(product).items())
    else:
        found = [
            riddle
            for riddle in riddles(product, public_names())
            if riddle.owner in (options.packages or [riddle.owner])
        ]
        sys.stdout.writelines(f"{riddle}\n" for riddle in found)
        sys.stdout.write(f"{dict(sorted(Counter(riddle.owner for riddle in found).items()))}\n")


if __name__ == "__main__":
    main()
