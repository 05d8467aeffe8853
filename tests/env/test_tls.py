"""TLS: the promises of a stream, kept through OpenSSL; and who is not believed."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from meshq.abc import Listener, Network, Stream, TlsSide
from meshq.env import OpenSslTls, TcpNetwork, TlsStream
from meshq.errors import ConnectionBrokenError, MeshqError, SecurityError, SettingsError
from meshq.settings import TLS
from meshq.testing import STREAM_CHECKS, MemoryNetwork, NetworkCheck, NetworkSides
from meshq.testing.conformance._network import closing
from meshq.testing.conformance._stream import read_exactly
from tests.env.authorities import Authority

HOST = "broker.example"
AUTHORITY = Authority("ours")
STRANGER = Authority("somebody else's")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


class Files:
    """Certificates on disk."""

    def __init__(self, folder: Path) -> None:
        self.ours = AUTHORITY.write(folder / "ours.pem")
        self.strangers = STRANGER.write(folder / "strangers.pem")
        self.broker = AUTHORITY.issue(folder / "broker.pem", HOST, "127.0.0.1")
        self.app = AUTHORITY.issue(folder / "app.pem", "app")
        self.stranger = STRANGER.issue(folder / "stranger.pem", HOST)


@attrs.define
class TlsNetwork(Network):
    """Streams over another network, under TLS."""

    below: Network
    side: TlsSide
    host: str | None = None

    async def connect(self, host: str, port: int) -> Stream:
        return await self.side.wrap(await self.below.connect(host, port), self.host)

    async def listen(self, host: str, port: int) -> Listener:
        return TlsListener(await self.below.listen(host, port), self.side)


@attrs.define
class TlsListener(Listener):
    """Accepts, and shakes hands."""

    below: Listener
    side: TlsSide

    async def accept(self) -> Stream:
        return await self.side.wrap(await self.below.accept())

    @property
    def port(self) -> int:
        return self.below.port

    def close(self) -> None:
        self.below.close()


class TlsSides(NetworkSides):
    """Both ends have to shake hands at once."""

    async def pair(self) -> tuple[Stream, Stream]:
        listener = await self.listen()
        ends: list[Stream] = []

        async def accept() -> None:
            ends.append(await listener.accept())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            near = await self.client.connect(self.host, listener.port)
        listener.close()
        return near, ends[0]


def sides_over(client: Network, server: Network, host: str, files: Files) -> TlsSides:
    tls = OpenSslTls()
    near = TlsNetwork(client, tls.client(TLS(authorities=files.ours)), HOST)
    far = TlsNetwork(server, tls.server(TLS(certificate=files.broker)))
    return TlsSides(near, far, host)


@asynccontextmanager
async def memory_sides(files: Files) -> AsyncIterator[TlsSides]:
    fabric = MemoryNetwork(random.Random(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fabric.run)
        yield sides_over(fabric.host("client"), fabric.host("server"), "server", files)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("check", STREAM_CHECKS)
async def test_tls_over_tcp_is_a_stream(check: NetworkCheck, files: Files) -> None:
    await check(sides_over(TcpNetwork(), TcpNetwork(), "127.0.0.1", files))


@pytest.mark.parametrize("check", STREAM_CHECKS)
async def test_tls_over_a_memory_network_is_a_stream(check: NetworkCheck, files: Files) -> None:
    async with memory_sides(files) as sides:
        await check(sides)


async def test_both_ends_know_the_servers_certificate(files: Files) -> None:
    async with memory_sides(files) as sides:
        near, far = await sides.pair()
        async with closing(near, far):
            assert near.binding == far.binding and len(near.binding) == 32
            assert "open" in repr(near) and near.peer in repr(near)
        assert "closed" in repr(near)


async def test_what_crosses_the_wire_is_encrypted(files: Files) -> None:
    sides = sides_over(TcpNetwork(), TcpNetwork(), "127.0.0.1", files)
    near, far = await sides.pair()
    async with closing(near, far):
        assert isinstance(near, TlsStream)
        below = near._stream
        sent: list[bytes] = []
        near._stream = Tap(below, sent)
        near.send_nowait(b"canary" * 100)
        assert await read_exactly(far, 600) == b"canary" * 100
        assert len(b"".join(sent)) > 600 and b"canary" not in b"".join(sent)


@attrs.define
class Tap(Stream):
    """Sees what goes through."""

    below: Stream
    sent: list[bytes]

    def send_nowait(self, data: Any) -> int:
        self.sent.append(bytes(data))
        return self.below.send_nowait(data)

    async def flush(self) -> None:
        await self.below.flush()

    async def receive(self, size_max: int) -> bytes:
        return await self.below.receive(size_max)

    def close(self) -> None:
        self.below.close()

    @property
    def peer(self) -> str:
        return self.below.peer


async def test_an_end_without_a_good_bye_is_no_orderly_end(files: Files) -> None:
    async with memory_sides(files) as sides:
        near, far = await sides.pair()
        assert isinstance(near, TlsStream)
        near.send_nowait(b"pay him 1")
        # Somebody in between ends the connection, and the rest (000,000) never comes.
        near._stream.close()
        async with closing(far):
            assert await read_exactly(far, 9) == b"pay him 1"
            with pytest.raises(ConnectionBrokenError, match="cut off"):
                await far.receive(10)


async def test_bytes_that_were_changed_under_way_break_the_stream(files: Files) -> None:
    async with memory_sides(files) as sides:
        near, far = await sides.pair()
        assert isinstance(near, TlsStream)
        near._stream.send_nowait(b"\x17\x03\x03\x00\x30" + bytes(48))
        async with closing(near, far):
            with pytest.raises(ConnectionBrokenError, match="broken"):
                await far.receive(10)


# -- who is not believed


def context(kind: int, *, authority: Authority | None = None, certificate: str | None = None) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    if authority is not None:
        authority.trust(made)
    if certificate is not None:
        made.load_cert_chain(certificate)
    return made


async def shake(
    server: TlsSide, client: TlsSide, host: str = HOST
) -> tuple[MeshqError | None, MeshqError | None, list[bytes]]:
    """What both ends say of a connection, and what the server heard of its client."""
    found: dict[str, MeshqError | None] = {"client": None, "server": None}
    heard: list[bytes] = []

    async def serve(listener: Listener) -> None:
        stream = await listener.accept()
        try:
            stream = await server.wrap(stream)
            heard.append(await stream.receive(100))
            stream.send_nowait(b"welcome")
            await stream.receive(100)
        except MeshqError as error:
            found["server"] = error
        stream.close()

    listener = await TcpNetwork().listen("127.0.0.1", 0)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, listener)
            stream = await TcpNetwork().connect("127.0.0.1", listener.port)
            try:
                stream = await client.wrap(stream, host)
                stream.send_nowait(b"hello")
                assert await stream.receive(100) == b"welcome"
            except MeshqError as error:
                found["client"] = error
            stream.close()
    listener.close()
    return found["client"], found["server"], heard


Pair = tuple[TlsSide, TlsSide]


def believing(files: Files, **server: Any) -> Pair:
    tls = OpenSslTls()
    return (
        tls.server(TLS(certificate=files.broker, **server)),
        tls.client(TLS(authorities=files.ours)),
    )


async def test_who_believes_each_other_talks(files: Files) -> None:
    tls = OpenSslTls()
    server = tls.server(TLS(certificate=files.broker, authorities=files.ours, client_certificates="required"))
    client = tls.client(TLS(certificate=files.app, authorities=files.ours))
    assert await shake(server, client) == (None, None, [b"hello"])
    # By an address, too, if the certificate has it.
    assert await shake(server, client, "127.0.0.1") == (None, None, [b"hello"])


async def test_contexts_of_the_program_are_as_good(files: Files) -> None:
    tls = OpenSslTls()
    server = tls.server(context(ssl.PROTOCOL_TLS_SERVER, certificate=files.broker))
    client = tls.client(context(ssl.PROTOCOL_TLS_CLIENT, authority=AUTHORITY))
    assert await shake(server, client) == (None, None, [b"hello"])


def expired(files: Files) -> Pair:
    old = AUTHORITY.issue(Path(files.ours).parent / "old.pem", HOST, expired=True)
    return OpenSslTls().server(TLS(certificate=old)), believing(files)[1]


def of_a_stranger(files: Files) -> Pair:
    return OpenSslTls().server(TLS(certificate=files.stranger)), believing(files)[1]


def for_the_system(files: Files) -> Pair:
    return believing(files)[0], OpenSslTls().client(None)


def without_a_client_certificate(files: Files) -> Pair:
    return believing(files, authorities=files.ours, client_certificates="required")


def with_a_strangers_client_certificate(files: Files) -> Pair:
    server, _ = without_a_client_certificate(files)
    return server, OpenSslTls().client(TLS(certificate=files.stranger, authorities=files.ours))


def with_an_optional_one_of_a_stranger(files: Files) -> Pair:
    server, _ = believing(files, authorities=files.ours, client_certificates="optional")
    return server, OpenSslTls().client(TLS(certificate=files.stranger, authorities=files.ours))


def with_another_protocol(files: Files) -> Pair:
    server, client = believing(files)
    client._context.set_alpn_protocols(["http/1.1"])  # type: ignore[attr-defined]
    return server, client


def server_with_another_protocol(files: Files) -> Pair:
    server, client = believing(files)
    server._context.set_alpn_protocols(["http/1.1"])  # type: ignore[attr-defined]
    return server, client


def client_of_tls_1_2(files: Files) -> Pair:
    server, client = believing(files)
    client._context.minimum_version = ssl.TLSVersion.TLSv1_2  # type: ignore[attr-defined]
    client._context.maximum_version = ssl.TLSVersion.TLSv1_2  # type: ignore[attr-defined]
    return server, client


def server_of_tls_1_2(files: Files) -> Pair:
    server, client = believing(files)
    server._context.minimum_version = ssl.TLSVersion.TLSv1_2  # type: ignore[attr-defined]
    server._context.maximum_version = ssl.TLSVersion.TLSv1_2  # type: ignore[attr-defined]
    return server, client


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (expired, "certificate has expired"),
        (of_a_stranger, "unable to get"),
        (for_the_system, "unable to get"),
        (without_a_client_certificate, "certificate required"),
        (with_a_strangers_client_certificate, "unknown ca"),
        (with_an_optional_one_of_a_stranger, "unknown ca"),
        (with_another_protocol, "speaks TLSv1.3 for None"),
        (server_with_another_protocol, "speaks TLSv1.3 for None"),
        (client_of_tls_1_2, "protocol version"),
        (server_of_tls_1_2, "protocol version"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_who_is_not_believed_is_refused_on_both_sides(
    make: Callable[[Files], Pair], says: str, files: Files
) -> None:
    client, server, heard = await shake(*make(files))
    assert type(client) is SecurityError and says in f"{client} {client.__cause__}"
    if isinstance(client.__cause__, ssl.SSLCertVerificationError):
        assert str(client).startswith("the certificate of ")
        assert str(client).endswith(f" is not trusted: {client.__cause__.verify_message}")
    assert heard == [] or "another_protocol" in make.__name__
    assert isinstance(server, SecurityError | ConnectionBrokenError)


async def test_a_certificate_for_another_host_is_refused(files: Files) -> None:
    client, server, heard = await shake(*believing(files), "other.example")
    assert type(client) is SecurityError and "is not trusted: " in str(client) and "other.example" in str(client)
    assert heard == [] and isinstance(server, SecurityError)


async def test_an_optional_certificate_may_be_missing(files: Files) -> None:
    assert await shake(*believing(files, authorities=files.ours, client_certificates="optional")) == (
        None,
        None,
        [b"hello"],
    )


async def test_who_speaks_no_tls_at_all_is_refused(files: Files) -> None:
    side = believing(files)[0]
    for said in (b"MQ\x01\x01" + bytes(60), b"GET / HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01"):
        listener = await TcpNetwork().listen("127.0.0.1", 0)
        near = await TcpNetwork().connect("127.0.0.1", listener.port)
        far = await listener.accept()
        near.send_nowait(said)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_later, near)
            with pytest.raises((SecurityError, ConnectionBrokenError)):
                await side.wrap(far)
        with pytest.raises(ConnectionBrokenError, match="closed"):
            far.send_nowait(b"x")
        listener.close()


@pytest.mark.parametrize("said", [b"MQ\x01\x07 crowded", b"MQ"])
async def test_a_node_that_answers_in_plaintext_may_be_asked_again(files: Files, said: bytes) -> None:
    listener = await TcpNetwork().listen("127.0.0.1", 0)
    stream = await TcpNetwork().connect("127.0.0.1", listener.port)
    there = await listener.accept()
    there.send_nowait(said + bytes(60))
    with pytest.raises(ConnectionBrokenError, match="has answered in plaintext") as caught:
        await OpenSslTls().client(TLS(authorities=files.ours)).wrap(stream, HOST)
    assert caught.value.outcome == "not_done" and isinstance(caught.value.__cause__, ssl.SSLError)
    there.close()
    listener.close()


async def _end_later(stream: Stream) -> None:
    await trio.testing.wait_all_tasks_blocked()
    stream.close()


async def test_a_handshake_that_goes_on_and_on_is_ended(files: Files) -> None:
    side = believing(files)[0]
    async with memory_sides(files) as sides:
        listener = await sides.server.below.listen("server", 0)  # type: ignore[attr-defined]
        near = await sides.client.below.connect("server", listener.port)  # type: ignore[attr-defined]
        far = await listener.accept()
        # Records of a handshake message that is said to be long.
        record = b"\x16\x03\x01\x40\x00"
        near.send_nowait(record + b"\x01\x01\x00\x00" + bytes(0x4000 - 4) + (record + bytes(0x4000)) * 8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.flush)
            nursery.start_soon(_end_later, near)
            with pytest.raises((SecurityError, ConnectionBrokenError)):
                await side.wrap(far)
            nursery.cancel_scope.cancel()


# -- settings that can't be used


def test_files_that_are_no_certificates_are_refused_by_name(files: Files, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    tls = OpenSslTls()
    for path in (str(empty), str(tmp_path / "none.pem"), files.ours):
        with pytest.raises(SettingsError, match="certificate="):
            tls.server(TLS(certificate=path))
    for path in (str(empty), str(tmp_path / "none.pem")):
        with pytest.raises(SettingsError, match="authorities="):
            tls.client(TLS(authorities=path))


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    path = AUTHORITY.issue(tmp_path / "locked.pem", HOST, password=b"canary")
    with pytest.raises(SettingsError, match="unencrypted key"):
        OpenSslTls().server(TLS(certificate=path))


def test_a_context_that_allows_too_much_is_refused(files: Files) -> None:
    tls = OpenSslTls()
    old = context(ssl.PROTOCOL_TLS_SERVER, certificate=files.broker)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    careless = context(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname = False
    blind = context(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    for make, given, says in (
        (tls.server, old, "minimum_version"),
        (tls.client, ssl.create_default_context(), "minimum_version"),
        (tls.client, careless, "check_hostname"),
        (tls.client, blind, "CERT_REQUIRED"),
        (tls.server, context(ssl.PROTOCOL_TLS_SERVER), "with a certificate and its key"),
        (tls.server, context(ssl.PROTOCOL_TLS_CLIENT), "with a certificate and its key"),
        (tls.server, object(), "TLS"),
        (tls.client, "x", "TLS"),
    ):
        with pytest.raises(SettingsError, match=says):
            make(given)


async def test_after_the_handshake_a_server_says_nothing_until_it_is_asked_to(files: Files) -> None:
    # A client that only sends would leave it unread, and its end would be a reset.
    async with memory_sides(files) as sides:
        near, far = await sides.pair()
        assert isinstance(near, TlsStream)
        async with closing(near, far):
            with trio.move_on_after(60):
                pytest.fail(f"it said {await near._stream.receive(100)!r}")


async def test_who_is_refused_is_given_time_to_hear_why(files: Files) -> None:
    server, client = without_a_client_certificate(files)
    async with memory_sides(files) as sides:
        listener = await sides.server.below.listen("server", 0)  # type: ignore[attr-defined]
        below = await sides.client.below.connect("server", listener.port)  # type: ignore[attr-defined]
        far = await listener.accept()
        ended: list[float] = []

        async def serve() -> None:
            with pytest.raises(SecurityError):
                await server.wrap(far)
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            near = await client.wrap(below, HOST)
            # It has not read yet that it needs a certificate.
            near.send_nowait(b"hello")
            await trio.sleep(3)
            assert ended == []
            with pytest.raises(SecurityError, match="certificate required"):
                await near.receive(100)
            near.close()
        assert len(ended) == 1
