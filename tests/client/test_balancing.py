"""Connections of one factory are spread over nodes by a policy, and go on where the policy says when one is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from threading import Lock
from typing import Any

import pytest
import trio

from meshq import (
    BalancerPolicy,
    BalancerTarget,
    Client,
    ClientFactory,
    ConnectionBrokenError,
    Endpoint,
    FirstElement,
    Random,
    RandomSticky,
    RoundRobin,
    SettingsError,
    UsageError,
    aio,
    blocking,
    connect,
)
from meshq.abc import Env
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import until_attached

FOUR = "(tcp://127.0.0.1:1,tcp://127.0.0.1:2,tcp://127.0.0.1:3,tcp://127.0.0.1:4)"


class LastElement(BalancerPolicy):
    """The last one of the list."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return targets[-1] if targets else None


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    yield [FakeNode(name=name, node_id=name.encode() * 16) for name in "abcd"]


def name_of(client: Client) -> str:
    return client.statistics().node_name


async def begun(factory: ClientFactory, count: int) -> str:
    """The names of the nodes to which so many connections go, one after another."""
    async with AsyncExitStack() as stack:
        return "".join([name_of(await stack.enter_async_context(factory.connect())) for _ in range(count)])


def down(node: FakeNode) -> None:
    node.up = False
    node.cut(forget=True)


@pytest.mark.parametrize("settings", [{}, {"load_balancing": "round_robin"}, {"load_balancing": RoundRobin()}])
async def test_eight_connections_over_four_nodes_are_two_each_and_each_fourth_is_at_the_same(
    nodes: list[FakeNode], settings: dict[str, Any]
) -> None:
    env, _ = fake_env(*nodes)
    factory = ClientFactory(FOUR, env=env, **settings)
    made = await begun(factory, 8)
    assert Counter(made) == dict.fromkeys("abcd", 2) and made[:4] == made[4:] and made[:4] in "abcdabc"
    # Sessions of a client are connections of its factory, and later ones go on with the row.
    async with factory.connect() as client, client.session() as other:
        assert name_of(client) + name_of(other) == made[:2]


async def test_factories_begin_anywhere(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    assert {await begun(ClientFactory(FOUR, env=env), 1) for _ in range(60)} == set("abcd")


@pytest.mark.parametrize("use_topology", [False, True])
async def test_four_connections_over_two_listed_servers_are_two_each(nodes: list[FakeNode], use_topology: bool) -> None:
    env, _ = fake_env(*nodes[:2])
    url = "(tcp://127.0.0.1:1,tcp://127.0.0.1:2)"
    assert Counter(await begun(ClientFactory(url, env=env, use_topology=use_topology), 4)) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (FirstElement, {"aaaaaaaa"}),
        ("first_element", {"aaaaaaaa"}),
        (LastElement(), {"dddddddd"}),
        (f"{__name__}:LastElement", {"dddddddd"}),
        (RandomSticky(), {name * 8 for name in "abcd"}),
    ],
)
async def test_the_policy_says_where_connections_go(nodes: list[FakeNode], given: Any, expected: set[str]) -> None:
    env, _ = fake_env(*nodes)
    assert await begun(ClientFactory(FOUR, env=env, load_balancing=given), 8) in expected


@pytest.mark.parametrize(
    "spelling", ["connectionLoadBalancingPolicyClassName", "loadBalancingPolicyClassName", "load_balancing"]
)
async def test_a_url_may_name_the_policy(nodes: list[FakeNode], spelling: str) -> None:
    env, _ = fake_env(*nodes)
    assert await begun(ClientFactory(f"{FOUR}?{spelling}=first_element", env=env), 4) == "aaaa"
    assert await begun(ClientFactory(f"{FOUR}?{spelling}={__name__}:LastElement", env=env), 4) == "dddd"
    made = await begun(ClientFactory(f"{FOUR}?{spelling}=random", env=env), 60)
    assert set(made) == set("abcd") and made[:4] * 15 != made


async def test_the_url_of_one_server_may_name_a_policy_and_goes_there(nodes: list[FakeNode]) -> None:
    env, network = fake_env()
    network.nodes["localhost", 61616] = nodes[0]
    factory = ClientFactory("tcp://localhost:61616?connectionLoadBalancingPolicyClassName=random", env=env)
    assert factory.load_balancing == "random" and await begun(factory, 3) == "aaa"


async def test_each_factory_has_a_copy_of_its_policy(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)

    class Counting(LastElement):
        asked = 0

        def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
            self.asked += 1
            return targets[(self.asked - 1) % len(targets)]

    policy = Counting()
    one, other = (ClientFactory(FOUR, env=env, load_balancing=policy) for _ in range(2))
    assert (await begun(one, 3), await begun(other, 2), await begun(one, 2)) == ("abc", "ab", "da")
    assert policy.asked == 0


async def test_a_policy_that_can_not_be_copied_is_named_with_what_it_takes(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)

    class Locked(LastElement):
        def __init__(self) -> None:
            self.lock = Lock()

    class Beginning(Locked):
        def begin(self, chance: int) -> BalancerPolicy:
            return Beginning()

    with pytest.raises(SettingsError, match=r"load_balancing='Locked' .* a policy that can be copied, or has a begin"):
        await begun(ClientFactory(FOUR, env=env, load_balancing=Locked), 1)
    assert await begun(ClientFactory(FOUR, env=env, load_balancing=Beginning), 2) == "dd"


async def test_the_policy_is_told_where_nodes_are_and_whose_client_asks(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes[:2])
    asked: list[tuple[list[tuple[str, str, bool]], str]] = []

    class Curious(LastElement):
        def begin(self, chance: int) -> BalancerPolicy:
            return self

        def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
            asked.append(([(one.url, one.node_id, one.local) for one in targets], key))
            return targets[0]

    url = "(tcp://127.0.0.1:1?connection_timeout=5,tcp://127.0.0.1:2)"
    factory = ClientFactory(url, env=env, load_balancing=Curious(), client_id="shop")
    assert await begun(factory, 2) == "aa"
    places = [("tcp://127.0.0.1:1", "", False), ("tcp://127.0.0.1:2", "", False)]
    met = [("tcp://127.0.0.1:1", (b"a" * 16).hex(), False), places[1]]
    assert asked == [(places, "shop"), (met, "shop")]


def test_a_policy_is_given_before_the_first_use_of_its_factory() -> None:
    for face in (aio, blocking, None):
        factory: Any = (
            face.ClientFactory("tcp://127.0.0.1:1") if face is not None else ClientFactory("tcp://127.0.0.1:1")
        )
        assert factory.load_balancing is None
        factory.load_balancing = "random"
        with pytest.raises(SettingsError, match="load_balancing"):
            factory.load_balancing = "last"
        assert factory.load_balancing == factory.settings.load_balancing == "random"
        factory.connect()
        with pytest.raises(UsageError, match="before its first use") as caught:
            factory.load_balancing = Random()
        assert caught.value.outcome == "not_done" and factory.load_balancing == "random"


async def test_a_policy_that_is_set_is_used(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    factory = ClientFactory(FOUR, env=env)
    factory.load_balancing = LastElement
    assert await begun(factory, 3) == "ddd"


# -- lists of objects


LISTED = [Endpoint("tcp", "myhost", 61616), Endpoint("tcp", "myhost2", 61617)]


@pytest.mark.parametrize("given", [LISTED, tuple(LISTED), [str(one) for one in LISTED], [LISTED[0], str(LISTED[1])]])
async def test_hosts_and_ports_as_objects_are_the_same_as_the_url_that_lists_them(
    nodes: list[FakeNode], given: Sequence[Endpoint | str]
) -> None:
    url = "(tcp://myhost:61616,tcp://myhost2:61617)"
    made = []
    for target in (given, url):
        env, network = fake_env()
        network.nodes["myhost", 61616], network.nodes["myhost2", 61617] = nodes[:2]
        factory = ClientFactory(target, env=env, insecure=True, load_balancing="first_element", reconnect_attempts=5)
        assert factory.endpoints == tuple(LISTED)
        async with factory.connect() as client:
            assert name_of(client) == "a"
            down(nodes[0])
            await until_attached(client, 2)
            made.append((name_of(client), [(host, port) for _, host, port in network.dialed][-2:], repr(factory)))
        nodes[0].up = True
    assert made[0] == made[1]
    async with connect(given, env=env, insecure=True) as client:
        assert name_of(client) in "ab"
    for face in (aio, blocking):
        assert face.ClientFactory(given, insecure=True).endpoints == tuple(LISTED)


@pytest.mark.parametrize(
    "given", [[], [3], ["(tcp://127.0.0.1:1"], [Endpoint("tcp", "127.0.0.1", 0)], {"tcp://127.0.0.1:1"}]
)
def test_a_list_with_what_is_no_broker_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="url"):
        ClientFactory(given)


# -- when nodes are lost


async def test_when_the_chosen_node_can_not_be_reached_the_next_ones_are_tried_in_turn(nodes: list[FakeNode]) -> None:
    env, network = fake_env(*nodes)
    down(nodes[0])
    down(nodes[1])
    assert await begun(ClientFactory(FOUR, env=env, load_balancing="first_element"), 2) == "cc"
    assert [port for *_, port in network.dialed] == [1, 2, 3, 1, 2, 3]
    network.dialed.clear()
    down(nodes[3])
    assert await begun(ClientFactory(FOUR, env=env, load_balancing=LastElement), 1) == "c"
    assert [port for *_, port in network.dialed] == [4, 1, 2, 3]


async def test_the_last_node_is_tried_first_and_then_the_one_that_the_policy_chooses(nodes: list[FakeNode]) -> None:
    env, network = fake_env(*nodes)
    async with connect(FOUR, env=env, load_balancing=LastElement) as client:
        nodes[3].cut()
        await until_attached(client, 2)
        assert client.statistics().resumed == 1
        network.dialed.clear()
        down(nodes[3])
        await until_attached(client, 3)
        assert [port for *_, port in network.dialed] == [4, 3]


async def test_clients_that_lose_one_node_are_spread_over_the_others(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    factory = ClientFactory(FOUR, env=env)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(factory.connect()) for _ in range(24)]
        down(nodes[0])
        for client in clients:
            if name_of(client) == "a":
                await until_attached(client, 2)
        assert Counter(map(name_of, clients)) == dict.fromkeys("bcd", 8)


async def test_the_policy_is_asked_once_for_each_search(
    nodes: list[FakeNode],
) -> None:
    env, _ = fake_env(*nodes)
    asked: list[int] = []

    class Counting(LastElement):
        def begin(self, chance: int) -> BalancerPolicy:
            return self

        def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
            asked.append(len(targets))
            return super().select(targets, key)

    for node in nodes:
        down(node)
    with pytest.raises(ConnectionBrokenError):
        async with connect(FOUR, env=env, load_balancing=Counting(), initial_connect_attempts=5):
            pass
    assert asked == [4]


# -- policies that choose nothing, or anything


class Never(LastElement):
    """None of them."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return None

    def __repr__(self) -> str:
        return "Never()"


async def test_a_policy_that_chooses_none_has_none_dialed_and_the_error_says_so(nodes: list[FakeNode]) -> None:
    env, network = fake_env(*nodes)
    with pytest.raises(ConnectionBrokenError, match=r"Never\(\) chose none of the 4 nodes that are known") as caught:
        async with connect(FOUR, env=env, load_balancing=Never, initial_connect_attempts=3):
            pass
    assert caught.value.outcome == "not_done" and not network.dialed


async def test_a_policy_that_chooses_none_leaves_a_client_with_the_node_that_it_had(nodes: list[FakeNode]) -> None:
    env, network = fake_env(*nodes)

    class Once(LastElement):
        asked = 0

        def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
            self.asked += 1
            return targets[0] if self.asked == 1 else None

    async with connect(FOUR, env=env, load_balancing=Once) as client:
        down(nodes[0])
        await trio.sleep(5)
        nodes[0].up = True
        await until_attached(client, 2)
    assert {port for *_, port in network.dialed} == {1}


class Elsewhere(LastElement):
    """Another one than it was given."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return BalancerTarget(url="tcp://127.0.0.1:9")


class Failing(LastElement):
    """A policy with a defect."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        raise LookupError("a defect of the policy")


def client_of(env: Env, policy: type[BalancerPolicy]) -> Client:
    return connect(FOUR, env=env, load_balancing=policy)


async def test_a_policy_that_chooses_what_it_was_not_given_is_an_error_that_shows_it(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    with pytest.raises(SettingsError, match=r"load_balancing.*Elsewhere.select.*127.0.0.1:9.*one of the given targets"):
        async with client_of(env, Elsewhere):
            pass


async def test_the_error_of_a_policy_comes_out_of_connect(nodes: list[FakeNode]) -> None:
    env, _ = fake_env(*nodes)
    with pytest.raises(LookupError, match="a defect of the policy"):
        async with client_of(env, Failing):
            pass
