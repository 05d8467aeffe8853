"""A broker with users, over TCP and TLS: who comes in, who does not, and what nobody gets to see."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import (
    TLS,
    Acceptor,
    Broker,
    Client,
    ClusterConnection,
    ConnectionBrokenError,
    MeshqError,
    NotActiveError,
    Secret,
    Security,
    SecurityError,
    SettingsError,
    connect,
)
from meshq.abc import Stream
from meshq.broker import connection_bounds
from meshq.broker.connection._connection_guard_machine import DELAY_S_MIN
from meshq.client.link._login import Login
from meshq.endpoint import Endpoint
from meshq.env import OpenSslTls, TcpNetwork, real_env
from meshq.limits import UNAUTHENTICATED_PER_ADDRESS_MAX
from tests.env.authorities import Authority

SECURITY = Security(users={"app": "canary-right", "ops": "canary-other"})
WHO = {"user": "app", "password": "canary-right"}
AUTHORITY = Authority("ours")


class Files:
    """Certificates on disk."""

    def __init__(self, folder: Path) -> None:
        self.ours = AUTHORITY.write(folder / "ours.pem")
        self.broker = AUTHORITY.issue(folder / "broker.pem", "127.0.0.1", "localhost")
        #: As good as the broker's own for every client, and held by somebody else.
        self.other = AUTHORITY.issue(folder / "other.pem", "127.0.0.1")
        self.app = AUTHORITY.issue(folder / "app.pem", "app")
        self.expired = AUTHORITY.issue(folder / "expired.pem", "127.0.0.1", expired=True)
        self.elsewhere = AUTHORITY.issue(folder / "elsewhere.pem", "elsewhere.example")
        self.strangers = Authority("somebody else's").write(folder / "strangers.pem")

    @property
    def client(self) -> TLS:
        return TLS(authorities=self.ours)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@asynccontextmanager
async def broker(files: Files | None = None, **tls: Any) -> AsyncIterator[Broker]:
    """A broker with users: over TLS, or in plain on the loopback device."""
    acceptor = Acceptor("tcp://127.0.0.1:0")
    if files is not None:
        acceptor = Acceptor("tls://127.0.0.1:0", tls=TLS(**{"certificate": files.broker, **tls}))
    async with Broker("hq", data_dir=None, acceptors=[acceptor], security=SECURITY) as running:
        yield running


async def why_not(url: str, **settings: Any) -> Exception:
    with pytest.raises((SecurityError, ConnectionBrokenError, SettingsError)) as caught:
        async with connect(url, **settings):
            pytest.fail("it went in")
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    return caught.value


@pytest.mark.parametrize("secure", [True, False])
async def test_who_has_the_password_works_as_ever(files: Files, secure: bool) -> None:
    tls = {"tls": files.client} if secure else {}
    async with broker(files if secure else None) as node:
        assert node.urls[0].startswith("tls://" if secure else "tcp://")
        async with connect(node.urls[0], **WHO, **tls) as client:
            body = bytes(range(256)) * 4_000
            await client.send_many("q", [body] * 20)
            async with client.consumer("q") as consumer:
                for _ in range(20):
                    message = await consumer.receive(timeout=10)
                    assert message is not None and message.body == body
                    await message.ack()
        async with node.client() as near, connect("inproc://hq") as named:
            await near.send("q", b"x")
            await named.send("q", b"x")


@pytest.mark.processes
@pytest.mark.parametrize("secure", [True, False])
async def test_whoever_has_not_is_refused_and_told_the_same(files: Files, secure: bool) -> None:
    tls = {"tls": files.client} if secure else {}
    async with broker(files if secure else None) as node:
        url = node.urls[0]
        wrong = [
            await why_not(url, user="app", password="canary-wrong", **tls),
            await why_not(url, user="nobody", password="canary-right", **tls),
            await why_not(url, user="ops", password="canary-right", **tls),
        ]
        assert {(type(error), str(error)) for error in wrong} == {
            (SecurityError, "the authentication failed: no such user, or another password")
        }
        assert node.statistics().connections_denied == 3
        assert "asks for a user and a password" in str(await why_not(url, **tls))


async def test_a_failure_delays_what_comes_next(files: Files) -> None:
    async with broker() as node:
        await why_not(node.urls[0], user="app", password="canary-wrong")
        began = trio.current_time()
        async with connect(node.urls[0], **WHO):
            assert DELAY_S_MIN <= trio.current_time() - began < DELAY_S_MIN + 4


async def test_a_client_that_is_turned_away_may_come_again(files: Files) -> None:
    async with broker() as node:
        port = Endpoint.parse(node.urls[0]).port
        idle = [await TcpNetwork().connect("127.0.0.1", port) for _ in range(UNAUTHENTICATED_PER_ADDRESS_MAX)]
        error = await why_not(node.urls[0], **WHO)
        assert isinstance(error.__cause__, NotActiveError)
        async with trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.sleep(0.2)
                for stream in idle:
                    stream.close()

            nursery.start_soon(later)
            async with connect(node.urls[0], **WHO, initial_connect_attempts=20) as client:
                await client.send("q", b"x")


async def test_certificates_decide_before_passwords_do(files: Files) -> None:
    async with broker(files) as node:
        url = node.urls[0]
        believing_others = TLS(authorities=files.strangers)
        assert "not trusted: unable to get local issuer" in str(await why_not(url, **WHO, tls=believing_others))
        assert "not trusted: unable to get local issuer" in str(await why_not(url, **WHO))
        assert type(await why_not(url.replace("tls", "tcp"), **WHO)) is not SettingsError
    for certificate, says in ((files.expired, "expired"), (files.elsewhere, "127.0.0.1")):
        async with broker(files, certificate=certificate) as node:
            error = await why_not(node.urls[0], **WHO, tls=files.client)
            assert type(error) is SecurityError
            begin, _, why = str(error).partition(" is not trusted: ")
            assert begin == f"the certificate of {node.urls[0].removeprefix('tls://')}" and says in why


async def test_a_client_certificate_may_be_required(files: Files) -> None:
    async with broker(files, authorities=files.ours, client_certificates="required") as node:
        error = await why_not(node.urls[0], **WHO, tls=files.client)
        assert type(error) is SecurityError and "certificate required" in str(error)
        async with connect(node.urls[0], **WHO, tls=TLS(certificate=files.app, authorities=files.ours)) as client:
            await client.send("q", b"x")


async def test_a_tls_client_at_a_plain_acceptor_is_refused(files: Files) -> None:
    async with broker() as node:
        error = await why_not(node.urls[0].replace("tcp", "tls"), **WHO, tls=files.client)
        assert isinstance(error, MeshqError) and error.outcome == "not_done"


async def pump(source: Stream, target: Stream) -> None:
    """Pass on what comes."""
    try:
        while data := await source.receive(1 << 16):
            target.send_nowait(data)
            await target.flush()
    except (ConnectionBrokenError, SecurityError):
        pass
    target.close()


async def test_a_relay_with_a_good_certificate_of_its_own_gets_nowhere(files: Files) -> None:
    tls, network = OpenSslTls(), TcpNetwork()
    async with broker(files) as node, trio.open_nursery() as nursery:
        listener = await network.listen("127.0.0.1", 0)

        async def between() -> None:
            near = await tls.server(TLS(certificate=files.other)).wrap(await listener.accept())
            far = await network.connect("127.0.0.1", Endpoint.parse(node.urls[0]).port)
            far = await tls.client(files.client).wrap(far, "127.0.0.1")
            nursery.start_soon(pump, near, far)
            nursery.start_soon(pump, far, near)

        nursery.start_soon(between)
        error = await why_not(f"tls://127.0.0.1:{listener.port}", **WHO, tls=files.client)
        assert type(error) is SecurityError and "authentication failed" in str(error)
        assert node.statistics().sessions == 0
        listener.close()
        nursery.cancel_scope.cancel()


@pytest.mark.processes
async def test_a_session_is_resumed_over_tls_and_nothing_is_lost(files: Files) -> None:
    async with broker(files) as node, connect(node.urls[0], **WHO, tls=files.client) as client:
        async with client.producer("q") as producer:
            for number in range(2_000):
                await producer.send(b"%d" % number)
                link = client._connection._link
                if number % 500 == 250 and link is not None:
                    link.stream._stream.close()  # type: ignore[attr-defined]
        assert client.statistics().resumed >= 1
        assert (await client.queue("q")).ready == 2_000


async def test_a_certificate_that_cannot_be_used_is_an_error_of_the_start(files: Files, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with pytest.raises(SettingsError, match="certificate="):
        async with broker(files, certificate=missing):
            pytest.fail("it started")
    async with broker(files) as node:
        error = await why_not(node.urls[0], **WHO, tls=TLS(authorities=missing))
        assert type(error) is SettingsError


def test_what_is_open_to_the_world_needs_users_or_a_word_that_it_does_not(files: Files) -> None:
    tls = TLS(certificate=files.broker)
    for acceptor in ("tcp://0.0.0.0:0", Acceptor("tls://0.0.0.0:0", tls=tls)):
        with pytest.raises(SettingsError, match="insecure=True"):
            Broker("hq", data_dir=None, acceptors=[acceptor])
    Broker("hq", data_dir=None, acceptors=[Acceptor("tls://0.0.0.0:0", tls=tls)], security=SECURITY)
    Broker("hq", data_dir=None, acceptors=[Acceptor("tls://0.0.0.0:0", tls=tls, insecure=True)])
    with pytest.raises(SettingsError, match="insecure=True"):
        Broker("hq", data_dir=None, acceptors=["tcp://0.0.0.0:0"], security=SECURITY)
    with pytest.raises(SettingsError) as caught:
        Broker("hq", data_dir=None, security={"app": "canary"})  # type: ignore[arg-type]
    assert "canary" not in str(caught.value)


async def test_no_password_is_ever_seen(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[object] = [SECURITY]
    async with broker(files) as node:
        async with connect(node.urls[0], **WHO, tls=files.client) as client:
            await client.send("q", b"x")
            shown += [client, client.statistics(), client._settings, client._connection, vars(client._connection)]
        shown += [await why_not(node.urls[0], user="app", password="canary-wrong", tls=files.client)]
        shown += [node, node.statistics(), node._settings, vars(node), node._node and vars(node._node)]
    text = "".join(f"{one!r}{one}" for one in shown) + caplog.text
    assert "canary" not in text and "***" in text


@pytest.mark.processes
async def test_a_node_comes_in_as_a_peer_and_no_user_does() -> None:
    def peer(user: str, password: str) -> Client:
        """A client that says it is a node."""
        made = connect(node.urls[0], use_topology=False)
        login = Login(real_env().entropy.token, user, Secret(password), role="peer")
        made._connection._handshake.keywords["login"] = login
        return made

    cluster = ClusterConnection("mesh", connector="me", user="cluster", password="canary-cluster")
    async with Broker(
        "hq",
        data_dir=None,
        acceptors=["tcp://127.0.0.1:0"],
        connectors={"me": "tcp://127.0.0.1:1"},
        services=[cluster],
        security=SECURITY,
    ) as node:
        async with peer("cluster", "canary-cluster"):
            (connection,) = node._node.listeners.connections  # type: ignore[union-attr]
            assert (connection.server.handshake.role, connection.server.handshake.user) == ("peer", "cluster")
        for user, password in (("app", "canary-right"), ("cluster", "canary-right")):
            with pytest.raises(SecurityError, match="the authentication failed"):
                async with peer(user, password):
                    pytest.fail("it went in")
        await why_not(node.urls[0], user="cluster", password="canary-cluster")


def node_of(name: str, password: str, port: int, other: int) -> Broker:
    """A node of a cluster of two."""
    mine = f"tcp://127.0.0.1:{port}"
    cluster = ClusterConnection(
        "mesh", connector="me", static_connectors=[f"tcp://127.0.0.1:{other}"], user="cluster", password=password
    )
    return Broker(name, data_dir=None, acceptors=[mine], connectors={"me": mine}, services=[cluster], security=SECURITY)


async def free_ports() -> tuple[int, int]:
    listeners = [await TcpNetwork().listen("127.0.0.1", 0) for _ in range(2)]
    for listener in listeners:
        listener.close()
    return listeners[0].port, listeners[1].port


async def test_nodes_of_a_cluster_know_each_other_by_its_password() -> None:
    here, there = await free_ports()
    first, second = node_of("one", "canary-cluster", here, there), node_of("two", "canary-cluster", there, here)
    async with first, second:
        cluster = first._settings.services[0]
        assert isinstance(cluster, ClusterConnection)
        await cluster.wait_for(nodes=2, timeout=20)
        assert "canary" not in repr(cluster) + repr(vars(cluster)) + repr(first._settings)


@pytest.mark.processes
async def test_nodes_with_different_passwords_do_not_link(caplog: pytest.LogCaptureFixture) -> None:
    here, there = await free_ports()
    first, second = node_of("one", "canary-cluster", here, there), node_of("two", "canary-other", there, here)
    async with first, second:
        cluster = first._settings.services[0]
        assert isinstance(cluster, ClusterConnection)
        for _ in range(2_000):
            if second.statistics().connections_denied:
                break
            await trio.sleep(0.01)
        assert second.statistics().connections_denied
        assert cluster.nodes() == 1
    assert "the authentication failed" in caplog.text and "canary" not in caplog.text


async def test_the_default_password_of_clusters_is_for_one_machine_only() -> None:
    for connectors, others in (
        ({"me": "tls://broker.example:1"}, []),
        ({"me": "tcp://127.0.0.1:1"}, ["tls://broker.example:1"]),
    ):
        cluster = ClusterConnection("mesh", connector="me", static_connectors=others)
        with pytest.raises(SettingsError, match="another one than the default"):
            async with Broker("hq", data_dir=None, connectors=connectors, services=[cluster]):
                pytest.fail("it started")


def test_one_name_of_a_peer_has_one_password() -> None:
    services = [
        ClusterConnection(name, connector="me", user="cluster", password=f"canary-{name}") for name in ("one", "two")
    ]
    with pytest.raises(SettingsError, match="one password for the cluster user 'cluster'") as caught:
        Broker("hq", data_dir=None, services=services)
    assert "canary" not in str(caught.value)


async def test_a_tls_acceptor_without_room_just_closes_and_a_plain_one_says_why(files: Files) -> None:
    for secure in (True, False):
        async with broker(files if secure else None) as node:
            port = Endpoint.parse(node.urls[0]).port
            bounds = connection_bounds(real_env().descriptors)
            idle = [await TcpNetwork().connect("127.0.0.1", port) for _ in range(bounds.per_address)]
            with trio.fail_after(4):
                while node.statistics().connections_turned_away == 0:
                    one_more = await TcpNetwork().connect("127.0.0.1", port)
                    heard = await one_more.receive(4_096)
                    one_more.close()
            assert heard.startswith(b"MQ") is not secure and (heard == b"") is secure
            for stream in idle:
                stream.close()


async def test_a_user_has_as_many_sessions_as_the_operator_says() -> None:
    async with Broker(
        "hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"], security=SECURITY, max_sessions_per_user=2
    ) as node:
        async with connect(node.urls[0], **WHO), connect(node.urls[0], **WHO):
            error = await why_not(node.urls[0], **WHO)
            assert isinstance(error.__cause__, NotActiveError)
            assert "the user 'app' has 2, and may have 2" in str(error)
            async with connect(node.urls[0], user="ops", password="canary-other") as other:
                await other.send("q", b"x")
        async with connect(node.urls[0], **WHO, initial_connect_attempts=5) as again:
            await again.send("q", b"x")
