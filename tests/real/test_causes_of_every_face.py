"""What fails outside is named as the cause, whatever was waiting for it and on whatever face."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import (
    BrokenError,
    CallTimeoutError,
    ConnectionBrokenError,
    JournalBrokenError,
    MeshqError,
    RefusedError,
    TransactionRolledBackError,
    UnblockedError,
)
from meshq.env import FaultInjectingDisk, real_env
from qa.broker_process import BrokerProcess
from tests.real.causes_kit import BLOCK, FACES, Call, Found, Program

Face = Callable[[Program], Found]


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    """Each face in turn."""
    return FACES[request.param]


class Mortal:
    """A broker that can be stopped, killed and started again on the same port."""

    def __init__(self, directory: Path, syncs: int | None = None) -> None:
        self._directory = str(directory / "real")
        at = {} if syncs is None else {"sync": syncs}
        self._life = BrokerProcess(self._directory, at=at, action="eio")
        self.url: str = self._life.next_report()

    def freeze(self) -> None:
        """It answers nobody any more."""
        assert self._life.process.pid is not None
        os.kill(self._life.process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """As ``kill -9``."""
        self._life.process.kill()
        self._life.close()

    def again(self) -> None:
        """Killed, and started on the same port."""
        self.kill()
        self._life = BrokerProcess(self._directory, int(self.url.rpartition(":")[2]))
        assert self._life.next_report() == self.url


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    """A broker in a process of its own."""
    broker = Mortal(tmp_path)
    yield broker
    broker.kill()


def program(mortal: Mortal, query: str, breaks: Callable[[], None] = lambda: None) -> Program:
    """Every kind of call, at a broker that has stopped answering as soon as the calls were prepared."""

    async def producer(client: Any) -> None:
        async with client.producer("p") as producer:
            await producer.send(b"x")
            await producer.flush()

    async def consumer(client: Any) -> None:
        async with client.consumer("q") as consumer:
            await consumer.receive(timeout=1)

    async def browse(client: Any) -> None:
        async with client.consumer("q", browse=True) as consumer:
            await consumer.receive(timeout=1)

    async def transaction(client: Any) -> None:
        async with client.transaction() as transaction:
            await transaction.send("q", b"x")

    calls: dict[str, Call] = {
        "send": lambda client: client.send("q", b"x"),
        "send_many": lambda client: client.send_many("q", [b"x", b"y"]),
        "not durable": lambda client: client.send("q", b"x", durable=False),
        "large": lambda client: client.send("large", bytes(700_000)),
        "request": lambda client: client.request("q", b"x", timeout=1),
        "queue": lambda client: client.queue("q"),
        "queues": lambda client: client.queues(),
        "create_queue": lambda client: client.create_queue("new"),
        "purge_queue": lambda client: client.purge_queue("q"),
        "explain_route": lambda client: client.explain_route("q"),
        "commit": lambda client: client.commit(b"xid"),
        "producer": producer,
        "consumer": consumer,
        "browse": browse,
        "transaction": transaction,
    }

    frozen = False

    def freeze_once(call: Call) -> Call:
        async def begun(client: Any) -> object:
            nonlocal frozen
            if not frozen:
                frozen = True
                mortal.freeze()
            return await call(client)

        return begun

    calls = {name: freeze_once(call) for name, call in calls.items()}
    return Program(lambda face: face.connect(f"{mortal.url}?{query}"), calls, breaks)


def broken(found: Found) -> dict[str, BrokenError]:
    """Those that say that the outside has failed; each says how, to the last of its causes."""
    broken = {name: error for name, error in found.items() if isinstance(error, BrokenError)}
    for name, error in broken.items():
        cause: BaseException | None = error
        seen: list[BaseException] = []
        while isinstance(cause, BrokenError):
            assert cause.__cause__ is not None, f"{name}: {cause!r}"
            seen.append(cause)
            cause = cause.__cause__
            assert cause not in seen, f"{name}: {cause!r} is its own cause"
        for result in error.results:
            assert not isinstance(result, BrokenError) or result.__cause__ is not None, name
    return broken


def last(error: BaseException) -> BaseException:
    """The first cause that is none of ours."""
    while isinstance(error, MeshqError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def test_a_killed_broker(face: Face, mortal: Mortal) -> None:
    query = "reconnect_attempts=2&retry_interval=0.01"
    found = broken(face(program(mortal, query, mortal.kill)))
    assert len(found) >= 10 and BLOCK in found
    assert {type(error) for error in found.values()} == {ConnectionBrokenError}
    assert all(isinstance(last(error), OSError) for error in found.values())


@pytest.mark.processes
def test_a_broker_that_is_away_for_too_long(face: Face, mortal: Mortal) -> None:
    away = program(mortal, "call_failover_timeout=0.5&retry_interval=0.01&max_retry_interval=0.05", mortal.kill)
    found = broken(face(away))
    late = {name: error for name, error in found.items() if type(error) is CallTimeoutError}
    assert {"send", "queue", "create_queue"} <= set(late)
    assert all(isinstance(last(error), OSError) for error in late.values())


def test_nobody_listens(face: Face) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        # Bound, and not listening: it is refused.
        found = broken(face(Program(lambda face: face.connect(f"tcp://127.0.0.1:{port}"), {})))
    assert isinstance(last(found[BLOCK]), OSError)


def test_somebody_else_listens(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}?call_timeout=0.3"
        found = broken(face(Program(lambda face: face.connect(url), {})))
    assert type(found[BLOCK].__cause__) is CallTimeoutError
    assert type(last(found[BLOCK])) is TimeoutError


@pytest.mark.processes
def test_a_silent_peer(face: Face, mortal: Mortal) -> None:
    query = "reconnect_attempts=1&retry_interval=0.01&connection_ttl=0.5&check_period=0.1&call_timeout=5"
    found = broken(face(program(mortal, query)))
    assert {"send", "queue", "create_queue", "transaction", BLOCK} <= set(found)
    # Nothing was refused, and nothing ended: somebody has waited, and says how long.
    assert all(type(last(error)) is TimeoutError for error in found.values()), found
    assert all("waited" in str(last(error)) for error in found.values())


def test_a_session_that_was_made_anew(face: Face, mortal: Mortal) -> None:
    unblocked = unblocked_of(face(program(mortal, "retry_interval=0.01", mortal.again)))
    # What is sent once.
    assert {"queue", "queues", "create_queue", "purge_queue", "explain_route"} <= set(unblocked)


def test_a_send_that_is_not_repeated(face: Face, mortal: Mortal) -> None:
    async def send(client: Any) -> None:
        await client.send("q", b"x")
        mortal.freeze()
        await client.send("q", b"y")

    url = f"{mortal.url}?retry_interval=0.01&resend=false"
    calls: dict[str, Call] = {"send": send}
    assert set(unblocked_of(face(Program(lambda face: face.connect(url), calls, mortal.again)))) == {"send"}


def unblocked_of(found: Found) -> dict[str, UnblockedError]:
    """What was cut off when its session was made anew; each says how the link was lost to a process that was killed."""
    unblocked = {name: error for name, error in broken(found).items() if isinstance(error, UnblockedError)}
    for name, error in unblocked.items():
        assert type(error.__cause__) is (UnblockedError if name == "request" else ConnectionBrokenError), name
        assert isinstance(last(error), OSError | EOFError), name
    return unblocked


def endless(call: Call) -> Call:
    """Again and again, until it fails."""

    async def repeated(client: Any) -> None:
        for _ in range(100_000):
            await call(client)

    return repeated


async def settle(client: Any) -> None:
    """Send and acknowledge."""
    await client.send("s", b"x")
    async with client.consumer("s") as consumer:
        await consumer.ack(await consumer.receive(timeout=5), confirm=True)


async def commit(client: Any) -> None:
    """Send in a transaction."""
    async with client.transaction() as transaction:
        await transaction.send("t", b"x")


WRITING: dict[str, Call] = {
    "send": lambda client: client.send("q", b"x"),
    "send_many": lambda client: client.send_many("q", [b"x", b"y"]),
    "settle": settle,
    "transaction": commit,
}


def test_a_disk_that_fails_elsewhere(face: Face, tmp_path: Path) -> None:
    mortal = Mortal(tmp_path, syncs=60)
    try:
        url = f"{mortal.url}?reconnect_attempts=0"
        calls = {name: endless(call) for name, call in WRITING.items()}
        every = face(Program(lambda face: face.connect(url), calls))
    finally:
        mortal.kill()
    found, wanted = broken(every), {*WRITING, BLOCK}
    lost = every["transaction"]
    if isinstance(lost, TransactionRolledBackError):
        # Its session was lost in the middle of its work, and it says why.
        assert "disk failed" in str(last(lost))
        wanted.remove("transaction")
    assert wanted <= set(found)
    for name, error in found.items():
        # All that is known of it here is what the peer has said.
        assert type(last(error)) is RefusedError and "disk failed" in str(last(error)), name


def test_a_disk_that_fails_here(face: Face, tmp_path: Path) -> None:
    env = real_env()
    disk = FaultInjectingDisk(env.disk, at={}, action="eio", forever=True)

    def fail() -> None:
        disk._at["sync"] = disk.calls["sync"] + 1

    def inside(call: Call) -> Call:
        async def used(broker: Any) -> None:
            async with broker.client() as client:
                await endless(call)(client)

        return used

    found = broken(
        face(
            Program(
                lambda face: face.Broker("hq", data_dir=str(tmp_path / "hq"), env=attrs.evolve(env, disk=disk)),
                {name: inside(call) for name, call in WRITING.items()},
                fail,
            )
        )
    )
    assert {*WRITING, BLOCK} <= set(found)
    assert type(found[BLOCK]) is JournalBrokenError
    failed = last(found[BLOCK])
    assert isinstance(failed, OSError) and failed.errno == errno.EIO
