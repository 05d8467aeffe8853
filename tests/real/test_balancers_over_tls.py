"""Balancers over real TLS: host names and certificates as keys, and where a client does not follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import (
    TLS,
    Acceptor,
    Broker,
    BrokerBalancer,
    Client,
    ConnectionBrokenError,
    Security,
    SecurityError,
    StaticPool,
    UseAnotherServerError,
    abc,
    connect,
)
from meshq.env import real_env
from tests.cluster.kit import until
from tests.env.authorities import Authority

USERS = Security(users={"app": "canary-app", "probe": "canary-probe"})
APP = {"user": "app", "password": "canary-app"}
PROBE: dict[str, Any] = {"user": "probe", "password": "canary-probe", "check_period": 2.0}


class NamedHosts(abc.Network):
    """The network of this machine, on which every name is this machine."""

    def __init__(self, inner: abc.Network) -> None:
        self._inner = inner

    async def connect(self, host: str, port: int) -> abc.Stream:
        return await self._inner.connect("127.0.0.1", port)

    async def listen(self, host: str, port: int) -> abc.Listener:
        return await self._inner.listen(host, port)


class Files:
    """Certificates on disk."""

    def __init__(self, folder: Path) -> None:
        authority = Authority("ours")
        self.ours = authority.write(folder / "ours.pem")
        self.broker = authority.issue(folder / "broker.pem", "localhost", "*.shop.test")
        self.other = authority.issue(folder / "other.pem", "elsewhere.test")
        self.client = TLS(authorities=self.ours)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


ENV = attrs.evolve(real_env(), network=NamedHosts(real_env().network))


def dial(url: str, files: Files, host: str, **settings: Any) -> Client:
    port = url.rpartition(":")[2]
    return connect(f"tls://{host}:{port}", tls=files.client, env=ENV, use_topology=False, **{**APP, **settings})


@asynccontextmanager
async def target(files: Files, name: str, certificate: str = "") -> AsyncIterator[Broker]:
    acceptor = Acceptor("tls://127.0.0.1:0", tls=TLS(certificate=certificate or files.broker))
    async with Broker(name, data_dir=None, acceptors=[acceptor], security=USERS) as running:
        yield running


def place(broker: Broker, host: str) -> str:
    """A target under a name that its certificate has, or not."""
    return f"tls://{host}:{broker.urls[0].rpartition(':')[2]}"


@asynccontextmanager
async def front(files: Files, balancer: BrokerBalancer, wanted: int, **acceptor: Any) -> AsyncIterator[Broker]:
    tls = TLS(certificate=files.broker, authorities=files.ours)
    acceptors = [Acceptor("tls://127.0.0.1:0?redirect_to=lb", tls=tls)]
    settings: dict[str, Any] = {"data_dir": None, "security": USERS, "env": ENV, "acceptors": acceptors, **acceptor}
    async with Broker("front", services=[balancer], **settings) as running:
        await until(lambda: running.balancer("lb").statistics().ready == wanted)
        yield running


async def test_clients_go_by_the_host_name_that_they_asked_for_and_log_in_again_at_the_target(files: Files) -> None:
    async with target(files, "a") as a, target(files, "b") as b:
        places = [place(a, "a.shop.test"), place(b, "b.shop.test")]
        pool = StaticPool(places, tls=files.client, **PROBE)
        balancer = BrokerBalancer(
            "lb", target_key="sni_host", target_key_filter="^[^.]+", pool=pool, policy="round_robin"
        )
        async with front(files, balancer, 2) as running:
            found = {}
            for host in ("red", "blue", "red", "blue"):
                async with dial(running.urls[0], files, f"{host}.shop.test") as client:
                    await client.send("q", b"x")
                    there = client.statistics().node_name
                    assert found.setdefault(host, there) == there
            assert set(found.values()) == {"a", "b"}
            assert running.balancer("lb").explain_route("red").key == "red"
            # A wrong password ends at the front: nobody is told where anything is.
            with pytest.raises(SecurityError):
                async with dial(running.urls[0], files, "red.shop.test", password="canary-wrong"):
                    pass


async def test_a_client_follows_to_a_host_whose_certificate_has_that_name(files: Files) -> None:
    async with target(files, "a", files.other) as a:
        # The broker of the pool believes the certificate: it dials the name that is in it, and tells that name.
        pool = StaticPool([place(a, "elsewhere.test")], tls=files.client, **PROBE)
        balancer = BrokerBalancer("lb", pool=pool)
        async with front(files, balancer, 1) as running, dial(running.urls[0], files, "red.shop.test") as client:
            assert client.statistics().node_name == "a"


async def test_a_client_goes_nowhere_else_when_the_certificate_of_a_target_has_another_name(files: Files) -> None:
    other = Authority("theirs")
    theirs = other.write(Path(files.ours).with_name("theirs.pem"))
    certificate = other.issue(Path(files.ours).with_name("stranger.pem"), "a.shop.test")
    async with target(files, "a", certificate) as a:
        # The broker believes another authority than the client does.
        pool = StaticPool([place(a, "a.shop.test")], tls=TLS(authorities=theirs), **PROBE)
        async with front(files, BrokerBalancer("lb", pool=pool), 1) as running:
            with pytest.raises(ConnectionBrokenError, match="certificate") as caught:
                async with dial(running.urls[0], files, "red.shop.test", initial_connect_attempts=2):
                    pass
            assert caught.value.outcome == "not_done" and a.statistics().sessions == 0


async def test_a_client_does_not_follow_to_plaintext(files: Files) -> None:
    async with Broker("a", data_dir=None, acceptors=["tcp://127.0.0.1:0"], security=USERS) as a:
        pool = StaticPool([a.urls[0]], **PROBE)
        async with front(files, BrokerBalancer("lb", pool=pool), 1) as running:
            with pytest.raises(UseAnotherServerError, match="which is less safe: not followed") as caught:
                async with dial(running.urls[0], files, "red.shop.test"):
                    pass
            assert caught.value.outcome == "not_done"
            assert a.statistics().sessions == 0
