"""What asks for another role says why it does not come."""

from __future__ import annotations

import pytest
import trio

from meshq import (
    CallTimeoutError,
    NotActiveError,
    RefusedError,
    SharedStoreBackup,
    SharedStorePrimary,
    UsageError,
)
from tests.ha.test_shared_store_brokers import pair, start


async def test_a_hand_over_without_a_successor_is_refused_and_a_waiting_node_has_nothing_to_hand_over() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        for call in (a.ha.fail_over, a.ha.fail_back):
            with pytest.raises(RefusedError) as refused:
                await call()
            assert refused.value.outcome == "not_done"
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        for call in (b.ha.fail_over, b.ha.fail_back):
            with pytest.raises(NotActiveError, match="'a' at"):
                await call()
        assert (a.state, b.state) == ("active", "waiting")
        nursery.cancel_scope.cancel()


async def test_a_hand_over_that_takes_too_long_has_an_unknown_outcome() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary(lease=1.0)))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup(lease=1.0)))
        await trio.sleep(1)
        for serves, call in ((a, a.ha.fail_over), (b, b.ha.fail_back)):
            assert serves.state == "active"
            # Nobody can begin an epoch.
            ground.disk.faults.inject("move_directory", error=5, times=float("inf"))
            with pytest.raises(CallTimeoutError, match=f"from '{serves.name}' within 0.5 s") as late:
                await call(timeout=0.5)
            assert late.value.outcome == "unknown"
            ground.disk.faults.clear()
            other = b if serves is a else a
            await other.ha.wait_for(phase="active", timeout=20)
            await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def test_a_client_is_told_when_nobody_follows_a_failback() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        b = await start(ground, nursery, ground.broker("b", SharedStoreBackup()))
        await trio.sleep(1)
        async with ground.client() as client:
            await client.fail_over()
            assert b.state == "active"
            await trio.sleep(1)
            ground.disk.faults.inject("move_directory", error=5, times=float("inf"))
            with pytest.raises(CallTimeoutError) as late:
                await client.fail_back(timeout=1)
            assert late.value.outcome == "unknown"
            ground.disk.faults.clear()
        nursery.cancel_scope.cancel()


async def test_a_wait_says_what_is_missing_and_which_roles_there_are() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a = await start(ground, nursery, ground.broker("a", SharedStorePrimary()))
        with pytest.raises(CallTimeoutError, match=r"role backup \(it is primary\), epoch 5 \(it is 1\)"):
            await a.ha.wait_for(role="backup", epoch=5, timeout=1)
        with pytest.raises(UsageError, match="'master' is no role; allowed: live_only, primary, backup"):
            await a.ha.wait_for(role="master")
        nursery.cancel_scope.cancel()
