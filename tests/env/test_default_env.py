"""The environment of brokers, clients and journals that are given none."""

from __future__ import annotations

import attrs
import trio

from meshq.env import DEFAULT_ENV, RealDisk, default_env, real_env


def test_it_is_the_real_one() -> None:
    assert isinstance(default_env().disk, RealDisk)


async def test_a_task_and_the_tasks_that_it_starts_may_have_another_one() -> None:
    other = attrs.evolve(real_env(), memory_bytes=1)
    found = []

    async def look() -> None:
        found.append(default_env())

    async with trio.open_nursery() as nursery:
        token = DEFAULT_ENV.set(other)
        nursery.start_soon(look)
        DEFAULT_ENV.reset(token)
    assert found == [other]
    assert default_env() is not other
