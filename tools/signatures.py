"""Draws docs/signatures.md: every public name with its signature and the first sentence of what is said of it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import meshq
from meshq import errors, testing
from meshq.abc import Service
from tests.documented_errors import INNER

PAGE = Path(__file__).parents[1] / "docs" / "signatures.md"
#: What fixtures and scenarios ask of a cluster.
INNER_OF_TESTING = {"Cluster": {"close", "form", "host", "node", "report_lines", "until_healed"}}
HEAD = (
    "# Every signature\n\n"
    "This page is drawn by `python tools/signatures.py` from the code.\n"
    "It has each public name of `meshq`, its parameters with their defaults, and the first sentence about it.\n"
    "`meshq.aio` and `meshq.blocking` have the same names with the same parameters: async for tasks of asyncio, "
    "and without async.\n"
    "Those of `meshq.testing`, which are for tests, stand [at the end](#names-of-meshq-testing).\n"
    "The [reference](reference.md) has the whole text.\n"
)


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[.?])\s", text, maxsplit=1)[0].rstrip(":")


def signature_of(name: str, thing: Any) -> str:
    """``name(parameters) -> result``, with defaults as they are written."""
    signature = inspect.signature(thing)
    parameters = [one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name != "self"]
    shown = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    # Objects that have no text of their own would show where they lie in memory.
    before = ""
    while before != shown:
        before, shown = shown, re.sub(r"<(\w+)[^<>]*>", r"\1", shown)
    returned = signature.return_annotation
    result = "" if returned in (signature.empty, "None", None, "Self") else f" -> {returned}"
    return f"{'async ' if inspect.iscoroutinefunction(thing) else ''}{name}{shown}{result}"


def members(name: str, cls: type[Any]) -> Iterator[str]:
    """A line for each public method and property of a class."""
    for member, thing in inspect.getmembers_static(cls):
        if member.startswith("_") or member in INNER.get(name, ()) or member in INNER_OF_TESTING.get(name, ()):
            continue
        if issubclass(cls, Service) and hasattr(Service, member):
            # What a broker asks of its services.
            continue
        plain = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
        if isinstance(plain, property):
            yield f"- `.{member}`: {first_sentence(plain)}"
        elif inspect.isfunction(plain):
            parameters = inspect.signature(plain).parameters
            bound = getattr(cls, member) if isinstance(thing, classmethod) else plain
            yield f"- `{signature_of(f'.{member}', bound if parameters else plain)}`: {first_sentence(plain)}"


def named(module: ModuleType) -> list[tuple[str, Any]]:
    """The public names of a module, with what they stand for."""
    return [(name, getattr(module, name)) for name in module.__all__]


def entry(name: str, thing: Any, mark: str) -> str:
    """The heading of a name, ``mark`` before it, its signature, the first sentence about it, and its members."""
    has_signature = inspect.isclass(thing) or inspect.isroutine(thing)
    try:
        heading = signature_of(name, thing) if has_signature or mark == "##" else name
    except (TypeError, ValueError):
        heading = name
    lines = list(members(name, thing)) if inspect.isclass(thing) else []
    # What is said of a list of checks is said of lists in general.
    about = first_sentence(thing) if has_signature or mark == "##" else ""
    said = f"\n{about}\n" if about else ""
    return f"\n{mark} {name}\n\n`{heading}`\n{said}" + ("\n" + "\n".join(lines) + "\n" if lines else "")


def is_error(thing: Any) -> bool:
    """Whether a name is that of an error of meshq."""
    return inspect.isclass(thing) and issubclass(thing, errors.MeshqError)


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    parts += [entry(name, thing, "##") for name, thing in named(meshq) if not is_error(thing)]
    parts.append("\n## Errors\n\n")
    for name, thing in named(meshq):
        if is_error(thing):
            above = ", ".join(base.__name__ for base in thing.__bases__)
            parts.append(f"- `{name}({above})`: {first_sentence(thing)}\n")
    parts.append("\n## Names of meshq.testing\n")
    parts += [entry(name, thing, "###") for name, thing in named(testing)]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
