"""The role of a node as programs of every face see it: in the program of the broker, and over a connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import (
    Broker,
    CallTimeoutError,
    ClusterConnection,
    HighAvailabilityInThread,
    NotActiveError,
    NotFoundError,
    RefusedError,
    ReplicationPrimary,
    SettingsError,
    SharedStoreBackup,
    SharedStorePrimary,
    UsageError,
    aio,
    blocking,
)
from meshq.node import RoleFigures
from tests.real.aio_kit import asyncio_test
from tests.real.blocking_kit import our_threads

QUICK: dict[str, Any] = {"lease": 2.0, "lock_check_period": 0.02}


def settings(place: Path, *, first: bool) -> dict[str, Any]:
    return {
        "data_dir": place / "data",
        "acceptors": ["tcp://127.0.0.1:0"],
        "services": [ClusterConnection("pair", password="theirs")],
        "ha": SharedStorePrimary(**QUICK) if first else SharedStoreBackup(**QUICK),
    }


def serves(found: RoleFigures, epoch: int) -> None:
    assert (found.role, found.phase, found.epoch) == ("primary", "active", epoch)
    assert found.acting is not None and found.acting.epoch == epoch
    assert len(found.instance) == 16 and found.since > 0 and not found.unprotected and found.last_error == ""


async def test_in_a_thread(tmp_path: Path) -> None:
    async with (
        Broker("a", **settings(tmp_path, first=True)).run_in_thread() as a,
        Broker("b", **settings(tmp_path, first=False)) as b,
    ):
        assert isinstance(a.ha, HighAvailabilityInThread)
        serves(a.ha, 1)
        with pytest.raises(NotActiveError):
            await b.ha.fail_over()
        await _once_it_waits(a.ha.fail_over, trio.sleep)
        serves(b.ha, 2)
        await a.ha.wait_for(role="backup", phase="waiting", timeout=5)
        await _once_it_waits(b.ha.fail_back, trio.sleep)
        await a.ha.wait_for(phase="active", epoch=3, timeout=5)
        with pytest.raises(CallTimeoutError, match="phase isolated"):
            await a.ha.wait_for(phase="isolated", timeout=0.1)
        with pytest.raises(RefusedError):
            await a.ha.fail_back()


async def test_errors_come_out_of_the_thread_of_a_broker(tmp_path: Path) -> None:
    async with Broker("a", **settings(tmp_path, first=True)).run_in_thread() as a:
        ha = a.ha
        for call in (ha.fail_over, ha.fail_back):
            with pytest.raises(RefusedError):
                await call()
            with pytest.raises(CallTimeoutError):
                await call(timeout=0)
        with pytest.raises(CallTimeoutError):
            await ha.wait_for(phase="isolated", timeout=0)
        with pytest.raises(UsageError):
            await ha.wait_for(role="master")
        with pytest.raises(NotActiveError, match="by replication"):
            await ha.replica("b").diff()
        with pytest.raises(NotFoundError, match="runs no backup 'x'"):
            await ha.end_backup("x")
        with pytest.raises(SettingsError, match="force"):
            await ha.end_backup("x", force="no")  # type: ignore[arg-type]
    for late in (ha.fail_over, ha.fail_back, ha.wait_for, ha.replica("b").diff, partial(ha.end_backup, "x")):
        with pytest.raises(NotActiveError):
            await late()


async def test_a_store_without_a_replica_is_compared_with_none(tmp_path: Path) -> None:
    given = {**settings(tmp_path, first=True), "ha": ReplicationPrimary()}
    async with Broker("a", **given).run_in_thread() as a:
        assert repr(a.ha.replica("b")) == "<ReplicaStore of 'b'>" and a.ha.replica("b").name == "b"
        with pytest.raises(NotFoundError, match="no node 'b' follows"):
            await a.ha.replica("b").diff()


async def _once_it_waits(call: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]]) -> None:
    """Hand the role over as soon as that is possible: whoever waits has to have renewed its registration before."""
    until = time.monotonic() + 10
    while True:
        try:
            return await call()
        except RefusedError:
            if time.monotonic() > until:
                raise
            await sleep(0.05)


def _once_it_waits_too(call: Callable[[], None]) -> None:
    """The same for a thread."""
    until = time.monotonic() + 10
    while True:
        try:
            return call()
        except RefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def test_without_async(tmp_path: Path) -> None:
    with (
        blocking.Broker("a", **settings(tmp_path, first=True)) as a,
        blocking.Broker("b", **settings(tmp_path, first=False)) as b,
    ):
        serves(a.ha, 1)
        assert repr(a.ha).startswith("<HighAvailability shared_store_primary")
        with pytest.raises(NotActiveError, match="by replication"):
            a.ha.replica("b").diff()
        while not a.ha.waiting:
            time.sleep(0.05)
        with blocking.connect(f"({a.urls[0]},{b.urls[0]})", reconnect_attempts=float("inf")) as client:
            assert client.ha().waiting == (("b", b.urls[0]),)
            _once_it_waits_too(client.fail_over)
            serves(b.ha, 2)
            a.ha.wait_for(phase="waiting", timeout=5)
            _once_it_waits_too(client.fail_back)
            serves(a.ha, 3)
            with pytest.raises(RefusedError):
                a.ha.fail_back()
        _once_it_waits_too(a.ha.fail_over)
        serves(b.ha, 4)
        with pytest.raises(NotFoundError, match="runs no backup 'x'"):
            b.ha.end_backup("x")
    for late in (b.ha.fail_over, b.ha.fail_back, b.ha.wait_for, b.ha.replica("a").diff):
        with pytest.raises(NotActiveError, match="the broker is not active"):
            late()
    assert our_threads() == []


@asyncio_test
async def test_with_asyncio(tmp_path: Path) -> None:
    async with (
        aio.Broker("a", **settings(tmp_path, first=True)) as a,
        aio.Broker("b", **settings(tmp_path, first=False)) as b,
    ):
        serves(a.ha, 1)
        while not a.ha.waiting:  # noqa: ASYNC110 - there is no event of that
            await asyncio.sleep(0.05)
        with pytest.raises(NotActiveError, match="by replication"):
            await a.ha.replica("b").diff()
        async with aio.connect(f"({a.urls[0]},{b.urls[0]})", reconnect_attempts=float("inf")) as client:
            assert (await client.ha()).acting == "a"
            await _once_it_waits(client.fail_over, asyncio.sleep)
            serves(b.ha, 2)
            await a.ha.wait_for(phase="waiting", timeout=5)
            await _once_it_waits(b.ha.fail_back, asyncio.sleep)
            assert (await client.ha()).acting == "a"
        with pytest.raises(NotFoundError, match="runs no backup 'x'"):
            await b.ha.end_backup("x")
    for late in (b.ha.fail_over, b.ha.fail_back, b.ha.wait_for, b.ha.replica("a").diff):
        with pytest.raises(NotActiveError, match="the broker is not active"):
            await late()
