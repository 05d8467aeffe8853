"""Simulated code that goes past the seam is caught, and the real world is back afterwards."""

from __future__ import annotations

import builtins
import io
import logging
import os
import random
import secrets
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable

import pytest
import trio

from meshq.testing import Simulation, TripwireError, run_seed
from meshq.testing._tripwires import WATCHED, tripwires

CALLS: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter_ns": lambda: time.perf_counter_ns(),
    "time.sleep": lambda: time.sleep(0),
    "random.random": lambda: random.random(),
    "random.choice": lambda: random.choice([1]),
    "random._urandom": lambda: random.SystemRandom().randbytes(1),
    "os.urandom": lambda: os.urandom(1),
    "os.open": lambda: os.close(os.open("/dev/null", os.O_RDONLY)),
    "secrets.token_bytes": lambda: secrets.token_bytes(1),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "Thread.start": lambda: threading.Thread(target=int).start(),
    "builtins.open": lambda: open("/dev/null").close(),
    "io.open": lambda: io.open("/dev/null").close(),  # noqa: UP020
    "socket.__init__": lambda: socket.socket().close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_to_the_real_world_inside_a_simulation_is_an_error_that_names_it(name: str) -> None:
    async def main(simulation: Simulation) -> None:
        CALLS[name]()

    failure = run_seed(0, main).failure
    assert isinstance(failure, TripwireError)
    assert failure.call in (name, "SystemRandom.randbytes")
    if name != "time.sleep":
        CALLS[name]()


def test_afterwards_everything_is_the_same_object_as_before() -> None:
    def snapshot() -> list[object]:
        return [vars(owner).get(name) for owner, names in WATCHED for name in names]

    before = snapshot()
    with pytest.raises(KeyError), tripwires():
        assert snapshot() != before
        raise KeyError
    assert snapshot() == before
    assert builtins.open is io.open


def test_the_end_of_a_simulation_takes_the_wires_away_however_it_ends() -> None:
    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    async def main(simulation: Simulation) -> None:
        simulation.node("n").spawn(stubborn)
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    result = run_seed(0, main)
    assert result.abandoned
    assert time.time() > 0


def test_seeded_generators_logging_and_tracebacks_still_work(caplog: pytest.LogCaptureFixture) -> None:
    async def main(simulation: Simulation) -> str:
        logging.getLogger("meshq.test").warning("a line")
        assert random.Random(1).random() == random.Random(1).random()
        try:
            raise ValueError("shown with its source")
        except ValueError:
            return traceback.format_exc()

    text = run_seed(0, main).check().value
    assert 'raise ValueError("shown with its source")' in text
    assert [record.message for record in caplog.records] == ["a line"]


def test_a_worker_thread_that_waits_since_before_a_simulation_is_refused_to_it_alone() -> None:
    async def before() -> int:
        return await trio.to_thread.run_sync(lambda: 1)

    async def main(simulation: Simulation) -> None:
        with pytest.raises(TripwireError, match=r"trio\.to_thread\.run_sync"):
            await trio.to_thread.run_sync(lambda: 2)

    assert trio.run(before) == 1  # its thread waits for more
    run_seed(0, main).check()
    assert trio.run(before) == 1
