"""A quorum of witnesses over TLS, on real sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import trio

from meshq import TLS, SecurityError, SettingsError
from meshq.abc import QuorumRecord
from meshq.env import real_env
from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode
from meshq.ha.quorum.zookeeper._kazoo import EnsembleSettings, KazooSession
from meshq.settings import Acceptor
from tests.env.authorities import Authority

PASSWORD = "for tests only"
ID = b"i" * 16


@pytest.mark.slow
async def test_a_session_and_its_witnesses_speak_over_tls_and_another_authority_is_not_believed(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    side = TLS(certificate=ours.issue(tmp_path / "witness.pem", "127.0.0.1"))
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                QuorumNode(
                    name,
                    data_dir=tmp_path / name,
                    acceptors=[Acceptor("tls://127.0.0.1:0", tls=side)],
                    password=PASSWORD,
                    tick=0.2,
                )
            )
            for name in ("w0", "w1", "w2")
        ]
        urls = [node.urls[0] for node in nodes]

        def quorum(believed: Authority) -> MeshQuorum:
            tls = TLS(authorities=believed.write(tmp_path / "believed.pem"))
            return MeshQuorum(urls, password=PASSWORD, session=4.0, retries=0, connection_timeout=3.0, tls=tls)

        async with quorum(ours).session(ID, b"a" * 16) as session:
            assert await session.acquire()
            assert await session.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
            assert session.held_until > trio.current_time()
        async with quorum(others).session(ID, b"b" * 16) as session:
            with pytest.raises(SecurityError, match="is not trusted"):
                await session.acquire()


def test_the_way_to_zookeeper_is_tls_and_another_authority_is_not_believed(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    side.load_cert_chain(ours.issue(tmp_path / "server.pem", "127.0.0.1"))
    believed = tmp_path / "believed.pem"
    given = {"hosts": "127.0.0.1:1", "session_s": 3.0, "connection_timeout_s": 3.0, "retry_interval_s": 1.0}
    settings = EnsembleSettings(**given, auth=None, tls=TLS(authorities=str(believed)))
    ensemble = KazooSession(settings, real_env().threads, lambda: None)

    def create(address: tuple[str, int], *, hostname: str, timeout: float) -> socket.socket:
        return socket.create_connection(address, timeout)

    def serve() -> None:
        with suppress(OSError), side.wrap_socket(listener.accept()[0], server_side=True) as stream:
            stream.sendall(stream.recv(100))

    def dialed() -> bytes:
        server = threading.Thread(target=serve)
        server.start()
        try:
            with ensemble.dial(create, listener.getsockname(), "127.0.0.1") as stream:
                stream.sendall(b"for nobody else")
                return bytes(stream.recv(100))
        finally:
            server.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Without its file nothing is sent, and it is said which one; it is read anew each time.
        with pytest.raises(ConnectionAbortedError):
            ensemble.dial(create, listener.getsockname(), "127.0.0.1")
        assert isinstance(ensemble.refusal, SettingsError) and ensemble.refusal.setting == "authorities"
        ours.write(believed)
        assert dialed() == b"for nobody else"
        others.write(believed)
        with pytest.raises(ssl.SSLCertVerificationError):
            dialed()
