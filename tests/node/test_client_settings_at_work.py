"""What each setting of a client does while it runs, at a broker on another machine."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import (
    TLS,
    CallTimeoutError,
    Client,
    ConnectionBrokenError,
    Disconnected,
    FailedOver,
    Reattached,
    SecurityError,
    SettingsError,
    UnblockedError,
)
from meshq.client.link._connection import Connection
from meshq.settings import Acceptor, Security
from tests.env.authorities import Authority
from tests.node.wires import URL, Wires, wires

#: A machine on which nobody listens.
NOBODY = "tcp://hq:6000?insecure=true"
SECURITY = Security(users={"app": "a long password", "other": "another password"})


def waits(here: Wires, since: float) -> list[float]:
    """How long it was between the client's dials from a time on."""
    dialed = [at for at in here.dials.dialed_at if at >= since]
    return [round(later - earlier, 3) for earlier, later in pairwise(dialed)]


async def caught(kind: type[Exception], call: Callable[[], Awaitable[object]]) -> float:
    """Seconds after which a call raises this."""
    begun = trio.current_time()
    with pytest.raises(kind):
        await call()
    return round(trio.current_time() - begun, 1)


async def enter(client: Client) -> None:
    """Connect, and close."""
    async with client:
        pass


# -- who it is, and whom it believes


@pytest.mark.parametrize(
    ("user", "password", "welcome"),
    [
        ("app", "a long password", True),
        ("other", "another password", True),
        ("other", "a long password", False),
        ("app", "another password", False),
        ("nobody", "a long password", False),
    ],
)
async def test_user_and_password_are_who_the_client_is(user: str, password: str, welcome: bool) -> None:
    async with wires(security=SECURITY) as here:
        client = here.client(user=user, password=password)
        if welcome:
            async with client:
                await client.send("q", b"x")
        else:
            assert await caught(SecurityError, lambda: enter(client)) < 5
        await caught(SecurityError, lambda: enter(here.client()))


async def test_tls_says_whose_certificates_are_believed(tmp_path: Path) -> None:
    authority, stranger = Authority("ours"), Authority("theirs")
    certificate = authority.issue(tmp_path / "hq.pem", "hq")
    acceptor = Acceptor("tls://hq:5000", tls=TLS(certificate=certificate), insecure=True)
    async with wires(acceptors=[acceptor]) as here:
        async with here.client("tls://hq:5000", tls=TLS(authorities=authority.write(tmp_path / "ours.pem"))) as client:
            await client.send("q", b"x")
        wrong = TLS(authorities=stranger.write(tmp_path / "theirs.pem"))
        for tls in (wrong, None):
            await caught(SecurityError, lambda tls=tls: enter(here.client("tls://hq:5000", tls=tls)))


async def test_plaintext_goes_to_other_machines_only_where_insecure_says_so() -> None:
    async with wires() as here:
        url = URL.partition("?")[0]
        with pytest.raises(SettingsError, match="insecure"):
            here.client(url)
        with pytest.raises(SettingsError, match="insecure"):
            here.client(url, insecure=False)
        async with here.client(url, insecure=True) as client:
            await client.send("q", b"x")


async def test_a_client_id_labels_a_client_in_the_brokers_words() -> None:
    async with wires() as here, here.node.client(client_id="billing 7") as client:
        await client.create_queue("q")
        (server,) = list(here.node.broker._node.inproc.connections)  # type: ignore[union-attr]
        assert "billing 7" in server.session.principal.peer


# -- how it connects and comes back


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_so_many_initial_attempts_are_made(attempts: int) -> None:
    async with wires() as here:
        begun = trio.current_time()
        client = here.client(NOBODY, initial_connect_attempts=attempts, reconnect_attempts=9)
        await caught(ConnectionBrokenError, lambda: enter(client))
        assert len(waits(here, begun)) == attempts - 1


@pytest.mark.parametrize("attempts", [0, 1, 4])
async def test_so_many_attempts_to_come_back_are_made(attempts: int) -> None:
    async with wires() as here:
        with pytest.raises(ConnectionBrokenError):
            async with here.client(initial_connect_attempts=7, reconnect_attempts=attempts) as client:
                await client.send("q", b"x")
                await here.node.end("killed")
                begun = trio.current_time()
                await client.send("q", b"y")
        assert len([at for at in here.dials.dialed_at if at >= begun]) == attempts


@pytest.mark.slow
async def test_by_default_a_client_comes_back_whenever_that_is() -> None:
    async with wires() as here, here.client(call_failover_timeout=math.inf) as client:
        await client.send("q", b"x")
        await here.node.end("killed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "q", b"y")
            await trio.sleep(3_600)
            await here.node.start()


@pytest.mark.parametrize(
    ("interval", "multiplier", "most", "expected"),
    [
        (1.0, 1.0, 60.0, [1, 1, 1, 1, 1]),
        (0.25, 1.0, 60.0, [0.25] * 5),
        (1.0, 2.0, 60.0, [1, 2, 4, 8, 16]),
        (1.0, 3.0, 60.0, [1, 3, 9, 27, 60]),
        (1.0, 2.0, 5.0, [1, 2, 4, 5, 5]),
        (8.0, 2.0, 5.0, [5, 5, 5, 5, 5]),
    ],
)
async def test_it_waits_between_attempts_as_it_is_told(
    interval: float, multiplier: float, most: float, expected: list[float]
) -> None:
    async with wires() as here:
        settings = {"retry_interval": interval, "retry_interval_multiplier": multiplier, "max_retry_interval": most}
        begun = trio.current_time()
        client = here.client(NOBODY, initial_connect_attempts=6, **settings)
        await caught(ConnectionBrokenError, lambda: enter(client))
        # A refusal comes back after the way there and back.
        assert waits(here, begun) == pytest.approx(expected, abs=0.01)


# -- how long it waits


@pytest.mark.parametrize("timeout_s", [2.0, 9.0])
async def test_an_answer_is_waited_for_as_long_as_call_timeout_says(timeout_s: float) -> None:
    async with wires() as here, here.client(call_timeout=timeout_s, call_failover_timeout=50) as client:
        await client.create_queue("q")
        here.lose("reply")
        assert await caught(CallTimeoutError, lambda: client.queue("q")) == timeout_s
        assert await caught(CallTimeoutError, lambda: client.send("q", b"x")) == timeout_s


@pytest.mark.parametrize("timeout_s", [2.0, 9.0])
async def test_a_connection_is_waited_for_as_long_as_call_failover_timeout_says(timeout_s: float) -> None:
    async with wires() as here, here.client(call_timeout=50, call_failover_timeout=timeout_s) as client:
        await client.create_queue("q")
        await here.node.end("killed")
        await trio.sleep(1)
        assert await caught(CallTimeoutError, lambda: client.queue("q")) == timeout_s
        assert await caught(CallTimeoutError, lambda: client.send("q", b"x")) == timeout_s
        await here.node.start()


@pytest.mark.parametrize("ttl_s", [3.0, 12.0])
async def test_a_silent_connection_is_believed_in_for_its_time_to_live(ttl_s: float) -> None:
    async with wires() as here:
        client = here.client(connection_ttl=ttl_s)
        events = client.events()
        async with client:
            await client.send("q", b"x")
            begun = trio.current_time()
            here.lose("reply")
            async for event in events:
                if isinstance(event, Disconnected):
                    break
            # Counted from the last word that was heard.
            assert ttl_s - 0.1 <= event.at - begun <= ttl_s + 0.1


@pytest.mark.parametrize("ttl_s", [3.0, 40.0])
async def test_a_session_outlives_its_connection_for_its_time_to_live(ttl_s: float) -> None:
    async with wires() as here:
        client = here.client(connection_ttl=ttl_s)
        events = client.events()
        async with client:
            await client.send("q", b"x")
            sessions = here.node.broker.statistics().sessions
            refuse = here.dials.inner
            here.dials.inner = Unreachable()  # type: ignore[assignment]
            for stream in here.dials.streams:
                stream.close()
            await trio.sleep(ttl_s * 0.8)
            assert here.node.broker.statistics().sessions == sessions
            await trio.sleep(ttl_s * 0.4 + 1)
            assert here.node.broker.statistics().sessions == sessions - 1
            here.dials.inner = refuse
            await client.send("q", b"y")
        kinds = [type(event) async for event in events]
        assert FailedOver in kinds and Reattached not in kinds


class Unreachable:
    """A network in which nobody is reached."""

    async def connect(self, host: str, port: int) -> Any:
        """Fail at once."""
        await trio.lowlevel.checkpoint()
        raise ConnectionBrokenError("nobody is there", outcome="not_done")


@pytest.mark.parametrize("period_s", [0.05, 1.0])
async def test_what_waits_is_looked_at_every_check_period(period_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[float] = []
    look = Connection._watch

    def watch(self: Connection, now: float) -> float:
        looked_at.append(now)
        return look(self, now)

    async with wires() as here, here.client(check_period=period_s) as client:
        await client.send("q", b"x")
        monkeypatch.setattr(Connection, "_watch", watch)
        await trio.sleep(10)
        assert max(later - earlier for earlier, later in pairwise(looked_at)) <= period_s + 0.001
        assert len(looked_at) <= 10 / period_s + 10


# -- what it keeps and repeats


@pytest.mark.parametrize(("window", "kind"), [(64 * 1024, Reattached), (math.inf, FailedOver)])
async def test_a_session_is_resumed_where_there_is_a_confirmation_window(window: float, kind: type) -> None:
    async with wires() as here:
        client = here.client(confirmation_window=window)
        events = client.events()
        async with client:
            await client.send("q", b"x")
            for stream in here.dials.streams:
                stream.close()
            await client.send("q", b"y")
            assert [type(await anext(events)) for _ in range(3)][2] is kind


@pytest.mark.parametrize("window", [8 * 1024, 32 * 1024])
async def test_no_more_is_kept_than_the_confirmation_window(window: int) -> None:
    async with wires() as here, here.client(confirmation_window=window) as client, client.producer("q") as producer:
        await producer.send(b"first")
        await producer.flush()
        here.lose("reply")
        most = 0
        with trio.move_on_after(5):
            for _ in range(300):
                await producer.send(bytes(1_000))
                # Each goes by itself.
                await trio.sleep(0.001)
                most = max(most, client.statistics().kept_bytes)
        assert window - 2_000 < most < window + 2_000


@pytest.mark.parametrize(("least", "large"), [(1024, True), (4096, False)])
async def test_bodies_above_min_large_message_size_lie_in_files(least: int, large: bool) -> None:
    async with wires() as here, here.client(min_large_message_size=least) as client:
        await client.send("q", bytes(2_000))
        assert bool(here.node.process.env.disk.names("/data/hq/large")) is large
        async with client.consumer("q") as consumer:
            delivery = await consumer.receive(timeout=5)
            assert delivery is not None and delivery.body == bytes(2_000)
            await consumer.ack(delivery, confirm=True)


@pytest.mark.parametrize("resend", [True, False])
async def test_what_was_not_confirmed_is_sent_again_if_resend_says_so(resend: bool) -> None:
    async with wires() as here, here.client(resend=resend) as client:
        await client.send("q", b"first")
        here.lose("request")
        found: list[BaseException | None] = []

        async def send() -> None:
            try:
                await client.send("q", b"second")
                found.append(None)
            except UnblockedError as error:
                found.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(1)
            await here.again("killed")
        (error,) = found
        ready = (await client.queue("q")).ready
        if resend:
            assert (error, ready) == (None, 2)
        else:
            assert isinstance(error, UnblockedError) and (error.outcome, ready) == ("unknown", 1)


# -- what a setting says wrongly


async def test_a_policy_that_nobody_knows_is_refused_and_not_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with wires() as here:
            with pytest.raises(SettingsError, match="load_balancing"):
                here.client(load_balancing="last")
