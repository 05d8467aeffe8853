"""What each setting of a bridge's link does while it runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from meshq import TLS, Broker, abc
from meshq.client import ClientFactory
from meshq.client.link._connection import CLOSING_S, Connection
from meshq.settings import Acceptor, Security
from tests.bridge.kit import World, bridge_of, bridge_to, until, world
from tests.env.authorities import Authority


@attrs.define(eq=False)
class Dials(abc.Network):
    """The network of a machine that remembers when it dialed."""

    inner: abc.Network
    at: list[float] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> abc.Stream:
        self.at.append(trio.current_time())
        return await self.inner.connect(host, port)

    async def listen(self, host: str, port: int) -> abc.Listener:
        return await self.inner.listen(host, port)


async def dialing(made: World, **settings: Any) -> Dials:
    """Start the broker ``near``, with such a bridge; when that dials."""
    env = made.env("near")
    dials = Dials(env.network)
    await made.start("near", bridge_to("far", **settings), env=attrs.evolve(env, network=dials))
    return dials


async def broken_after(near: Broker, begun: float, caplog: pytest.LogCaptureFixture) -> float:
    """Seconds after which a bridge says that it begins again."""
    before = len(caplog.messages)
    text = f"the bridge {bridge_of(near).name} begins again"
    await until(lambda: any(text in message for message in caplog.messages[before:]))
    return trio.current_time() - begun


async def carries(made: World) -> bool:
    """Whether a message comes through within a while."""
    await made.send("near", "out", [b"x"])
    return await made.drain("far", "in", quiet=20) == [b"x"]


@pytest.mark.parametrize(
    ("user", "password", "welcome"),
    [("app", "a long password", True), ("app", "another one", False), ("nobody", "a long password", False)],
)
async def test_user_and_password_are_what_it_proves_itself_with(user: str, password: str, welcome: bool) -> None:
    async with world() as made:
        await made.start("far", security=Security(users={"app": "a long password"}))
        await made.start("near", bridge_to("far", user=user, password=password))
        assert await carries(made) is welcome
        assert bool(bridge_of(made.brokers["near"]).statistics().last_error) is not welcome


@pytest.mark.slow
async def test_tls_says_whose_certificate_is_believed(tmp_path: Path) -> None:
    authority, stranger = Authority("ours"), Authority("theirs")
    acceptor = Acceptor(
        "tls://far:5000", tls=TLS(certificate=authority.issue(tmp_path / "far.pem", "far")), insecure=True
    )
    for name, one, welcome in (("ours", authority, True), ("theirs", stranger, False), ("none", None, False)):
        tls = TLS(authorities=one.write(tmp_path / f"{name}.ca")) if one is not None else None
        async with world() as made:
            await made.start("far", acceptors=[acceptor])
            await made.start("near", bridge_to("tls://far:5000", tls=tls))
            assert await carries(made) is welcome, name


@pytest.mark.parametrize("timeout_s", [3.0, 12.0])
async def test_what_it_sends_waits_for_a_connection_as_long_as_call_failover_timeout_says(
    timeout_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", call_failover_timeout=timeout_s, call_timeout=100))
        assert await carries(made)
        await made.kill("far")
        # It has learned of that.
        await trio.sleep(70)
        begun = trio.current_time()
        await made.send("near", "out", [b"y"])
        assert await broken_after(made.brokers["near"], begun, caplog) == pytest.approx(timeout_s, abs=0.3)
        # What it could not send is still there.
        assert await made.count("near", "out") == 1


@pytest.mark.parametrize("timeout_s", [3.0, 12.0])
async def test_an_answer_is_waited_for_as_long_as_call_timeout_says(
    timeout_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"call_timeout": timeout_s, "call_failover_timeout": 500, "connection_ttl": 1_000}
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", **settings))
        assert await carries(made)
        made.network.silence("near", "far")
        begun = trio.current_time()
        await made.send("near", "out", [b"y"])
        # It says so when it has hung up, which a target that is silent has its time for.
        waited_s = await broken_after(made.brokers["near"], begun, caplog)
        assert timeout_s <= waited_s <= timeout_s + CLOSING_S + 0.3


@pytest.mark.parametrize("period_s", [0.25, 2.0])
async def test_what_waits_is_looked_at_every_check_period(period_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[float] = []
    look = Connection._watch

    def watch(self: Connection, now: float) -> float:
        if "far" in self.peer:
            looked_at.append(now)
        return look(self, now)

    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", check_period=period_s))
        assert await carries(made)
        monkeypatch.setattr(Connection, "_watch", watch)
        await trio.sleep(20)
        assert max(later - earlier for earlier, later in pairwise(looked_at)) <= period_s + 0.001
        assert 20 / period_s - 1 <= len(looked_at) <= 20 / period_s + 10


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [1, 3, 6])
async def test_it_begins_again_after_so_many_attempts_to_come_back(
    attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as made:
        await made.start("far")
        settings = {"reconnect_attempts": attempts, "initial_connect_attempts": 50, "connection_ttl": 5}
        dials = await dialing(made, retry_interval=10, max_retry_interval=10, **settings)
        assert await carries(made)
        await made.stop("far")
        begun = trio.current_time()
        await broken_after(made.brokers["near"], begun, caplog)
        assert len([at for at in dials.at if at >= begun]) == attempts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interval", "multiplier", "most", "expected"),
    [
        (1.0, 1.0, 60.0, [1, 1, 1, 1, 1]),
        (1.0, 3.0, 60.0, [1, 3, 9, 27, 60]),
        (1.0, 3.0, 5.0, [1, 3, 5, 5, 5]),
        (8.0, 1.0, 5.0, [5, 5, 5, 5, 5]),
    ],
)
async def test_it_waits_between_attempts_as_it_is_told(
    interval: float, multiplier: float, most: float, expected: list[float]
) -> None:
    async with world() as made:
        settings = {"retry_interval": interval, "retry_interval_multiplier": multiplier, "max_retry_interval": most}
        dials = await dialing(made, **settings)
        await until(lambda: len(dials.at) >= 6)
        waits = [later - earlier for earlier, later in pairwise(dials.at[:6])]
        # A host that is not there refuses after the way there and back.
        assert waits == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("window", [64 * 1024, 512 * 1024])
async def test_no_more_is_kept_than_the_confirmation_window(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Any] = []
    connect = ClientFactory.connect

    def noted(self: ClientFactory) -> Any:
        clients.append(connect(self))
        return clients[-1]

    async with world() as made:
        await made.start("far")
        monkeypatch.setattr(ClientFactory, "connect", noted)
        await made.start("near", bridge_to("far", confirmation_window_size=window))
        assert await carries(made)
        made.network.delay("far", "near", 5.0, 5.0)
        async with made.here("near") as client:
            await client.send_many("out", [bytes(1_000)] * 1_900)
        most = 0
        for _ in range(3_000):
            await trio.sleep(0.01)
            most = max(most, *(one.statistics().kept_bytes for one in clients))
        # One frame goes beyond it at most.
        assert window <= most <= window + 270_000
