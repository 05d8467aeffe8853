"""The rules of tests/conftest.py hold."""

import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
import trio.testing

from tests.conftest import run_with_trio

EXAMPLES_SEEN: list[int] = []


async def test_an_hour_of_waiting_takes_no_time() -> None:
    began = time.monotonic()
    await trio.sleep(3600)
    assert time.monotonic() - began < 60
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)


@pytest.mark.real
async def test_a_test_marked_real_runs_on_the_real_clock() -> None:
    await trio.sleep(0.001)
    assert not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)


@pytest.mark.parametrize("number", [1, 2])
async def test_fixtures_and_parameters_reach_an_async_test(number: int, tmp_path: Path) -> None:
    assert number in (1, 2)
    assert tmp_path.is_dir()


@hypothesis.given(number=st.integers())
async def test_an_async_test_takes_examples(number: int) -> None:
    await trio.lowlevel.checkpoint()
    EXAMPLES_SEEN.append(number)


def test_the_examples_really_ran() -> None:
    assert len(EXAMPLES_SEEN) > 50 or not EXAMPLES_SEEN, "empty only if this test was chosen alone"


def test_an_async_test_can_fail() -> None:
    async def failing() -> None:
        await trio.lowlevel.checkpoint()
        raise AssertionError("meant to be seen")

    with pytest.raises(AssertionError, match="meant to be seen"):
        run_with_trio(failing, real=False)()


def test_sleeping_in_real_time_fails_the_test() -> None:
    with pytest.raises(pytest.fail.Exception, match="not marked real"):
        time.sleep(0.001)


def test_sleeping_on_the_real_clock_of_trio_fails_the_test() -> None:
    async def main() -> None:
        with pytest.raises(pytest.fail.Exception, match="not marked real"):
            await trio.sleep(0.001)

    trio.run(main)


def test_examples_are_the_same_each_time() -> None:
    assert hypothesis.settings.default.derandomize or hypothesis.settings.get_current_profile_name() != "ci"
