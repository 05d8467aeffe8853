"""Where a broker listens: several acceptors, each of which serves, and all interfaces at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import TLS, Acceptor, Broker, Security, connect
from tests.env.authorities import Authority

pytestmark = pytest.mark.real


async def test_all_acceptors_of_a_broker_serve_one_broker(tmp_path: Path) -> None:
    authority = Authority("ours")
    ours = authority.write(tmp_path / "ours.pem")
    shown = TLS(certificate=authority.issue(tmp_path / "broker.pem", "127.0.0.1"))
    acceptors = ["tcp://127.0.0.1:0?protocols=meshq", "tcp://127.0.0.1:0", Acceptor("tls://127.0.0.1:0", tls=shown)]
    async with Broker("hq", data_dir=None, acceptors=acceptors) as broker:
        plain, other, secure = broker.urls
        assert len({plain, other, secure}) == 3
        for url in (plain, other):
            async with connect(url) as client:
                await client.send("q", url.encode())
        async with connect(secure, tls=TLS(authorities=ours)) as client, client.consumer("q") as consumer:
            assert [message.body.decode() for message in await consumer.receive_many(10, timeout=5)] == [plain, other]


async def test_0_0_0_0_is_all_interfaces() -> None:
    security = Security(users={"app": "secret"})
    async with Broker("hq", data_dir=None, acceptors=["tcp://0.0.0.0:0?insecure=true"], security=security) as broker:
        (url,) = broker.urls
        assert url.startswith("tcp://0.0.0.0:")
        # The loopback device has more addresses than one.
        for address in ("127.0.0.1", "127.0.0.2"):
            async with connect(url.replace("0.0.0.0", address), user="app", password="secret") as client:
                await client.send("q", b"x")
