"""Which errors the docstrings of the public API name, and which tests show that they are raised.

One face of the API is read, that for trio; ``meshq.blocking`` and ``meshq.aio`` are held against it elsewhere.
"""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

import meshq
from meshq.abc import Redirector, Service
from meshq.client import EventStream

TABLE: Final = Path(__file__).with_name("documented_errors.toml")
#: What a broker asks of its services.
SERVICE_MEMBERS: Final = frozenset(name for name in vars(Service) if not name.startswith("_"))
#: Services are objects of the broker's own loop: the other faces return a class that calls into that loop.
RESULTS_OF_FACES: Final = {"Broker.service": "ServiceInThread"}
#: What faces are given is of the trio face, and has another name where the face has something of that name.
GIVEN_TO_FACES: Final = {"ServedConnector": "NetworkConnector"}
#: For trio programs: the other faces run their brokers in threads anyway, and drain these by a stop.
TRIO_ALONE: Final = {"Broker": {"run_in_thread", "drain"}}
#: What the parts of the trio client and broker say to each other.
INNER: Final = {
    "Client": {"over"},
    "ClientFactory": {"link", "log_link", "probe"},
    "BroadcastGroup": SERVICE_MEMBERS,
    "BrokerBalancer": SERVICE_MEMBERS | {name for name in vars(Redirector) if not name.startswith("_")},
    "ClusterConnection": SERVICE_MEMBERS,
    "DiscoveryGroup": SERVICE_MEMBERS,
    "NetworkConnector": SERVICE_MEMBERS,
    # What a group asks of its endpoint.
    **{key: {"open", "open_sender"} for key in ("SharedDirectory", "StaticUnicast", "UDPMulticast")},
    "Consumer": {"opened", "failed", "changed", "settles_itself"},
    "Transaction": {"flush_now", "flush_idle", "ready", "renewed", "settle"},
    "Producer": {"flush_now", "flush_idle", "run_settled", "run_sent", "producer_opened", "producer_failed"},
}
#: Inner for programs of every face.
SERVICE: Final = {"Bridge": SERVICE_MEMBERS}
DUNDERS: Final = ("__aenter__", "__aexit__", "__aiter__", "__anext__")
_ENTRY: Final = re.compile(r"((?:\w+, )*\w+): \S")
_ERROR: Final = re.compile(r"[A-Z]\w*(?:Error|Iteration)\b")


@attrs.frozen(order=True)
class Pair:
    """One error that one public callable names."""

    callable: str
    error: str
    #: The class whose text stands for it, where the docstring says "see the class".
    see: str | None = None


def errors_named(function: Callable[..., Any]) -> set[str]:
    """The errors in the ``Raises:`` part of a docstring."""
    text = (inspect.getdoc(function) or "").partition("Raises:")[2]
    return {name.replace("StopAsync", "Stop") for name in re.findall(r"\b\w+(?:Error|Iteration)\b", text)}


def entries(doc: str) -> Iterator[tuple[str, str]]:
    """Each error of a docstring's ``Raises:`` part, and the sentence beside it."""
    _, found, part = doc.partition("Raises:")
    if not found:
        return
    text, names = "", []
    for line in part.splitlines():
        start = _ENTRY.match(line.strip())
        if start is not None and _ERROR.match(line.strip()):
            yield from ((name, text.strip()) for name in names)
            names, text = start.group(1).split(", "), line.strip()
        else:
            text += " " + line.strip()
    yield from ((name, text.strip()) for name in names)


def things() -> dict[str, Any]:
    """The public names, and what a client hands out besides."""
    found = {name: getattr(meshq, name) for name in meshq.__all__} | {"EventStream": EventStream}
    return {
        name: thing
        for name, thing in sorted(found.items())
        if not (inspect.isclass(thing) and issubclass(thing, BaseException))
    }


def callables() -> Iterator[tuple[str, str]]:
    """Everything public that is called, as Class.method, Class or function; and its docstring."""
    classes = [thing for thing in things().values() if inspect.isclass(thing)]
    for name, thing in things().items():
        yield name, inspect.getdoc(thing) or ""
        if not inspect.isclass(thing):
            continue
        hidden = INNER.get(name, set()) | SERVICE.get(name, set())
        # What a public class has from another one is told there.
        above = {member for base in thing.__mro__[1:] if base in classes for member in vars(base)}
        for member, value in inspect.getmembers_static(thing):
            if member not in hidden | above - vars(thing).keys() and (not member.startswith("_") or member in DUNDERS):
                called = getattr(value, "fget", None) or getattr(value, "__func__", value)
                yield f"{name}.{member}", (inspect.getdoc(called) if callable(called) else None) or ""


def pairs() -> list[Pair]:
    """Every error that every public callable names."""
    return [
        Pair(name, error, name.partition(".")[0] if "see the class" in text else None)
        for name, doc in callables()
        for error, text in entries(doc)
    ]


def unread() -> Iterator[str]:
    """Docstrings that promise errors and name none in the way that is read, or name what is no error."""
    for name, doc in callables():
        found = [error for error, _ in entries(doc)]
        if "Raises:" in doc and not found:
            yield f"{name}: 'Raises:' is followed by NAME, NAME: sentence"
        if set(found) != set(_ERROR.findall(doc.partition("Raises:")[2])):
            yield f"{name}: an error is named outside of NAME, NAME: sentence"
        yield from (f"{name}: there is no {error}" for error in found if not _exists(error))


def _exists(error: str) -> bool:
    found = getattr(meshq, error, None) or getattr(builtins, error, None)
    return inspect.isclass(found) and issubclass(found, Exception)


def problems(wanted: list[Pair], table: Mapping[str, Any], tests: frozenset[str]) -> Iterator[str]:
    """What a table of pairs and their tests lacks, has too much, or says wrongly."""
    keys = {(f"{pair.see}.*" if pair.see else pair.callable, pair.error) for pair in wanted}
    there = {(name, error) for name, errors in table.items() for error in errors}
    for name, error in sorted(keys - there):
        yield f"{name} names {error}, and no test shows it: add '{error} = [...]' to [\"{name}\"]"
    for name, error in sorted(there - keys):
        yield f"{name} names no {error}: take it out of the table"
    for name, error in sorted(there):
        shown = table[name][error]
        if type(shown) is not list or not shown or not all(type(test) is str for test in shown):
            yield f"{name} {error}: no list of node ids"
            continue
        yield from (f"{name} {error}: there is no test {test}" for test in shown if test not in tests)
