"""One line for each change of a broker's state, with the state as its event."""

from __future__ import annotations

import errno
import logging

import attrs
import pytest
import trio

from meshq import Broker, JournalBrokenError
from meshq.testing import SimDisk
from tests.node.lives import machine
from tests.node.test_a_service_that_fails import Own, OwnError


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    """What the node's logger has said of its states."""
    records = [record for record in caplog.records if record.name == "meshq.node"]
    lines = [(getattr(record, "event", ""), record.levelno, record.getMessage()) for record in records]
    return [line for line in lines if line[0] != "recovered"]


def changes(*states: str) -> list[tuple[str, int, str]]:
    return [(state, logging.INFO, f"hq is {state}") for state in states]


async def test_a_broker_that_stops_in_peace_says_each_of_its_states_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Broker("hq", data_dir="/data/hq", env=machine()) as broker:
        assert told(caplog) == changes("starting", "active")
        async with broker.client() as client:
            await client.send("q", b"x")
    assert told(caplog) == changes("starting", "active", "stopping", "stopped")


async def test_a_broker_that_is_cancelled_says_so_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with trio.open_nursery() as nursery:
        await nursery.start(Broker("hq", data_dir=None).run)
        nursery.cancel_scope.cancel()
    assert told(caplog) == changes("starting", "active", "stopping", "stopped")


async def test_a_broker_that_fails_says_why_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = SimDisk()
    env = attrs.evolve(machine(), disk=disk.mount())
    with pytest.raises(JournalBrokenError) as caught:
        async with Broker("hq", data_dir="/data/hq", env=env) as broker, broker.client() as client:
            disk.faults.inject("sync", errno.EIO)
            await client.send("q", b"x")
    *_, last = told(caplog)
    assert last == ("failed", logging.ERROR, f"hq has failed: {caught.value}")
    assert told(caplog)[:-1] == changes("starting", "active")


@pytest.mark.parametrize("when", ["starting", "active"])
async def test_of_a_programs_own_error_only_the_kind_is_logged(when: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(OwnError):
        async with Broker("hq", data_dir=None, services=[Own(OwnError("password=x"), when=when)]):
            await trio.sleep_forever()
    assert told(caplog)[-1] == ("failed", logging.ERROR, f"hq has failed: {OwnError.__module__}.OwnError")
    assert "password=x" not in caplog.text
