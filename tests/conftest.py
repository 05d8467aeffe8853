"""How tests run here.

``async def`` tests run under trio on a clock that jumps to the next deadline, so that an hour of waiting
takes no time.  Tests in ``tests/real/`` and ``tests/attacks/`` and those marked ``real`` run on the real clock, and
only they may sleep.
Hypothesis draws the same examples each time; ``HYPOTHESIS_PROFILE=explore`` looks for new ones.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio
import trio.testing

pytest_plugins = ["tests.tiers", "tests.left_behind", "pytester"]

TESTS = Path(__file__).parent
#: Where every test runs on the real clock.
REAL = (TESTS / "real", TESTS / "attacks")
#: What a process may have grown by since the collector ran, before it runs again.
GARBAGE_BYTES_MAX = 128 << 20
#: Where hashes are compared with known ones, or made before a test begins.
HASHED = (TESTS / "wire", TESTS / "broker")
_grown_from = 0
_slow_hash = hashlib.pbkdf2_hmac

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs behind it so, and tests that interrupt a process, or themselves, would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies in the directories of ``REAL`` is marked so, and ``-m "not real"`` leaves it out."""
    for item in items:
        if any(item.path.is_relative_to(directory) for directory in REAL):
            item.add_marker("real")


def pytest_collection_finish() -> None:
    """What is imported and collected lives to the end: the collector need not look at it again each time."""
    gc.collect()
    if sys.version_info < (3, 14):
        # From 3.14 on Hypothesis asks the collector who refers to its generator, and would not be told.
        gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Simulated disks are large and few; the collector counts objects, and would leave them for hundreds of tests."""
    global _grown_from
    if _resident_bytes() > _grown_from + GARBAGE_BYTES_MAX:
        gc.collect()
        _grown_from = _resident_bytes()


def _resident_bytes() -> int:
    try:
        statm = Path("/proc/self/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(statm.split()[1]) * resource.getpagesize()


def is_real(item: pytest.Item) -> bool:
    """Whether this test runs on the real clock."""
    return item.get_closest_marker("real") is not None


def run_with_trio(test: Callable[..., Any], *, real: bool) -> Callable[..., None]:
    """A plain function that runs an async test, on the real clock or on one that jumps."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        clock = None if real else trio.testing.MockClock(autojump_threshold=0)
        trio.run(functools.partial(test, *args, **kwargs), clock=clock)

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests; with ``@given``, each example is a run of its own."""
    test = pyfuncitem.obj
    given = getattr(test, "hypothesis", None)
    if given is not None:
        if inspect.iscoroutinefunction(given.inner_test):
            given.inner_test = run_with_trio(given.inner_test, real=is_real(pyfuncitem))
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run_with_trio(test, real=is_real(pyfuncitem))(**arguments)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that sleeps in real time without being marked ``real`` fails where it does so."""
    if is_real(item):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", _refuse_sleep(time.sleep))
        patch.setattr(trio, "sleep", _refuse_real_sleep(trio.sleep))
        if not any(item.path.is_relative_to(directory) for directory in HASHED):
            patch.setattr(hashlib, "pbkdf2_hmac", _hash_of_one_round)
        return (yield)


def _hash_of_one_round(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The hash of a password is slow on purpose: of a test of several nodes it was a tenth.

    Another number of rounds is another hash, as it is otherwise.
    """
    return _slow_hash(name, password, salt + iterations.to_bytes(8, "big"), 1)


def _called_by_a_test() -> bool:
    """Whether the caller's caller is a file of ours in ``tests/``: libraries may do as they please."""
    return Path(sys._getframe(2).f_code.co_filename).is_relative_to(TESTS)


def _refuse_sleep(sleep: Callable[[float], None]) -> Callable[[float], None]:
    @functools.wraps(sleep)
    def guarded(seconds: float) -> None:
        if _called_by_a_test():
            pytest.fail("time.sleep in a test that is not marked real")
        sleep(seconds)

    return guarded


def _refuse_real_sleep(sleep: Callable[[float], Any]) -> Callable[[float], Any]:
    @functools.wraps(sleep)
    def guarded(seconds: float) -> Any:
        clock = trio.lowlevel.current_clock()
        mocked = isinstance(clock, trio.testing.MockClock) or getattr(clock, "simulated", False)
        if seconds > 0 and not mocked and _called_by_a_test():
            pytest.fail("trio.sleep on the real clock in a test that is not marked real")
        return sleep(seconds)

    return guarded
