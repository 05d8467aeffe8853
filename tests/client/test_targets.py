"""The list of nodes that a client may connect to changes, while the client is connected and while it fails over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import trio

from meshq import ConnectionBrokenError
from meshq.abc import Env, TargetPolicy, TopologySource
from meshq.client import Client, ClientSettings, connect
from meshq.client.link._connector import ClientTargets, ConnectTarget, TcpTarget
from meshq.client.link._targets_plan import LastFirst
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError
from meshq.testing import TARGET_POLICY_CHECKS, NonconformanceError, check_target_policy
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import until_attached


def at(port: int) -> Endpoint:
    return Endpoint("tcp", "127.0.0.1", port)


class ListTopology(TopologySource):
    """The nodes that a test says; how often they were asked for is counted."""

    def __init__(self, *known: Endpoint) -> None:
        self.known = known
        self.asked = 0

    def endpoints(self) -> Sequence[Endpoint]:
        self.asked += 1
        return self.known


def client_of(topology: TopologySource, env: Env, policy: TargetPolicy | None = None, **settings: object) -> Client:
    def connector(endpoint: Endpoint) -> ConnectTarget:
        return TcpTarget(endpoint, env, insecure=False)

    targets = ClientTargets(topology=topology, policy=policy or LastFirst(), connector=connector)
    return Client(targets, ClientSettings.build(settings), env)


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    yield [FakeNode(name=name, node_id=name.encode() * 16) for name in "abc"]


async def test_a_list_that_changes_ends_no_connection_and_counts_at_the_next_loss(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    topology = ListTopology(at(1), at(2))
    async with client_of(topology, env) as client:
        topology.known = (at(3),)
        await client.send("q", b"1")
        assert (client.statistics().node_name, topology.asked) == ("a", 1)
        nodes[0].cut(forget=True)
        await until_attached(client, 2)
        await client.send("q", b"2")
        assert (client.statistics().node_name, topology.asked) == ("c", 2)
    assert [node.bodies for node in nodes] == [[b"1"], [], [b"2"]]


async def test_a_node_that_appears_while_a_client_fails_over_is_tried_in_the_next_round(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    topology = ListTopology(at(1))
    async with client_of(topology, env) as client, trio.open_nursery() as nursery:
        nodes[0].up = False
        nodes[0].cut()
        nursery.start_soon(client.send, "q", b"1")
        await trio.sleep(10)
        assert topology.asked > 3 and client.statistics().node_name != "b"
        topology.known = (at(1), at(2))
    assert nodes[1].bodies == [b"1"]


async def test_a_client_that_knows_no_node_waits_until_it_knows_one(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    topology = ListTopology()
    async with trio.open_nursery() as nursery:
        client = client_of(topology, env, initial_connect_attempts=100)
        nursery.start_soon(used_by, client, lambda: client.send("q", b"1"))
        await trio.sleep(10)
        topology.known = (at(2),)
    assert nodes[1].bodies == [b"1"]


async def used_by(client: Client, call: Callable[[], object]) -> None:
    async with client:
        await call()  # type: ignore[misc]


async def test_a_client_that_never_knows_a_node_gives_up_and_says_why(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    with pytest.raises(ConnectionBrokenError, match="no node is known to connect to") as caught:
        async with client_of(ListTopology(), env):
            pass
    assert caught.value.outcome == "not_done"


async def test_a_node_that_may_not_be_dialed_is_passed_over(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    far = Endpoint("tcp", "far.example", 1)
    async with client_of(ListTopology(far, at(2)), env) as client:
        assert client.statistics().node_name == "b"
    with pytest.raises(ConnectionBrokenError, match="plaintext to this machine only") as caught:
        async with client_of(ListTopology(far), env):
            pass
    assert isinstance(caught.value.__cause__, SettingsError)


async def test_a_list_that_shrinks_within_a_round_counts_at_the_next_round(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    known = [at(4), at(5), at(6)]
    tried: list[int] = []

    class LiveTopology(TopologySource):
        def endpoints(self) -> Sequence[Endpoint]:
            return known

    def connector(endpoint: Endpoint) -> ConnectTarget:
        tried.append(endpoint.port)
        if len(tried) == 2:
            known[:] = [at(2)]
        return TcpTarget(endpoint, env, insecure=False)

    targets = ClientTargets(topology=LiveTopology(), policy=LastFirst(), connector=connector)
    async with Client(targets, ClientSettings.build({"initial_connect_attempts": 2}), env) as client:
        await client.send("q", b"1")
    assert tried == [4, 5, 6, 2]
    assert nodes[1].bodies == [b"1"]


async def test_a_node_that_a_url_names_twice_is_tried_once_in_a_round() -> None:
    env, network = fake_env()
    with pytest.raises(ConnectionBrokenError):
        url = "(tcp://127.0.0.1:2,tcp://127.0.0.1:1,tcp://127.0.0.1:2)"
        async with connect(url, env=env, load_balancing="first_element"):
            pass
    assert [port for *_, port in network.dialed] == [2, 1]


class Backwards(TargetPolicy):
    """The last of the list first, whatever came before."""

    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        return endpoints[::-1]


async def test_the_policy_says_who_is_tried_first(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    async with client_of(ListTopology(at(1), at(2), at(3)), env, Backwards()) as client:
        assert client.statistics().node_name == "c"
        nodes[2].up = False
        nodes[2].cut()
        await client.send("q", b"1")
        assert client.statistics().node_name == "b"


@pytest.mark.parametrize("check", TARGET_POLICY_CHECKS)
@pytest.mark.parametrize("policy", [LastFirst, Backwards])
def test_the_policies_conform(check: Callable[[TargetPolicy], None], policy: type[TargetPolicy]) -> None:
    check(policy())


class Forgetful(Backwards):
    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        return [one for one in endpoints if one != last]


class Turning(Backwards):
    turn = 0

    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        self.turn += 1
        turn = self.turn % max(len(endpoints), 1)
        return [*endpoints[turn:], *endpoints[:turn]]


@pytest.mark.parametrize(
    ("policy", "promise"), [(Forgetful, "every known node once"), (Turning, "an order has no memory")]
)
def test_a_policy_that_breaks_a_promise_is_found_out(policy: type[TargetPolicy], promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        check_target_policy(policy)
