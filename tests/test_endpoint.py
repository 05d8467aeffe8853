"""Endpoints as URLs."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq.client.settings._url import parse_url
from meshq.client.settings._url_format import Url
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("tcp://host:1", Endpoint("tcp", "host", 1)),
        ("tcp://host:0/", Endpoint("tcp", "host", 0)),
        ("tcp://[::1]:65535", Endpoint("tcp", "::1", 65_535)),
        ("tcp://HOST:1?a=b&c=", Endpoint("tcp", "host", 1, (("a", "b"), ("c", "")))),
        ("inproc://Shop", Endpoint("inproc", "Shop", 0)),
    ],
)
def test_an_endpoint_is_read_from_its_url(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    "url",
    [
        "", "host:1", "tcp://", "tcp://host", "tcp://:1", "tcp://host:x", "tcp://host:65536", "tcp://host:-1",
        "tcp://host:1/path", "tcp://host:1#part", "tcp://user@host:1", "tcp://user:secret@host:1", "udp://host:1",
        "inproc://", "inproc://name:1", "tcp://host:1?x", "tcp://[::1:1", b"tcp://host:1", None, 7,
    ],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused(url: object) -> None:
    with pytest.raises(SettingsError):
        Endpoint.parse(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["tcp://host:99999", "tls://[::1]:65536/?a=b"])
def test_a_port_that_is_too_large_is_told_what_is_allowed(url: str) -> None:
    with pytest.raises(SettingsError, match=r"with a port of 0 to 65,535$"):
        Endpoint.parse(url)
    with pytest.raises(SettingsError, match=r"inproc://NAME$"):
        Endpoint.parse("tcp://host:x")


@pytest.mark.parametrize("url", ["tcp://user:secret@host:1", "tcp://user:secret@", "tcp://a@secret@host", "secret@x"])
def test_a_password_in_a_url_is_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Endpoint.parse(url)
    assert "secret" not in str(caught.value) + repr(caught.value.value)
    assert "***@" in str(caught.value)


@pytest.mark.parametrize("url", ["tcp://h\ud800st:1", "tcp://host:1?a=\udcff", "inproc://\udcff"])
def test_half_a_character_is_in_no_url_and_the_error_can_be_printed(url: str) -> None:
    for parse in (Endpoint.parse, Url.parse, parse_url):
        with pytest.raises(SettingsError, match="without half a character") as caught:
            parse(url)
        str(caught.value).encode()


OPTIONS = st.lists(st.tuples(st.text("abc_", min_size=1, max_size=5), st.text(max_size=8)), max_size=3).map(tuple)
HOSTS = st.sampled_from(["localhost", "127.0.0.1", "::1", "a.example", "fe80::1"])


@given(st.builds(Endpoint, st.just("tcp"), HOSTS, st.integers(0, 65_535), OPTIONS))
def test_an_endpoint_is_read_back_from_what_it_says(endpoint: Endpoint) -> None:
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        (f"tcp://127.{'1' * 5_000}.0.1:1", False),
        ("tcp://localhost:1", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.255.0.3:1", True),
        ("tcp://[::1]:1", True),
        ("inproc://x", True),
        ("tcp://127.0.0.256:1", False),
        ("tcp://127.0.0:1", False),
        ("tcp://127.0.0.1.example:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://192.0.2.1:1", False),
        ("tcp://127.a.0.1:1", False),
    ],
)
def test_only_this_machine_reaches_the_loopback_device(url: str, loopback: bool) -> None:
    assert Endpoint.parse(url).loopback is loopback
