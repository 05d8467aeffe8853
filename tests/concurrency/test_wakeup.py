"""Wakeups: what a task hears that looks for work, and what it does not."""

from __future__ import annotations

import pytest
import trio

from meshq.concurrency import Wakeup


async def _returns_at_once(wakeup: Wakeup) -> bool:
    with trio.move_on_after(1) as scope:
        await wakeup.wait()
    return not scope.cancelled_caught


async def _resumed_twice(wakeup: Wakeup, *, clear: bool) -> bool:
    """Wake a waiting task twice in one turn; return whether its next wait returns at once."""
    async with trio.open_nursery() as nursery:

        async def wake_twice() -> None:
            assert wakeup.has_waiter
            wakeup.wake()
            wakeup.wake()

        nursery.start_soon(wake_twice)
        await wakeup.wait()
        if clear:
            wakeup.clear()
        return await _returns_at_once(wakeup)


async def test_a_wakeup_while_the_task_is_being_resumed_is_kept() -> None:
    assert await _resumed_twice(Wakeup(), clear=False)


async def test_a_task_that_finds_all_work_when_it_looks_clears_what_was_kept() -> None:
    assert not await _resumed_twice(Wakeup(), clear=True)


async def test_wakeups_before_a_wait_are_one() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    wakeup.wake()
    assert wakeup.woken
    assert await _returns_at_once(wakeup)
    assert not await _returns_at_once(wakeup)


async def test_a_cancelled_wait_loses_no_wakeup() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    with trio.CancelScope() as scope:
        scope.cancel()
        await wakeup.wait()
    assert scope.cancelled_caught
    assert await _returns_at_once(wakeup)


async def test_a_task_that_gave_up_a_wait_is_not_resumed_by_a_later_wakeup() -> None:
    wakeup = Wakeup()
    assert not await _returns_at_once(wakeup)
    assert not wakeup.has_waiter
    wakeup.wake()
    assert await _returns_at_once(wakeup)


async def test_an_error_is_raised_in_the_task_that_waits_and_is_not_kept() -> None:
    wakeup = Wakeup()
    wakeup.fail(OSError("too early"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fail, wakeup)
        with pytest.raises(OSError, match="gone"):
            await wakeup.wait()
    assert not await _returns_at_once(wakeup)


async def _fail(wakeup: Wakeup) -> None:
    wakeup.fail(OSError("gone"))
