"""The errors of a balancer's calls, in the program of its broker and over a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import (
    Broker,
    BrokerBalancer,
    CallTimeoutError,
    Client,
    ClosedError,
    ConnectionBrokenError,
    MeshqError,
    NotActiveError,
    NotFoundError,
    SettingsError,
    UnblockedError,
    UsageError,
)
from tests.balancers.kit import Machines, machines, pool_of, url_of

CALLS: list[tuple[str, Any]] = [
    ("target", "x"),
    ("explain_route", "x"),
    ("statistics", None),
    ("set_local_target_filter", "x"),
    ("set_target_key_filter", "x"),
]


async def ask(balancer: Any, name: str, argument: Any) -> Any:
    arguments = () if argument is None else (argument,)
    return await getattr(balancer, name)(*arguments)


@asynccontextmanager
async def asked(**settings: Any) -> AsyncIterator[tuple[Machines, Client]]:
    """A front whose targets are not there, and a client of it."""
    async with machines() as made:
        pool = pool_of("a", quorum_timeout=60.0)
        await made.start("front", BrokerBalancer("lb", target_key="client_id", pool=pool), redirect_to="lb")
        async with made.dial(url_of("front"), **{"connection_ttl": 60, "call_timeout": 2, **settings}) as client:
            yield made, client


async def error_of(client: Client, name: str, argument: Any, *, balancer: str = "lb") -> MeshqError:
    with pytest.raises(MeshqError) as caught:
        await ask(client.balancer(balancer), name, argument)
    return caught.value


async def test_a_balancer_that_there_is_not_is_not_found_by_any_call() -> None:
    async with asked() as (made, client):
        for name, argument in CALLS:
            error = await error_of(client, name, argument, balancer="other")
            assert isinstance(error, NotFoundError) and "there is no balancer 'other'; known: 'lb'" in str(error)
        made.balancer().set_local_target_filter(None)
        with pytest.raises(NotFoundError, match="has no broker balancer 'other'; known: 'lb'"):
            made.brokers["front"].balancer("other")
        for wrong in ("", 7):
            with pytest.raises(SettingsError):
                client.balancer(wrong)  # type: ignore[arg-type]


async def test_a_filter_that_could_take_long_is_refused() -> None:
    async with asked() as (made, client):
        for name in ("set_local_target_filter", "set_target_key_filter"):
            with pytest.raises(SettingsError):
                getattr(made.balancer(), name)("(a+)+")
            for wrong in ("(a+)+", 7):
                error = await error_of(client, name, wrong)
                assert isinstance(error, SettingsError) and error.outcome == "not_done"


async def test_a_filter_is_not_taken_away_where_there_is_no_pool() -> None:
    async with machines() as made:
        await made.start("front", service())
        async with made.dial(url_of("front")) as client:
            with pytest.raises(UsageError, match="where there is no pool"):
                await client.balancer("lb").set_local_target_filter(None)


async def test_a_call_without_an_answer_in_time_is_unknown() -> None:
    async with asked() as (made, client):
        made.network.cut("front", "shop")
        for name, argument in CALLS:
            error = await error_of(client, name, argument)
            assert isinstance(error, CallTimeoutError) and error.outcome == "unknown"


async def test_a_call_whose_session_is_lost_is_unknown() -> None:
    async with asked(call_timeout=30, connection_ttl=2) as (made, client):
        found: list[MeshqError] = []

        async def wait(name: str, argument: Any) -> None:
            found.append(await error_of(client, name, argument))

        async with trio.open_nursery() as nursery:
            # Calls that arrive may be answered: what a dead broker has sent comes all the same, once the link is whole.
            made.network.partition(["front"], ["shop"])
            for name, argument in CALLS:
                nursery.start_soon(wait, name, argument)
            await trio.sleep(0.2)
            await made.crash("front")
            made.network.heal()
            await made.start("front")
        assert len(found) == len(CALLS)
        assert all(isinstance(error, UnblockedError) and error.outcome == "unknown" for error in found)


async def test_a_call_of_a_client_without_a_connection_is_not_done() -> None:
    async with asked() as (made, client):
        await client.close()
        for name, argument in CALLS:
            error = await error_of(client, name, argument)
            assert isinstance(error, ClosedError) and error.outcome == "not_done"
    async with machines() as made:
        await made.start("front", service())
        with pytest.raises(ConnectionBrokenError):
            async with made.dial(url_of("front"), reconnect_attempts=0) as client:
                await made.crash("front")
                with trio.CancelScope(shield=True):
                    for name, argument in CALLS:
                        error = await error_of(client, name, argument)
                        assert isinstance(error, ConnectionBrokenError)
                await trio.sleep(60)


def service() -> BrokerBalancer:
    return BrokerBalancer("lb", local_target_filter="x")


async def test_a_balancer_of_a_broker_that_is_not_active_says_so() -> None:
    broker = Broker("b", data_dir=None, services=[service()])
    found = broker.balancer("lb")
    for name, argument in CALLS:
        with pytest.raises(NotActiveError, match="the balancer 'lb' is not served"):
            result = getattr(found, name)(*(() if argument is None else (argument,)))
            await result
    with pytest.raises(SettingsError):
        BrokerBalancer("lb")


@pytest.mark.real
async def test_a_balancer_of_a_broker_in_a_thread_says_what_is_wrong() -> None:
    hosted = Broker("b", data_dir=None, services=[service()]).run_in_thread()
    found = hosted.balancer("lb")
    with pytest.raises(NotFoundError):
        hosted.balancer("other")
    async with hosted:
        for name in ("set_local_target_filter", "set_target_key_filter"):
            with pytest.raises(SettingsError):
                getattr(found, name)("(a+)+")
        with pytest.raises(SettingsError):
            found.explain_route(5)  # type: ignore[arg-type]
        assert await found.target("x") is not None
    for name, argument in CALLS:
        with pytest.raises(NotActiveError):
            result = getattr(found, name)(*(() if argument is None else (argument,)))
            await result
