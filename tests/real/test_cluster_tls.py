"""Links between nodes over TLS: certificates made here, and each side believes one authority only."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meshq import TLS, Acceptor, Broker, CallTimeoutError, ClusterConnection, SettingsError
from tests.env.authorities import Authority


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def node(name: str, ports: dict[str, int], folder: Path, mine: Authority, believed: Authority) -> Broker:
    """A node of a cluster, with a certificate of one authority, that believes another or the same."""
    urls = {other: f"tls://127.0.0.1:{port}" for other, port in ports.items()}
    mesh = ClusterConnection(
        "mesh",
        connector=name,
        static_connectors=[other for other in ports if other != name],
        user="mesh",
        password="for tests",
        tls=TLS(authorities=believed.write(folder / f"{name}-believes.pem")),
        max_retry_interval=0.05,
        retry_interval=0.05,
    )
    certificate = TLS(certificate=mine.issue(folder / f"{name}.pem", "127.0.0.1"))
    return Broker(
        name, data_dir=None, acceptors=[Acceptor(urls[name], tls=certificate)], connectors=urls, services=[mesh]
    )


async def test_messages_go_to_another_node_over_tls(tmp_path: Path) -> None:
    ports, ours = {"a": free_port(), "b": free_port()}, Authority("ours")
    async with (
        node("a", ports, tmp_path, ours, ours) as a,
        node("b", ports, tmp_path, ours, ours) as b,
        a.client() as here,
        b.client() as there,
        there.consumer("q") as consumer,
    ):
        await a.cluster("mesh").wait_for(nodes=2, queue="q", consumers=1, timeout=20)
        await here.send_many("q", [b"%d" % number for number in range(100)])
        got: list[bytes] = []
        while len(got) < 100:
            batch = await consumer.receive_many(100, timeout=20)
            assert batch
            await consumer.ack(*batch)
            got += [delivery.body for delivery in batch]
        assert got == [b"%d" % number for number in range(100)]


@pytest.mark.processes
async def test_a_node_whose_authority_is_not_believed_is_not_linked_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports, ours, strangers = {"a": free_port(), "b": free_port()}, Authority("ours"), Authority("somebody else's")
    async with node("b", ports, tmp_path, strangers, ours), node("a", ports, tmp_path, ours, ours) as a:
        with pytest.raises(CallTimeoutError, match="1 of 2 nodes"):
            await a.cluster("mesh").wait_for(nodes=2, timeout=1)
    assert "for tests" not in caplog.text


def test_what_is_no_tls_is_refused_when_it_is_built() -> None:
    with pytest.raises(SettingsError, match="tls"):
        ClusterConnection("mesh", connector="me", tls="yes")
