"""Clients that come in by their certificates: over real TLS, mapped to users, or refused."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from meshq import (
    TLS,
    Acceptor,
    Broker,
    Client,
    ConnectionBrokenError,
    ConsumerCreated,
    Permissions,
    Security,
    SecurityError,
    SessionCreated,
    connect,
)
from tests.env.authorities import Authority

AUTHORITY = Authority("ours")
PASSWORD = {"user": "app", "password": "canary-right"}


class Files:
    """Certificates on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = AUTHORITY.write(folder / "ours.pem")
        self.broker = AUTHORITY.issue(folder / "broker.pem", "127.0.0.1", "localhost")
        self.stranger = Authority("another one").issue(folder / "stranger.pem", "app")

    def issue(self, *names: str, common: str | None = None) -> tuple[TLS, str]:
        """A client's side of TLS, and the fingerprint of its certificate."""
        issued = AUTHORITY.made.issue_cert(*names, common_name=common)
        path = self.folder / f"{len(list(self.folder.iterdir()))}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
        return TLS(certificate=path, authorities=self.ours), hashlib.sha256(der).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@asynccontextmanager
async def broker(files: Files, asks: str = "required", **security: Any) -> AsyncIterator[Broker]:
    tls = TLS(certificate=files.broker, authorities=files.ours, client_certificates=asks)
    acceptor = Acceptor("tls://127.0.0.1:0", tls=tls)
    async with Broker("hq", data_dir=None, acceptors=[acceptor], security=Security(**security)) as running:
        yield running


def user_of(node: Broker) -> str:
    """Who the one connection of a broker belongs to."""
    assert node._node is not None
    (connection,) = node._node.listeners.connections
    return connection.server.handshake.user


async def works(client: Client) -> None:
    await client.send("q", b"x")


NAMES: list[tuple[tuple[str, ...], str | None, str]] = [
    (("app.example",), None, "DNS=app.example"),
    (("app.example",), "app", "CN=app"),
    (("app@example.org",), None, "EMAIL=app@example.org"),
]


@pytest.mark.parametrize(("names", "common", "identity"), NAMES)
async def test_a_certificate_stands_for_a_user_without_a_password(
    files: Files, names: tuple[str, ...], common: str | None, identity: str
) -> None:
    tls, _ = files.issue(*names, common=common)
    async with broker(files, certificates={identity: "app"}) as node, connect(node.urls[0], tls=tls) as client:
        await works(client)
        assert user_of(node) == "app"


async def test_a_broker_tells_which_host_name_a_client_asked_for_and_what_it_calls_itself(files: Files) -> None:
    tls, _ = files.issue("app.example", common="app")
    async with broker(files, certificates={"CN=app": "app"}) as node:
        events = node.events()
        by_name, by_address = node.urls[0].replace("127.0.0.1", "localhost"), node.urls[0]
        for url in (by_name, by_address):
            async with connect(url, tls=tls, client_id="till 7") as client, client.consumer("q"):
                pass
    told = [event for event in [event async for event in events] if isinstance(event, SessionCreated | ConsumerCreated)]
    sessions, consumers = told[::2], told[1::2]
    # Who it is was known before anything was done.
    assert [type(event) for event in told] == [SessionCreated, ConsumerCreated] * 2
    assert [event.session for event in sessions] == [event.session for event in consumers]
    assert [(event.label, event.server_name) for event in sessions if isinstance(event, SessionCreated)] == [
        ("till 7", "localhost"),
        ("till 7", ""),
    ]


async def test_a_fingerprint_stands_for_a_user_however_it_is_written(files: Files) -> None:
    tls, digest = files.issue("app.example")
    written = ":".join(digest[index : index + 2] for index in range(0, 64, 2)).upper()
    mapped = {f"SHA256={written}": "app"}
    async with broker(files, certificates=mapped) as node, connect(node.urls[0], tls=tls) as client:
        await works(client)
        assert user_of(node) == "app"


async def test_a_certificate_that_stands_for_nobody_is_refused_and_counted(files: Files) -> None:
    tls, _ = files.issue("other.example", common="other")
    async with broker(files, users={"app": "canary-right"}, certificates={"CN=app": "app"}) as node:
        with pytest.raises(SecurityError, match="the certificate of CN=other stands for no user here") as caught:
            async with connect(node.urls[0], tls=tls):
                pytest.fail("it came in")
        assert caught.value.outcome == "not_done"
        assert node.statistics().connections_denied == 1 and node.statistics().sessions == 0
        # It does not keep out who has a password.
        async with connect(node.urls[0], tls=tls, **PASSWORD) as client:
            await works(client)


async def test_a_certificate_that_stands_for_two_users_is_refused(files: Files) -> None:
    tls, _ = files.issue("app.example", common="app")
    async with broker(files, certificates={"CN=app": "app", "DNS=app.example": "other"}) as node:
        with pytest.raises(SecurityError, match="stands for 2 users"):
            async with connect(node.urls[0], tls=tls):
                pytest.fail("it came in")


async def test_a_name_counts_only_where_somebody_we_believe_vouches_for_it(files: Files) -> None:
    stranger = TLS(certificate=files.stranger, authorities=files.ours)
    async with broker(files, asks="optional", users={"app": "canary-right"}, certificates={"DNS=app": "app"}) as node:
        with pytest.raises((SecurityError, ConnectionBrokenError)):
            async with connect(node.urls[0], tls=stranger):
                pytest.fail("it came in")
        with pytest.raises(SecurityError, match="asks for a user and a password"):
            async with connect(node.urls[0], tls=TLS(authorities=files.ours)):
                pytest.fail("it came in")
        async with connect(node.urls[0], tls=TLS(authorities=files.ours), **PASSWORD) as client:
            await works(client)


async def test_the_user_of_a_certificate_has_the_permissions_of_that_user(files: Files) -> None:
    tls, _ = files.issue("app.example")
    security = {
        "certificates": {"DNS=app.example": "app"},
        "roles": {"app": {"readers"}},
        "permissions": {"#": Permissions(consume={"readers"}, create={"readers"})},
    }
    async with broker(files, **security) as node, connect(node.urls[0], tls=tls) as client:
        async with client.consumer("q"):
            pass
        with pytest.raises(SecurityError, match="'app' lacks the permission 'send' at 'q'"):
            await works(client)


async def test_a_session_is_resumed_by_the_same_certificate_only(files: Files) -> None:
    tls, _ = files.issue("app.example")
    async with broker(files, certificates={"DNS=app.example": "app"}) as node, connect(node.urls[0], tls=tls) as client:
        await works(client)
        link = client._connection._link
        assert link is not None
        link.stream._stream.close()  # type: ignore[attr-defined]
        await works(client)
        assert client.statistics().resumed == 1 and user_of(node) == "app"
