"""Keys of connections, and the expressions that cut them or keep them here."""

from __future__ import annotations

import time

import attrs
import pytest

from meshq import SettingsError
from meshq.abc import HandshakeFacts
from meshq.lb import KeyFilter, filtered, key_of, source_ip

FACTS = HandshakeFacts(
    role="client",
    user="ada",
    label="FOO123",
    address="127.0.0.1:50000",
    server_name="Shop.Example",
    resumes=False,
    sessions=0,
    user_sessions=0,
    roles=("readers", "tenant-a"),
)


def test_a_key_is_taken_from_the_connection() -> None:
    found = {kind: key_of(FACTS, kind, None) for kind in ("client_id", "sni_host", "source_ip", "user_name")}
    assert found == {
        "client_id": "FOO123", "sni_host": "shop.example", "source_ip": "127.0.0.1", "user_name": "ada",
    }  # fmt: skip
    assert key_of(FACTS, "role_name", None) == "readers"
    assert key_of(FACTS, "role_name", KeyFilter("x", "^tenant-.")) == "tenant-a"


def test_an_address_counts_without_its_port_and_an_ipv6_address_too() -> None:
    assert source_ip("127.0.0.1:50000") == source_ip("127.0.0.1:50001") == "127.0.0.1"
    assert source_ip("127.0.0.2:50000") == "127.0.0.2"
    assert source_ip("[2001:db8::1]:50000") == source_ip("[2001:0db8:0:0::1]:50001") == "2001:db8::1"
    assert source_ip("[fe80::1%eth0]:1") == "fe80::1"
    assert source_ip("[::ffff:192.0.2.9]:9") == "192.0.2.9"
    assert source_ip("in process") == ""


def test_a_connection_without_the_key_has_the_key_default() -> None:
    bare = attrs.evolve(FACTS, user="", label="", server_name="", address="", roles=())
    for kind in ("client_id", "sni_host", "source_ip", "user_name", "role_name"):
        assert key_of(bare, kind, None) == "DEFAULT"


def test_a_key_filter_is_searched_for_and_what_it_finds_is_the_key() -> None:
    three = KeyFilter("target_key_filter", "^.{3}")
    assert filtered("FOO123", three) == filtered("FOO999", three) == "FOO"
    assert filtered("FO", three) == "FO"
    assert filtered("a.b", KeyFilter("x", "b")) == "b" and filtered("a.b", KeyFilter("x", "^[^.]+")) == "a"
    assert len(filtered("k" * 1_000, None)) == 256


def test_a_local_filter_has_to_match_the_whole_key() -> None:
    local = KeyFilter("local_target_filter", "^FOO.*")
    assert local.matches("FOO") and local.matches("FOO123") and not local.matches("BAR")
    assert not KeyFilter("x", "FOO").matches("FOO123") and not KeyFilter("x", ".*").matches("k" * 257)


@pytest.mark.parametrize(
    "text",
    ["^.{3}", "^[^.]+", "admin", r"^\d+-\w+$", "(eu|us)-.*", "^(?:a|b)c?$", "a{2,5}", "[]x]+", "[^]]",
     "(ab)+", r"[\]]*", r"\.", "^a.*b.*$", "x*?", "", "^|a", "{", "a{,3}", "(tenant-seventeen)+",
     "{a}", "a{x}", "(?:[0-9a-f]{4}-){1,8}"],
)  # fmt: skip
def test_an_expression_that_is_counted_is_taken(text: str) -> None:
    assert KeyFilter("x", text).text == text


@pytest.mark.parametrize(
    "text",
    ["(a+)+b", "(a|a)*b", "(a|b)+", "(a?){20}", ".*.*.*.*x", "^.*.*.*x", r"(a)\1", "(?=a)b", "(?!a)", "(?<=a)b",
     "(?P<n>a)", "(?i)a", "[a", "(a", "a)", "a**", "a++", "*", "a{300}", "a{0}", "a{5,2}", "a" * 257, "\\", r"\u0041",
     "(" * 9 + ")" * 9, 3, None, b"a", "((a+)b)+", r"\8", "^(a|a){0020}b", "^(a?){1000}", "a{1,0300}", "a{1000}",
     "^" + "a?" * 19 + "(?:aa){100}b", "^(?:(?:(?:){255}){255}){64}", "^(a{0,99})(a{0,99})(a{0,98})b"],
)  # fmt: skip
def test_an_expression_that_could_take_long_or_is_none_is_refused(text: object) -> None:
    with pytest.raises(SettingsError) as caught:
        KeyFilter("target_key_filter", text)  # type: ignore[arg-type]
    assert caught.value.setting == "target_key_filter" and caught.value.outcome == "not_done"
    assert "begin it with ^" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a.*b", "a" * 256),
        ("^.*.*x", "y" * 256),
        ("^(a|aa|aaa|aaaa|aaaaa)a*[ab]*x", "a" * 256),
        ("[ab]*x", "ab" * 128),
        ("^(?:a?a?a?a?a?a?a?a?)a*b", "a" * 256),
    ],
)
def test_no_expression_takes_long_on_any_key(text: str, key: str) -> None:
    made = KeyFilter("x", text)
    began = time.process_time()
    made.found(key)
    made.matches(key)
    assert time.process_time() - began < 0.25
