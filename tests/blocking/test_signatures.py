"""``meshq.blocking`` is the same client and the same broker: name by name, default by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import meshq
from meshq import blocking
from meshq.client import EventStream
from tests.documented_errors import GIVEN_TO_FACES, INNER, RESULTS_OF_FACES, TRIO_ALONE, errors_named

PAIRS = {
    **{name: (getattr(meshq, name), getattr(blocking, name)) for name in blocking.__all__ if name in meshq._HOME},
    "EventStream": (EventStream, blocking.EventStream),
}
DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__repr__": "__repr__",
}
#: Made by the user, and not by a client.
BUILT = ("Broker", "ClientFactory")


def members(name: str) -> list[tuple[str, Any, Any]]:
    """Each public member of a trio class, and the one that a thread uses instead."""
    there, here = PAIRS[name]
    found = []
    for member, value in inspect.getmembers(there):
        if member in {*INNER.get(name, ()), *TRIO_ALONE.get(name, ())}:
            continue
        if member.startswith("_") and member not in DUNDERS:
            continue
        found.append((f"{name}.{member}", value, getattr(here, DUNDERS.get(member, member), None)))
    if name in BUILT:
        found.append((f"{name}.__init__", there.__init__, here.__init__))
    return found


def everything() -> list[tuple[str, Any, Any]]:
    """Each pair of members of every class, and of functions."""
    pairs = [pair for name, (there, _) in PAIRS.items() if inspect.isclass(there) for pair in members(name)]
    return [*pairs, *[(name, *pair) for name, pair in PAIRS.items() if not inspect.isclass(pair[0])]]


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    """Names, kinds, defaults and types; how a task of trio is started is none of a thread's business."""
    found = inspect.signature(function).parameters.values()
    return [
        (p.name, p.kind, p.default, GIVEN_TO_FACES.get(p.annotation, p.annotation))
        for p in found
        if p.name != "task_status"
    ]


ALL = everything()
FUNCTIONS = [pair for pair in ALL if inspect.isfunction(pair[1])]


def test_everything_that_a_client_and_a_broker_hand_out_has_its_counterpart() -> None:
    names = """BodyStream Broker BrokerBalancer Client ClientBalancer ClientFactory ClusterConnection Consumer Cursor
        Delivery EventStream HighAvailability NetworkConnector Producer ReplicaStore
        Transaction connect"""
    assert set(PAIRS) == set(names.split())
    assert len(FUNCTIONS) > 50


@pytest.mark.parametrize(("name", "there", "here"), ALL, ids=[pair[0] for pair in ALL])
def test_the_name_is_there_and_is_the_same_kind_of_thing(name: str, there: Any, here: Any) -> None:
    assert here is not None, f"meshq.blocking has no {name}"
    assert isinstance(there, property) == isinstance(here, property)
    assert inspect.isfunction(there) == inspect.isfunction(here)


@pytest.mark.parametrize(("name", "there", "here"), FUNCTIONS, ids=[pair[0] for pair in FUNCTIONS])
def test_the_signature_is_the_same_without_async(name: str, there: Any, here: Any) -> None:
    assert not inspect.iscoroutinefunction(here)
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
