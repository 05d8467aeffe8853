"""``meshq.aio`` is the same client and the same broker: name by name, default by default, async where that one is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import meshq
from meshq import aio, blocking
from meshq.client import EventStream
from tests.blocking.test_signatures import BUILT, parameters
from tests.documented_errors import INNER, RESULTS_OF_FACES, TRIO_ALONE, errors_named

PAIRS = {
    **{name: (getattr(meshq, name), getattr(aio, name)) for name in aio.__all__ if name in meshq._HOME},
    "EventStream": (EventStream, aio.EventStream),
}
DUNDERS = ("__aenter__", "__aexit__", "__aiter__", "__anext__", "__repr__")


def members(name: str) -> list[tuple[str, Any, Any]]:
    """Each public member of a trio class, and the one that a task of asyncio uses instead."""
    there, here = PAIRS[name]
    names = [name for name, _ in inspect.getmembers(there) if not name.startswith("_") or name in DUNDERS]
    names = [member for member in names if member not in {*INNER.get(name, ()), *TRIO_ALONE.get(name, ())}]
    if name in BUILT:
        names.append("__init__")
    return [(f"{name}.{member}", getattr(there, member), getattr(here, member, None)) for member in names]


def everything() -> list[tuple[str, Any, Any]]:
    """Each pair of members of every class, and of functions."""
    pairs = [pair for name, (there, _) in PAIRS.items() if inspect.isclass(there) for pair in members(name)]
    return [*pairs, *[(name, *pair) for name, pair in PAIRS.items() if not inspect.isclass(pair[0])]]


ALL = everything()
FUNCTIONS = [pair for pair in ALL if inspect.isfunction(pair[1])]


def test_everything_that_there_is_for_threads_is_there_for_asyncio() -> None:
    assert aio.__all__ == blocking.__all__
    assert set(PAIRS) == set(aio.__all__)
    assert len(FUNCTIONS) > 50


@pytest.mark.parametrize(("name", "there", "here"), ALL, ids=[pair[0] for pair in ALL])
def test_the_name_is_there_and_is_the_same_kind_of_thing(name: str, there: Any, here: Any) -> None:
    assert here is not None, f"meshq.aio has no {name}"
    assert isinstance(there, property) == isinstance(here, property)
    assert inspect.isfunction(there) == inspect.isfunction(here)
    assert inspect.iscoroutinefunction(there) == inspect.iscoroutinefunction(here)


@pytest.mark.parametrize(("name", "there", "here"), FUNCTIONS, ids=[pair[0] for pair in FUNCTIONS])
def test_the_signature_is_the_same(name: str, there: Any, here: Any) -> None:
    assert parameters(here) == parameters(there)
    expected = RESULTS_OF_FACES.get(name, inspect.signature(there).return_annotation)
    assert inspect.signature(here).return_annotation == expected


@pytest.mark.parametrize(("name", "there", "here"), FUNCTIONS, ids=[pair[0] for pair in FUNCTIONS])
def test_the_docstring_names_the_same_errors(name: str, there: Any, here: Any) -> None:
    assert errors_named(there) <= errors_named(here)
    assert bool(inspect.getdoc(there)) <= bool(inspect.getdoc(here))


def test_no_public_name_is_there_that_the_trio_api_does_not_have() -> None:
    for name, (there, here) in PAIRS.items():
        if inspect.isclass(there):
            mine = {member for member in dir(here) if not member.startswith("_")}
            assert mine <= {member for member in dir(there) if not member.startswith("_")}, name
