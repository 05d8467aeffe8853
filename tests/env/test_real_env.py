"""The environment of production, as a whole."""

from __future__ import annotations

import os

import pytest
import trio

from meshq.abc import Env
from meshq.env import memory_bytes, real_env
from meshq.env._clock import SystemClock


def test_two_environments_of_one_process_find_the_same_brokers() -> None:
    one, two = real_env(), real_env()
    one.local["shop"] = "a broker"
    try:
        assert two.local["shop"] == "a broker"
    finally:
        del one.local["shop"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with threads is what is asked about here
def test_a_forked_child_finds_no_brokers_of_its_parent() -> None:
    environment = real_env()
    environment.local["shop"] = "a broker of the parent"
    try:
        child = os.fork()
        if not child:
            os._exit(len(environment.local))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert "shop" in environment.local
    finally:
        del environment.local["shop"]


def test_the_environment_has_no_failpoint_of_its_own() -> None:
    environment = real_env()
    assert isinstance(environment, Env)
    assert not environment.failpoint("anything")


def test_tokens_have_their_size_and_differ() -> None:
    entropy = real_env().entropy
    tokens = {entropy.token(16) for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {16}


def test_generators_differ_from_each_other() -> None:
    entropy = real_env().entropy
    assert len({entropy.generator().random() for _ in range(100)}) == 100


def test_the_wall_clock_counts_milliseconds_since_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_357_000_000_123_999_999)
    assert SystemClock().now_ms() == 1_357_000_000_123


def test_memory_is_that_of_the_machine_where_no_group_limits_it(tmp_path: os.PathLike[str]) -> None:
    assert memory_bytes(os.fspath(tmp_path)) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


async def test_threads_of_one_environment_serve_several_runs() -> None:
    threads = real_env().threads
    assert await threads.run(len, "four") == 4

    def another_run() -> int:
        return trio.run(threads.run, len, "four")

    assert await trio.to_thread.run_sync(another_run) == 4
