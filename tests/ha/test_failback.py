"""A backup gives the store back to a primary that returns: when it serves, and not to and fro."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from meshq.abc import Activation, StepBack
from meshq.ha import SharedStoreBackup, SharedStorePrimary
from meshq.ha._turns_plan import FAILBACK_PAUSE_LEASES, FailbackPlan
from tests.ha.stores import Store


@pytest.mark.parametrize("allowed", [False, True])
async def test_an_acting_backup_steps_back_for_a_primary_if_its_policy_allows_it(allowed: bool) -> None:
    store = Store()
    policy = SharedStoreBackup(allow_failback=allowed, restart_backup=False)
    async with (
        policy.activation(store.control("b")) as backup,
        SharedStorePrimary().activation(store.control("a")) as primary,
        trio.open_nursery() as nursery,
    ):
        await backup.wait()
        backup.served()
        nursery.start_soon(primary.wait)
        with trio.move_on_after(10) as scope:
            assert await backup.lost() == StepBack(reason="failback", final=True)
        assert scope.cancelled_caught != allowed
        if not allowed:
            nursery.start_soon(lambda: backup.hand_over(back=True, force=False))
            assert (await backup.lost()).reason == "failback"
        nursery.cancel_scope.cancel()


async def test_a_backup_that_does_not_serve_yet_takes_no_step_back() -> None:
    store = Store()
    async with (
        SharedStoreBackup(allow_failback=True).activation(store.control("b")) as backup,
        SharedStorePrimary().activation(store.control("a")) as primary,
        trio.open_nursery() as nursery,
    ):
        await backup.wait()
        nursery.start_soon(primary.wait)
        with trio.move_on_after(15) as scope:
            await backup.lost()
        assert scope.cancelled_caught
        backup.served()
        with trio.fail_after(1):
            assert (await backup.lost()).reason == "failback"
        nursery.cancel_scope.cancel()


async def rounds_in(seconds: float, backups: str = "b") -> list[float]:
    """The moments at which backups give their store to a primary that never comes to serve, in so many seconds."""
    store, given = Store(), list[float]()

    async def serve(backup: Activation) -> None:
        while True:
            await backup.wait()
            backup.served()
            order = await backup.lost()
            given.append(trio.current_time())
            assert order == StepBack(reason="failback")
            await backup.release(failover=False)

    async def fail(primary: Activation) -> None:
        while True:
            await primary.wait()
            await trio.sleep(0.2)
            await primary.release(failover=True)

    async with AsyncExitStack() as stack:
        for_all: dict[str, Any] = {"lease": 1.0, "lock_check_period": 0.4}
        waiting = [
            await stack.enter_async_context(
                SharedStoreBackup(allow_failback=True, **for_all).activation(store.control(name))
            )
            for name in backups
        ]
        primary = await stack.enter_async_context(SharedStorePrimary(**for_all).activation(store.control("a")))
        async with trio.open_nursery() as nursery:
            for backup in waiting:
                nursery.start_soon(serve, backup)
            await trio.sleep(1)
            nursery.start_soon(fail, primary)
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()
    return given


async def test_a_primary_that_never_comes_to_serve_gets_the_store_less_and_less_often() -> None:
    given = await rounds_in(40)
    between = [later - earlier for earlier, later in pairwise(given)]
    assert 3 <= len(given) <= 6
    assert all(later > 1.5 * earlier for earlier, later in pairwise(between)), between


async def test_a_backup_that_serves_meanwhile_is_no_reason_to_give_the_store_to_that_primary_more_often() -> None:
    assert 4 <= len(await rounds_in(40, "bc")) <= 8


def test_the_pause_doubles_up_to_its_bound_and_ends_with_a_primary_that_serves() -> None:
    plan, now = FailbackPlan(2.0), 100.0
    first, longest = FAILBACK_PAUSE_LEASES
    assert not plan.due(now, serving=False, returned=True)
    assert not plan.due(now, serving=True, returned=False)
    assert plan.due(now, serving=True, returned=True)
    for leases in (first, 2 * first, 4 * first, 8 * first, 16 * first, longest, longest):
        plan.gave(7)
        plan.saw(7, serving=True)
        plan.saw(8, serving=False)
        plan.took(now)
        assert not plan.due(now + 2.0 * leases - 0.001, serving=True, returned=True)
        assert plan.due(now + 2.0 * leases, serving=True, returned=True)
    plan.gave(9)
    plan.saw(10, serving=True)
    plan.took(now + 1_000)
    assert plan.due(now + 1_000, serving=True, returned=True)
    # An order does not wait for the pause, and a primary that serves because of it ends the pause.
    plan.gave(11)
    plan.took(now + 1_000)
    plan.gave(13)
    plan.saw(14, serving=True)
    plan.took(now + 1_001)
    assert plan.due(now + 1_001, serving=True, returned=True)
    # A store that was not given to anybody came back after a crash: that is no reason to wait.
    plan.took(now + 1_001)
    assert plan.due(now + 1_001, serving=True, returned=True)
