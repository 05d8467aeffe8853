"""A cluster connection that is told no connector of its own: the first acceptor's URL with its real port."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from meshq import Broker, ClusterConnection, DiscoveryGroup, SettingsError
from meshq.abc import LocalBroker, NodeControl, Service
from meshq.config import load_broker
from meshq.errors import ConfigError
from meshq.node._settings import dialed_url
from meshq.settings import Acceptor
from tests.cluster.kit import PATIENCE_S, until
from tests.cluster.test_discovery import LAN, finders, joined

HERE = "tcp://127.0.0.1:0"


class Listener(Service):
    """Notes which nodes have linked, and where each of them says that it is."""

    def __init__(self) -> None:
        self.name = "listener"
        self.told: list[tuple[bytes, str]] = []

    def announce(self, control: NodeControl) -> None:
        pass

    async def serve(self, broker: LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        broker.demand.watch_peers(lambda *about: self.told.append(about))
        task_status.started()
        await trio.sleep_forever()


def connection(*others: str, **settings: Any) -> ClusterConnection:
    return ClusterConnection("mesh", **{"static_connectors": others, "user": "u", "password": "p", **settings})


def node(name: str, *services: Service, **settings: Any) -> Broker:
    """A node at a port that the system chooses."""
    return Broker(name, **{"data_dir": None, "acceptors": [HERE], "services": services, **settings})


@pytest.mark.real
async def test_a_cluster_forms_on_ports_that_the_system_has_chosen() -> None:
    with trio.fail_after(PATIENCE_S):
        async with (
            node("a", connection()) as a,
            node("b", connection(*a.urls)) as b,
            node("c", connection(*a.urls, *b.urls)) as c,
        ):
            await c.cluster("mesh").wait_for(nodes=3)
            assert [peer.connector for peer in c.cluster("mesh").peers()] == [*a.urls, *b.urls]
            assert all(not url.endswith(":0") for broker in (a, b, c) for url in broker.urls)


@pytest.mark.real
async def test_one_that_lists_nobody_is_linked_both_ways_at_ports_that_the_system_has_chosen() -> None:
    with trio.fail_after(PATIENCE_S):
        async with node("a", connection()) as a, node("b", connection(*a.urls)) as b:
            for one, other in ((a, b), (b, a)):
                await one.cluster("mesh").wait_for(nodes=2)
                told = {known.name: known.primary for known in one.cluster("mesh").topology()}
                assert told == {"a": a.urls[0], "b": b.urls[0]}
                assert [peer.connector for peer in one.cluster("mesh").peers()] == [*other.urls]


@pytest.mark.real
async def test_the_others_are_told_the_real_port_of_the_first_acceptor() -> None:
    listener = Listener()
    with trio.fail_after(PATIENCE_S):
        async with (
            node("a", connection(), listener) as a,
            node("b", connection(*a.urls), acceptors=[HERE, HERE]) as b,
        ):
            await until(lambda: bool(listener.told))
            # When it links, and with each announcement.
            assert set(listener.told) == {(bytes(b.node_id), b.urls[0])}


async def test_nodes_that_are_announced_are_dialed_as_the_first_acceptor_is() -> None:
    """Beyond this machine that is plaintext, which the acceptor has allowed."""
    async with finders("ab", cluster={"connector": None}) as nodes:
        await joined(nodes, *"ab")
        for name, other in ("ab", "ba"):
            assert [peer.connector for peer in nodes.known(name).peers()] == [f"tcp://{other}:5000?insecure=true"]


@attrs.frozen
class Refused:
    acceptors: list[str]
    said: str


REFUSED = {
    "no acceptor": Refused(
        [], "connector=None is not allowed; allowed: a connector of the broker, which has no acceptor"
    ),
    **{
        host: Refused([f"tcp://{host}:61616?insecure=true"], f"nobody can dial its acceptor tcp://{host}:61616")
        for host in ("0.0.0.0", "[::]", "[::0]", "0")
    },
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("settings", [{}, {"discovery": DiscoveryGroup("lan", LAN)}], ids=["listed", "announced"])
def test_without_an_acceptor_that_others_can_dial_a_connector_has_to_be_named(
    case: Refused, settings: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match="connector=None") as caught:
        node("a", connection(**settings), acceptors=case.acceptors)
    assert case.said in str(caught.value)
    if case.acceptors:
        acceptors = ["tcp://127.0.0.1:1", *case.acceptors]
        assert node("a", connection(**settings), acceptors=acceptors).state == "new"
        named = connection(connector="me", **settings)
        assert node("a", named, acceptors=case.acceptors, connectors={"me": HERE}).state == "new"


def test_a_file_without_it_is_told_the_line_of_the_connection(tmp_path: Any) -> None:
    file = tmp_path / "broker.toml"
    text = 'name = "b"\ndata_dir = false\n[[services]]\nkind = "cluster_connection"\nname = "mesh"\npassword = "p"\n'
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_broker(file)
    ((_, line, key, said),) = caught.value.problems
    assert (line, key) == (3, "services[0].connector")
    assert said.endswith("nothing is not allowed; allowed: a connector of the broker, which has no acceptor")
    file.write_text('acceptors = ["tcp://127.0.0.1:0"]\n' + text)
    assert load_broker(file).cluster("mesh").settings.connector is None


@pytest.mark.parametrize(
    ("acceptor", "bound", "dialed"),
    [
        (Acceptor("tcp://127.0.0.1:0"), "", "tcp://127.0.0.1:0"),
        (Acceptor("tcp://127.0.0.1:0?protocols=meshq"), "tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
        (Acceptor("tcp://hq:5", insecure=True), "", "tcp://hq:5?insecure=true"),
        (Acceptor("tcp://[::1]:0"), "tcp://[::1]:9", "tcp://[::1]:9"),
    ],
)
def test_an_acceptor_is_dialed_where_it_listens(acceptor: Acceptor, bound: str, dialed: str) -> None:
    assert dialed_url(acceptor, bound) == dialed
