"""What a URL looks like: every one of the ActiveMQ documentation is read, and written as the same again."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq.client.settings._url_format import Url
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError
from meshq.limits import URL_DEPTH_MAX

CLASS = "org.apache.activemq.artemis.api.core.client.loadbalance.RandomConnectionLoadBalancingPolicy"
TWO = (Url("tcp", True, "localhost:61716"), Url("tcp", True, "localhost:61816"))
#: Each with what it says.
DOCUMENTED = [
    ("tcp://localhost:61616", Url("tcp", True, "localhost:61616")),
    ("tcp://0.0.0.0:61001", Url("tcp", True, "0.0.0.0:61001")),
    ("udp://231.7.7.7:9876", Url("udp", True, "231.7.7.7:9876")),
    ("multicast://default", Url("multicast", True, "default")),
    ("zeroconf://NEGroup", Url("zeroconf", True, "NEGroup")),
    (
        "(tcp://myhost:61616,tcp://myhost2:61616)?reconnectAttempts=5",
        Url(
            "",
            False,
            inside=(Url("tcp", True, "myhost:61616"), Url("tcp", True, "myhost2:61616")),
            bracketed=True,
            query="reconnectAttempts=5",
        ),
    ),
    (
        "(tcp://localhost:61616?name=node-0,tcp://localhost:61617?name=node-1)?ha=true&reconnectAttempts=-1",
        Url(
            "",
            False,
            inside=(
                Url("tcp", True, "localhost:61616", query="name=node-0"),
                Url("tcp", True, "localhost:61617", query="name=node-1"),
            ),
            bracketed=True,
            query="ha=true&reconnectAttempts=-1",
        ),
    ),
    (
        f"tcp://localhost:61616?connectionLoadBalancingPolicyClassName={CLASS}",
        Url("tcp", True, "localhost:61616", query=f"connectionLoadBalancingPolicyClassName={CLASS}"),
    ),
    (
        "static:(tcp://localhost:61002)",
        Url("static", False, inside=(Url("tcp", True, "localhost:61002"),), bracketed=True),
    ),
    (
        "discovery://(static://(tcp://localhost:61716,tcp://localhost:61816))",
        Url("discovery", True, inside=(Url("static", True, inside=TWO, bracketed=True),), bracketed=True),
    ),
    (
        "discovery://(multicast://default)?connectionTimeout=10000",
        Url(
            "discovery",
            True,
            inside=(Url("multicast", True, "default"),),
            bracketed=True,
            query="connectionTimeout=10000",
        ),
    ),
    ("fanout://multicast://default", Url("fanout", True, inside=(Url("multicast", True, "default"),))),
    (
        "tcp://0.0.0.0:61616?redirect-to=simple-balancer;protocols=CORE",
        Url("tcp", True, "0.0.0.0:61616", query="redirect-to=simple-balancer;protocols=CORE"),
    ),
]


@pytest.mark.parametrize(("text", "url"), DOCUMENTED)
def test_every_url_of_the_documentation_is_read_and_written_as_the_same_again(text: str, url: Url) -> None:
    assert Url.parse(text) == url
    assert str(url) == text


def test_options_stand_between_ampersands_or_semicolons_for_clients_and_acceptors_alike() -> None:
    expected = (("redirect-to", "simple-balancer"), ("protocols", "CORE"))
    for separator in "&;":
        text = f"tcp://0.0.0.0:61616?redirect-to=simple-balancer{separator}protocols=CORE"
        assert Url.parse(text).options == Endpoint.parse(text).options == expected
    assert Url.parse("tcp://a:1?x=%26%3B%2C%29").options == (("x", "&;,)"),)


NAMES = st.text("abcXYZ019.-", min_size=1, max_size=8)
SCHEMES = st.sampled_from(["tcp", "tls", "inproc", "udp", "multicast", "static", "discovery", "fanout", "x-y.z+1"])
QUERIES = st.none() | st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=3).map(
    lambda pairs: "&".join(f"{key}={value}" for key, value in pairs)
)
PLACES = st.builds(Url, SCHEMES, st.just(True), NAMES.map(lambda name: f"{name}:1"), query=QUERIES)


def around(inner: st.SearchStrategy[Url]) -> st.SearchStrategy[Url]:
    inside = st.lists(inner, min_size=1, max_size=3).map(tuple)
    lists = st.builds(Url, st.just(""), st.just(False), inside=inside, bracketed=st.just(True), query=QUERIES)
    outer = st.builds(Url, SCHEMES, st.booleans(), inside=inside, bracketed=st.just(True), query=QUERIES)
    bare = st.builds(Url, SCHEMES, st.booleans(), inside=st.tuples(PLACES))
    return lists | outer | bare


@pytest.mark.slow
@given(st.recursive(PLACES, around, max_leaves=5))
def test_whatever_is_written_is_read_as_the_same(url: Url) -> None:
    assert Url.parse(str(url)) == url
    assert str(Url.parse(str(url))) == str(url)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "()", "(tcp://a:1", "(tcp://a:1,)", "(,tcp://a:1)", "(tcp://a:1)x", "tcp://a:1)",
        "tcp://a:1,tcp://b:1", "static:(tcp://a:1))",
        "(" * (URL_DEPTH_MAX + 2) + "tcp://a:1" + ")" * (URL_DEPTH_MAX + 2),
        "a:b:c:" * 50_000, 7,
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        Url.parse(text)


@pytest.mark.parametrize("text", ["(tcp://me:secret@a:1", "(tcp://a:1?password=secret", "x(tcp://me:secret@a:1"])
def test_a_password_is_not_repeated(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Url.parse(text)
    assert "secret" not in str(caught.value)
