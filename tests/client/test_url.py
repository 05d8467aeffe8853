"""Client URLs: what they mean, and what is refused."""

from __future__ import annotations

import math
import ssl
from typing import Any

import attrs
import pytest

from meshq.client import ClientFactory, ClientSettings, connect, factory_of
from meshq.client.settings._fanout_rules import FanoutRules
from meshq.client.settings._place_options import PLACE_OPTIONS, connection_timeout
from meshq.client.settings._url import SNAKE_CASE, parse_url
from meshq.discovery import UDPMulticast, Zeroconf
from meshq.env import real_env
from meshq.errors import SettingsError
from meshq.settings import TLS
from tests.client._server import FakeNode, fake_env


@pytest.mark.parametrize(
    ("query", "settings"),
    [
        ("", {}),
        ("?reconnect_attempts=5&call_timeout=2.5", {"reconnect_attempts": 5, "call_timeout": 2.5}),
        ("?reconnect_attempts=inf", {"reconnect_attempts": math.inf}),
        ("?reconnectAttempts=5", {"reconnect_attempts": 5}),
        ("?reconnectAttempts=-1", {"reconnect_attempts": math.inf}),
        ("?initialConnectAttempts=-1", {"initial_connect_attempts": math.inf}),
        (
            "?retryInterval=500&maxRetryInterval=4000&retryIntervalMultiplier=1.5",
            {"retry_interval": 0.5, "max_retry_interval": 4.0, "retry_interval_multiplier": 1.5},
        ),
        ("?callTimeout=1500&callFailoverTimeout=-1", {"call_timeout": 1.5, "call_failover_timeout": math.inf}),
        ("?connectionTTL=5000&clientFailureCheckPeriod=1000", {"connection_ttl": 5.0, "check_period": 1.0}),
        ("?confirmationWindowSize=65536&clientID=me", {"confirmation_window": 65536, "client_id": "me"}),
        ("?confirmationWindowSize=-1", {"confirmation_window": math.inf}),
        ("?confirmation_window=inf", {"confirmation_window": math.inf}),
        ("?min_large_message_size=2048", {"min_large_message_size": 2048}),
        ("?minLargeMessageSize=2048", {"min_large_message_size": 2048}),
        ("?useTopologyForLoadBalancing=false&insecure=true", {"use_topology": False, "insecure": True}),
        ("?load_balancing=random_sticky", {"load_balancing": "random_sticky"}),
        ("?loadBalancingPolicyClassName=first_element", {"load_balancing": "first_element"}),
        ("?connectionLoadBalancingPolicyClassName=meshq:Random", {"load_balancing": "meshq:Random"}),
        ("?initialWaitTimeout=10000&resend=false", {"initial_wait_timeout": 10.0, "resend": False}),
    ],
)
def test_an_option_means_its_setting(query: str, settings: dict[str, Any]) -> None:
    factory = ClientFactory(f"tcp://127.0.0.1:61616{query}")
    for name, value in settings.items():
        assert getattr(factory.settings, name) == value


@pytest.mark.parametrize("written", ["discovery:(multicast://x)", "discovery://multicast://x", "discovery:multicast:x"])
def test_an_agent_needs_no_brackets_where_there_are_no_options_behind_them(written: str) -> None:
    read, inside = parse_url(written), parse_url(f"{written}?refresh_timeout=3&call_timeout=5")
    assert read.heard_at is not None and read.heard_at.endpoint == UDPMulticast.named("x")
    assert read.heard_at.refresh_timeout == 5.0 and read.options == {}
    assert inside.heard_at is not None and inside.heard_at.refresh_timeout == 3.0
    assert inside.options == {"call_timeout": 5.0}


@pytest.mark.parametrize(
    ("query", "settings"),
    [
        ("", (math.inf, math.inf, 0.01, 2.0, 30.0)),
        ("?maxReconnectAttempts=0", (math.inf, math.inf, 0.01, 2.0, 30.0)),
        ("?maxReconnectAttempts=3", (3, 3, 0.01, 2.0, 30.0)),
        ("?initialReconnectDelay=200&maxReconnectDelay=400", (math.inf, math.inf, 0.2, 2.0, 0.4)),
        ("?initial_reconnect_delay=0.2&max_reconnect_delay=4", (math.inf, math.inf, 0.2, 2.0, 4.0)),
        ("?useExponentialBackOff=false", (math.inf, math.inf, 0.01, 1.0, 30.0)),
        ("?backOffMultiplier=3&useExponentialBackOff=true", (math.inf, math.inf, 0.01, 3.0, 30.0)),
        ("?reconnect_attempts=0", (1, 0, 0.01, 2.0, 30.0)),
        ("?initial_connect_attempts=2", (2, math.inf, 0.01, 2.0, 30.0)),
    ],
)
def test_discovery_has_a_table_of_its_own_for_coming_back(query: str, settings: tuple[float, ...]) -> None:
    got = ClientFactory(f"discovery:(multicast://default){query}").settings
    attempts = (got.initial_connect_attempts, got.reconnect_attempts)
    assert (*attempts, got.retry_interval, got.retry_interval_multiplier, got.max_retry_interval) == settings


@pytest.mark.parametrize(
    "agent", ["multicast://x", "udp://231.7.7.7:9", "zeroconf://x", "static:(tcp://[::1]:1,tcp://[::1]:2)"]
)
def test_fanout_is_read_as_discovery_is_and_has_the_same_table(agent: str) -> None:
    written = [f"fanout:({agent})", f"fanout://({agent})", f"fanout:{agent}", f"fanout://{agent}"]
    read = [parse_url(url) for url in written]
    assert read == [read[0]] * 4
    other = parse_url(f"discovery:({agent})")
    assert attrs.evolve(read[0], fanout=None) == other
    assert read[0].fanout == FanoutRules(min_ack_count=2, fan_out_queues=False) and other.fanout is None
    for options in ("minAckCount=1&fanOutQueues=true", "min_ack_count=1&fan_out_queues=true"):
        found = parse_url(f"fanout://({agent})?{options}&initialReconnectDelay=200&connectionTimeout=5000")
        assert found.fanout == FanoutRules(min_ack_count=1, fan_out_queues=True)
        assert found.options == {"retry_interval": 0.2}
        # An option of places goes to each broker found; the others are used up.
        on_places = (("connectionTimeout", "5000"),)
        assert found.place_options == on_places or {target.options for target in found.targets} == {on_places}


@pytest.mark.parametrize("name", ["use_topology", "load_balancing", "initial_wait_timeout", "initial_wait_for"])
def test_a_keyword_by_which_one_broker_is_chosen_is_refused_with_fanout(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}=.* fanout:, which sends to all brokers"):
        ClientFactory("fanout:(multicast://x)", **{name: 1})  # type: ignore[arg-type]


def test_a_link_of_a_node_can_not_fan_out() -> None:
    with pytest.raises(SettingsError, match="one or more brokers"):
        factory_of("fanout:(static:(tcp://127.0.0.1:1,tcp://127.0.0.1:2))", "target", env=real_env())


def test_a_keyword_beats_what_discovery_takes_unless_told() -> None:
    settings = ClientFactory("discovery:(multicast://default)", retry_interval=0.5).settings
    assert (settings.retry_interval, settings.max_retry_interval) == (0.5, 30.0)


def test_a_url_of_a_multicast_group_is_that_endpoint_with_its_options() -> None:
    url = "udp://231.7.7.7:9876?localBindAddress=127.0.0.1&localBindPort=-1&refreshTimeout=500&callTimeout=5000"
    read = parse_url(url)
    assert read.heard_at is not None and read.targets == ()
    assert read.heard_at.endpoint == UDPMulticast("231.7.7.7", 9876, bind_address="127.0.0.1")
    assert (read.heard_at.refresh_timeout, read.options) == (0.5, {"call_timeout": 5.0})
    settings = ClientFactory("udp://231.7.7.7:9876").settings
    assert (settings.initial_wait_timeout, settings.initial_wait_for) == (10, None)


def test_a_group_of_dns_sd_is_named_by_a_url() -> None:
    for url in ("zeroconf://NEGroup", "discovery:(zeroconf://NEGroup)", "discovery:zeroconf:NEGroup"):
        read = parse_url(f"{url}?localBindAddress=127.0.0.1")
        assert read.heard_at is not None
        assert read.heard_at.endpoint == Zeroconf("NEGroup", bind_address="127.0.0.1")


@pytest.mark.parametrize(
    ("url", "timeouts"),
    [
        ("tcp://127.0.0.1:1?connectionTimeout=10000&callTimeout=5", [10.0]),
        ("(tcp://127.0.0.1:1,tcp://127.0.0.1:2)?connection_timeout=2.5", [2.5, 2.5]),
        ("(tcp://127.0.0.1:1?connection_timeout=1,tcp://127.0.0.1:2)?connectionTimeout=2000", [1.0, 2.0]),
        ("static:(tcp://127.0.0.1:1,tcp://127.0.0.1:2?connectionTimeout=-1)", [math.inf, math.inf]),
        ("discovery:(static:(tcp://127.0.0.1:1,tcp://127.0.0.1:2))?connectionTimeout=10000", [10.0, 10.0]),
        ("discovery:(static:(tcp://127.0.0.1:1?connectionTimeout=500))?connectionTimeout=10000", [0.5]),
        ("inproc://hq?connection_timeout=inf", [math.inf]),
    ],
)
def test_an_option_of_places_goes_to_each_place_and_no_other_option_does(url: str, timeouts: list[float]) -> None:
    factory = ClientFactory(url)
    assert [connection_timeout(endpoint) for endpoint in factory.endpoints] == timeouts
    assert {key for endpoint in factory.endpoints for key, _ in endpoint.options} <= {*PLACE_OPTIONS}


def test_every_setting_is_an_option_or_is_said_to_stand_beside_the_url() -> None:
    assert set(SNAKE_CASE) == {field.name for field in attrs.fields(ClientSettings)}


def test_a_bracketed_list_is_a_list_of_targets_with_options_for_all() -> None:
    factory = ClientFactory("(tcp://127.0.0.1:1, tcp://localhost:2,inproc://Hq)?reconnect_attempts=5")
    assert [str(endpoint) for endpoint in factory.endpoints] == [
        "tcp://127.0.0.1:1",
        "tcp://localhost:2",
        "inproc://Hq",
    ]
    assert factory.settings.reconnect_attempts == 5


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("tcp://127.0.0.1:1?reconect_attempts=5", "'reconnect_attempts'"),
        ("tcp://127.0.0.1:1?callTimeOut=5", "'callTimeout'"),
        ("tcp://127.0.0.1:1?call_timeout=soon", "a number"),
        ("tcp://127.0.0.1:1?call_timeout=nan", "a number"),
        ("tcp://127.0.0.1:1?call_timeout=0", "call_timeout=0"),
        ("tcp://127.0.0.1:1?insecure=1", "true or false"),
        ("tcp://127.0.0.1:1?reconnect_attempts=2.5", "a whole number"),
        ("tcp://127.0.0.1:1?reconnect_attempts=-1", "a whole number"),
        ("tcp://127.0.0.1:1?callTimeout=1&call_timeout=1", "call_timeout once"),
        ("tcp://127.0.0.1:1?call_timeout", "key=value"),
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
        ("http://127.0.0.1:80", "tcp://HOST:PORT"),
        ("", "tcp://HOST:PORT"),
        (7, "tcp://HOST:PORT"),
        ("(tcp://127.0.0.1:1", "tcp://HOST:PORT"),
        ("(tcp://127.0.0.1:1)x", "tcp://HOST:PORT"),
        ("()", "tcp://HOST:PORT"),
        ("(tcp://127.0.0.1:1?call_timeout=1,tcp://127.0.0.1:2)", "once, after the bracket"),
        ("(tcp://127.0.0.1:1)?call_timeout", "key=value"),
        ("fanout:(tcp://127.0.0.1:1,tcp://127.0.0.1:2)", "an agent in brackets"),
        ("fanout:(discovery:(multicast://x))", "an agent in brackets"),
        ("fanout:(static:(tcp://127.0.0.1:1))", "at most the number of brokers in the list"),
        ("fanout:(multicast://x)?min_ack_count=0", "min_ack_count=0"),
        ("fanout:(multicast://x)?fanOutQueues=yes", "true or false"),
        ("fanout:(multicast://x)?min_ack_count=1&minAckCount=1", "min_ack_count once"),
        ("fanout:(multicast://x)?initial_wait_for=2", "the nearest one is"),
        ("fanout:(multicast://x)?use_topology=false", "the nearest one is"),
        ("fanout:(multicast://x)?min_ack_cuont=2", "'min_ack_count'"),
        ("discovery:(multicast://x)?min_ack_count=2", "a known setting"),
        ("zeroconf://a-b", "letters and digits"),
        ("zeroconf://" + "x" * 63, "a name of 1 to 62 letters and digits"),
        ("zeroconf://x?bind_port=5", "no port with zeroconf:"),
        ("tcp://127.0.0.1:1?connectionTimeout=0", "a number of milliseconds above 0, or -1"),
        ("tcp://127.0.0.1:1?connection_timeout=-1", "a number of seconds above 0, or inf"),
        ("tcp://127.0.0.1:1?connection_timeout=nan", "a number of seconds above 0, or inf"),
        ("tcp://127.0.0.1:1?connectionTimeout=soon", "a number of milliseconds above 0, or -1"),
        ("tcp://127.0.0.1:1?connectionTimeout=1&connection_timeout=1", "connection_timeout once"),
        ("discovery:(multicast://x?connectionTimeout=1)?connectionTimeout=1", "connection_timeout once"),
        ("udp://231.7.7.7:9876?connectionTimeout=x", "a number of milliseconds above 0, or -1"),
        ("(tcp://127.0.0.1:1?connectionTimeout=x)", "a number of milliseconds above 0, or -1"),
        ("tcp://127.0.0.1:1?connectionTimeOut=5", "'connectionTimeout'"),
        ("discovery:(multicast://x)?connection_timout=5", "'connection_timeout'"),
        ("udp://231.7.7.7", "udp://GROUP:PORT"),
        ("udp://231.7.7.7:" + "9" * 5_000, "udp://GROUP:PORT"),
        ("udp://231.7.7.7:0", "port=0"),
        ("udp://240.0.0.1:9876", "an address from 224.0.0.1"),
        ("udp://231.7.7.7:9876?refresh_timout=1", "'refresh_timeout'"),
        ("udp://231.7.7.7:9876?refreshTimeout=0", "refresh_timeout=0"),
        ("udp://231.7.7.7:9876?bind_port=1", "together with bind_address"),
        ("udp://231.7.7.7:9876?bind_address=here", "the IPv4 address of an interface"),
        ("udp://231.7.7.7:9876?initial_wait_for=0", "a whole number of brokers from 1 to 1024"),
        ("udp://231.7.7.7:9876?initial_wait_timeout=-1", "initial_wait_timeout=-1"),
        ("udp://231.7.7.7:9876?secret=x", "secret= beside the URL"),
        ("udp://231.7.7.7:9876?maxReconnectAttempts=3", "'reconnectAttempts'"),
        ("tcp://127.0.0.1:1?refreshTimeout=500", "the nearest one is"),
        ("tcp://127.0.0.1:1?name=a", "a name of a place in a list"),
        ("(tcp://127.0.0.1:1,tcp://127.0.0.1:2)?name=a", "a name of a place in a list"),
        ("multicast://a-b", "letters and digits"),
        ("multicast://", "letters and digits"),
        ("udp:(tcp://127.0.0.1:1)", "tcp://HOST:PORT"),
        ("static://tcp://127.0.0.1:1", "tcp://HOST:PORT"),
        ("static:(multicast://default)", "tcp://HOST:PORT"),
        ("discovery:(tcp://127.0.0.1:1,tcp://127.0.0.1:2)", "an agent in brackets"),
        ("discovery:(tcp://127.0.0.1:1)", "an agent in brackets"),
        ("discovery:(discovery:(multicast://x))", "an agent in brackets"),
        ("discovery:(multicast://x)?useExponentialBackOff=false&backOffMultiplier=3", "no back-off without it"),
        ("discovery:(multicast://x)?reconnectAttempts=3&maxReconnectAttempts=3", "reconnect_attempts once"),
        ("x:(tcp://127.0.0.1:1)", "tcp://HOST:PORT"),
        ("(tcp://127.0.0.1:1?name=)", "no other place of the list has"),
        ("(tcp://127.0.0.1:1?name=a,tcp://127.0.0.1:2?name=a)", "no other place of the list has"),
        ("(tcp://127.0.0.1:1?name=a&name=b)", "no other place of the list has"),
        ("(tcp://127.0.0.1:1?name=a)?use_topology=false", "where the topology counts"),
        ("(inproc://a?name=a)", "where the topology counts"),
        ("tcp://127.0.0.1:1?ha=yes", "true or false"),
        ("tcp://127.0.0.1:1?ha=true&use_topology=false", "use_topology once"),
        (
            "tcp://127.0.0.1:1?loadBalancingPolicyClassName=x.Y",
            "'round_robin', 'random', 'random_sticky', 'first_element'",
        ),
        ("tcp://127.0.0.1:1?load_balancing=Random", "'round_robin', 'random', 'random_sticky'"),
        ("tcp://127.0.0.1:1?load_balancing=random&loadBalancingPolicyClassName=random", "load_balancing once"),
        ("(" * 10 + "tcp://127.0.0.1:1" + ")" * 10, "tcp://HOST:PORT"),
        ("tcp://example.org:61616", "insecure=True"),
        ("tcp://127.0.0.1:1?user=app", "a user with a password"),
        ("tcp://127.0.0.1:1?user=app&password=x", "password= beside the URL, not in it"),
        ("tls://127.0.0.1:1?tls=x", "tls= beside the URL"),
    ],
)
def test_what_is_wrong_or_not_served_is_refused_by_name(url: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        connect(url)
    assert message in str(caught.value)
    assert caught.value.outcome == "not_done"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "app"),
        ("user", ""),
        ("user", 7),
        ("tls", object()),
        ("load_balancing", "last"),
        ("load_balancing", 3),
        ("load_balancing", ClientFactory),
        ("initial_wait_for", 0),
        ("initial_wait_for", 2.0),
        ("initial_wait_for", 1_025),
        ("initial_wait_timeout", -1),
        ("initial_wait_timeout", "10"),
        ("use_topology", 1),
        ("client_id", "a\nb"),
        ("insecure", "yes"),
        ("initial_connect_attempts", 0),
        ("reconnect_attempts", -1),
        ("reconnect_attempts", True),
        ("retry_interval", 0),
        ("retry_interval_multiplier", 0.5),
        ("max_retry_interval", math.inf),
        ("call_timeout", 0),
        ("call_timeout", "30"),
        ("connection_ttl", 0),
        ("check_period", -1),
        ("confirmation_window", 1),
        ("confirmation_window", 1e6),
        ("resend", None),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        connect("inproc://x", **{name: value})
    assert caught.value.setting == name
    assert str(caught.value).startswith(f"{name}=")


def test_a_password_is_never_shown() -> None:
    for make in (
        lambda: connect("inproc://x", password="canary"),
        lambda: connect("inproc://x?password=canary"),
        lambda: connect("inproc://x?password=a", password="canary"),
        lambda: connect("inproc://x?pasword=canary"),
        lambda: connect("tls://x:1?password=canary"),
        lambda: connect("udp://x:1?password=canary"),
        lambda: connect("inproc://x", user="", password="canary"),
        lambda: connect("inproc://x", user="app", password=b"canary"),
    ):
        with pytest.raises(SettingsError) as caught:
            make()
        assert "canary" not in str(caught.value)


def test_an_unknown_setting_names_the_nearest_known_one() -> None:
    with pytest.raises(SettingsError, match="'reconnect_attempts'"):
        connect("inproc://x", reconnect_attempt=1)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="not both"):
        connect("inproc://x?call_timeout=1", call_timeout=2)


def test_building_a_client_touches_nothing() -> None:
    env, network = fake_env(FakeNode())
    client = connect("tcp://127.0.0.1:1", env=env)
    assert network.dialed == []
    assert repr(client) == "<Client new peer='' session=0 epoch=0>"
    assert repr(ClientFactory("inproc://n", env=env)) == "<ClientFactory inproc://n>"


def test_a_client_with_a_password_does_not_show_it() -> None:
    factory = ClientFactory("tcp://127.0.0.1:1?user=app", password="canary")
    assert factory.settings.password is not None and factory.settings.password.reveal() == "canary"
    assert "canary" not in repr(factory) + repr(factory.settings) + repr(factory.connect())


def test_tls_goes_with_urls_that_can_have_it_and_never_without() -> None:
    ClientFactory("(tls://broker.example:1,inproc://hq)", tls=TLS(authorities="a.pem"))
    ClientFactory("tls://broker.example:1", tls=ssl.create_default_context())
    ClientFactory("tls://broker.example:1")
    with pytest.raises(SettingsError, match="tls:// or inproc:// only"):
        ClientFactory("(tls://a:1,tcp://127.0.0.1:1)", tls=TLS())
    with pytest.raises(SettingsError, match="which a broker asks for"):
        ClientFactory("tls://a:1", tls=TLS(authorities="a.pem", client_certificates="required"))


@pytest.mark.parametrize("url", ["tcp://localhost:0", "(tls://a:1,tls://[::1]:0)?call_timeout=5"])
def test_nobody_connects_to_a_port_that_only_a_listener_may_have_chosen(url: str) -> None:
    with pytest.raises(SettingsError, match="a port of 1 to 65,535 to connect to"):
        parse_url(url)
