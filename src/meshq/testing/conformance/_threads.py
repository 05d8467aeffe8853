"""The conformance suite for ``abc.Threads``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
import trio.testing

from meshq.abc import Threads
from meshq.testing.conformance._assertions import expect, expect_equal, expect_raises


async def check_threads(make_threads: Callable[[], Threads]) -> None:
    """Check that worker threads keep the contract of ``meshq.abc.Threads``.

    ``make_threads`` is called once for each check of ``THREADS_CHECKS``.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: the threads break a promise.
    """
    for check in THREADS_CHECKS:
        await check(make_threads())


async def _calls_return_what_the_function_returns(threads: Threads) -> None:
    expect_equal(await threads.run(divmod, 17, 5), (3, 2), "arguments go in and the result comes out")
    expect_equal(await threads.run(len, "abc", pool="journal"), 3, "each pool does so")


async def _calls_raise_what_the_function_raises(threads: Threads) -> None:
    def fail() -> None:
        raise OSError(5, "as given")

    with expect_raises(OSError, "the function's exception comes out") as caught:
        await threads.run(fail)
    expect_equal(getattr(caught.error, "errno", None), 5, "it is the function's own")


async def _every_call_lets_others_run(threads: Threads) -> None:
    with trio.testing.assert_checkpoints():
        await threads.run(len, "")
    with trio.CancelScope() as scope:
        scope.cancel()
        await threads.run(len, "")
        expect(False, "a call in a cancelled scope must not return")


async def _a_journal_is_written_by_one_thread(threads: Threads) -> None:
    inside: list[int] = []
    together: list[int] = []

    def call(number: int) -> None:
        inside.append(number)
        together.append(len(inside))
        inside.remove(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(partial(threads.run, call, number, pool="journal"))
    expect_equal(together, [1] * 20, "calls of the journal's pool come one after the other")


async def _a_cancelled_call_is_waited_for(threads: Threads) -> None:
    finished: list[str] = []

    def call() -> str:
        # Whoever asked for this is cancelled while it runs, as early as can be: by itself.
        trio.from_thread.run_sync(scope.cancel) if _in_worker() else scope.cancel()
        finished.append("the call")
        return "result"

    with trio.CancelScope() as scope:
        await threads.run(call)
        finished.append("the result")
    expect_equal(finished, ["the call"], "the effects of a cancelled call stand, its result is lost")
    expect(scope.cancelled_caught, "its cancellation comes out")


async def _idle_tells_of_runnable_tasks(threads: Threads) -> None:
    expect(isinstance(threads.idle(), bool), "idle answers yes or no")


def _in_worker() -> bool:
    """Whether this runs in a thread of its own, and not inline as a simulation does."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return True
    return False


THREADS_CHECKS: Final[tuple[Callable[[Threads], Awaitable[None]], ...]] = (
    _calls_return_what_the_function_returns,
    _calls_raise_what_the_function_raises,
    _every_call_lets_others_run,
    _a_journal_is_written_by_one_thread,
    _a_cancelled_call_is_waited_for,
    _idle_tells_of_runnable_tasks,
)
