"""Settings: what they may be, and which of several patterns counts."""

from __future__ import annotations

import math
import pickle
import ssl
from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import limits
from meshq.errors import SettingsError
from meshq.node import Broker
from meshq.permissions import Permissions
from meshq.settings import (
    DEFAULT_ADDRESS_SETTINGS,
    TLS,
    Acceptor,
    AddressSettings,
    JournalSettings,
    Secret,
    Security,
    check_address_settings,
    in_range,
    settings_for,
)


def test_a_page_has_at_least_64_kib_and_at_most_1_gib() -> None:
    for size in (65_536, 1_073_741_824):
        assert AddressSettings(page_size_bytes=size).page_size_bytes == size
    for size in (65_535, 1_073_741_825):
        with pytest.raises(SettingsError, match="a whole number from 65536 to 1073741824"):
            AddressSettings(page_size_bytes=size)


def test_defaults() -> None:
    settings = AddressSettings()
    assert settings.duplicate_id_cache_size == 20_000
    assert settings.auto_create_queues is True
    assert settings.default_routing == "anycast"
    assert settings.default_exclusive is False
    assert settings.default_group_rebalance is False
    assert settings.default_last_value_key is None
    assert (settings.full_policy, settings.page_size_bytes) == ("page", 10485760)
    assert settings.max_size_bytes == settings.max_size_messages == math.inf
    assert (settings.redistribution_delay, settings.redistribute_unmatched) == (None, False)
    assert settings.cursor_max_lag == math.inf
    assert JournalSettings().segment_bytes == limits.SEGMENT_BYTES == 10 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("duplicate_id_cache_size", -1),
        ("duplicate_id_cache_size", 1.5),
        ("duplicate_id_cache_size", True),
        ("duplicate_id_cache_size", 10_000_001),
        ("duplicate_id_cache_size", "1"),
        ("auto_create_queues", 1),
        ("auto_create_queues", None),
        ("default_routing", "unicast"),
        ("default_exclusive", 1),
        ("default_group_rebalance", "yes"),
        ("default_last_value_key", ""),
        ("default_last_value_key", "k" * 256),
        ("default_last_value_key", "\ud800"),
        ("default_last_value_key", 7),
        ("default_last_value_key", "\ud800"),
        ("full_policy", "paged"),
        ("full_policy", None),
        ("max_size_bytes", 0),
        ("max_size_messages", 1.5),
        ("page_size_bytes", limits.PAGE_BYTES_MIN - 1),
        ("page_size_bytes", math.inf),
        ("redistribution_delay", -1),
        ("redistribution_delay", math.inf),
        ("redistribution_delay", math.nan),
        ("redistribution_delay", "5"),
        ("redistribution_delay", False),
        ("redistribute_unmatched", "yes"),
        ("redistribute_unmatched", 0),
        ("cursor_max_lag", 0),
        ("cursor_max_lag", 2.5),
        ("cursor_max_lag", None),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        AddressSettings(**{name: value})
    assert (caught.value.setting, caught.value.value) == (name, value)


@pytest.mark.parametrize("value", [0, limits.SEGMENT_BYTES_MIN - 1, limits.SEGMENT_BYTES_MAX + 1, 1e6, math.inf])
def test_a_segment_has_its_bounds(value: Any) -> None:
    with pytest.raises(SettingsError, match="segment_bytes"):
        JournalSettings(segment_bytes=value)


def test_settings_are_frozen_and_given_by_name() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        AddressSettings().auto_create_queues = False  # type: ignore[misc]
    with pytest.raises(TypeError):
        AddressSettings(5)  # type: ignore[call-arg, misc]


def test_a_range_takes_whole_numbers_floats_and_infinity_as_it_says() -> None:
    @attrs.frozen
    class Some:
        number: float = attrs.field(validator=in_range(1, math.inf))
        whole: float = attrs.field(default=1, validator=in_range(1, math.inf, whole=True))

    assert Some(1).number == 1 and Some(2.5).number == 2.5 and Some(math.inf, math.inf).whole == math.inf
    for wrong in (0.5, math.nan, -math.inf, "1", None):
        with pytest.raises(SettingsError):
            Some(wrong)
    with pytest.raises(SettingsError):
        Some(1, 1.5)
    most = limits.NUMBER_MAX
    assert Some(most, most).whole == most and Some(1e30).number == 1e30
    for given in ({"number": most + 1}, {"number": 1, "whole": 10**30}):
        with pytest.raises(SettingsError, match=f"number from 1 to {most}, or inf"):
            Some(**given)


@pytest.mark.parametrize(
    "name", ["max_size_bytes", "max_size_messages", "max_delivery_attempts", "max_redelivery_delay"]
)
def test_a_number_that_could_not_be_sent_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}=1000000000000000000000000000000 .* 9223372036854775807, or inf"):
        AddressSettings(**{name: 10**30})
    for good in (limits.NUMBER_MAX, math.inf):
        assert getattr(AddressSettings(**{name: good}), name) == good


# -- patterns


def test_field_by_field_the_most_specific_pattern_wins() -> None:
    patterns = {
        "orders.eu": AddressSettings(duplicate_id_cache_size=5),
        "#": AddressSettings(auto_create_queues=False, duplicate_id_cache_size=1),
        "orders.*": AddressSettings(default_routing="multicast", duplicate_id_cache_size=3),
    }
    assert settings_for(patterns, "orders.eu") == AddressSettings(
        auto_create_queues=False, default_routing="multicast", duplicate_id_cache_size=5
    )
    assert settings_for(patterns, "orders.us").duplicate_id_cache_size == 3
    assert settings_for(patterns, "other") == AddressSettings(auto_create_queues=False, duplicate_id_cache_size=1)
    assert settings_for({}, "other") is DEFAULT_ADDRESS_SETTINGS


def test_for_each_address_the_most_specific_of_three_patterns_holds() -> None:
    patterns = {
        "#": AddressSettings(redistribution_delay=None),
        "a.#": AddressSettings(redistribution_delay=100),
        "a.b": AddressSettings(redistribution_delay=0),
    }
    for given in (patterns, dict(reversed(patterns.items()))):
        delays = {address: settings_for(given, address).redistribution_delay for address in ("a.b", "a.c", "x")}
        assert delays == {"a.b": 0, "a.c": 100, "x": None}


def test_what_is_said_of_one_address_holds_there_beside_a_pattern_for_it_and_all_below() -> None:
    patterns = {
        "orders": AddressSettings(max_delivery_attempts=3),
        "orders.#": AddressSettings(max_delivery_attempts=7),
        "*.#": AddressSettings(max_delivery_attempts=9),
    }
    for given in (patterns, dict(reversed(patterns.items()))):
        found = {name: settings_for(given, name).max_delivery_attempts for name in ("orders", "orders.emea", "x")}
        assert found == {"orders": 3, "orders.emea": 7, "x": 9}


def test_a_default_that_is_written_out_wins_over_a_wider_pattern() -> None:
    patterns = {"#": AddressSettings(auto_create_queues=False), "a": AddressSettings(auto_create_queues=True)}
    assert settings_for(patterns, "a").auto_create_queues is True
    assert AddressSettings(auto_create_queues=True).given == ("auto_create_queues",)
    assert AddressSettings(auto_create_queues=True) == AddressSettings()


@pytest.mark.parametrize(
    "value",
    [[], "x", {"": AddressSettings()}, {"a..b": AddressSettings()}, {"\ud800": AddressSettings()}, {7: 1}, {"a": {}}],
)
def test_address_settings_are_a_mapping_from_patterns(value: object) -> None:
    with pytest.raises(SettingsError, match="address_settings"):
        check_address_settings(value)


def test_address_settings_are_copied() -> None:
    given = {"#": AddressSettings()}
    checked = check_address_settings(given)
    given.clear()
    assert checked == {"#": AddressSettings()}
    assert check_address_settings(None) == {}


# -- acceptors


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "tcp://localhost:1", "tcp://[::1]:0", "tcp://127.9.9.9:5"])
def test_the_loopback_device_may_be_listened_on(url: str) -> None:
    acceptor = Acceptor(url)
    assert acceptor.endpoint.loopback and not acceptor.insecure


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:1", "tcp://example.org:1", "tcp://[::]:1", "tcp://128.0.0.1:1"])
def test_other_hosts_need_to_be_called_insecure(url: str) -> None:
    with pytest.raises(SettingsError, match="a loopback host, or insecure=True"):
        Acceptor(url)
    with pytest.raises(SettingsError, match="a loopback host"):
        Acceptor(url + "?insecure=false", insecure=True)
    assert Acceptor(url, insecure=True).insecure
    assert Acceptor(url + "?insecure=true").insecure


@pytest.mark.parametrize(
    "url",
    ["inproc://x", "tcp://127.0.0.1:1?insecure=yes", "tcp://127.0.0.1:1?color=red", "x", 7],
)
def test_an_acceptor_of_another_kind_is_refused(url: Any) -> None:
    with pytest.raises(SettingsError):
        Acceptor(url)


@pytest.mark.parametrize(
    "url", ["tcp://127.0.0.1:0?protocols=meshq", "tcp://127.0.0.1:0?insecure=true;protocols=meshq"]
)
def test_an_acceptor_lists_the_protocols_that_it_speaks(url: str) -> None:
    assert Acceptor(url).protocols == Acceptor("tcp://127.0.0.1:0").protocols == ("meshq",)


@pytest.mark.parametrize("protocols", [["AMQP"], ["meshq", "CORE"], [], "meshq", 7])
def test_a_protocol_that_nobody_speaks_is_refused_by_name(protocols: Any) -> None:
    with pytest.raises(SettingsError, match="the one protocol that a broker speaks") as caught:
        Acceptor("tcp://127.0.0.1:0", protocols=protocols)
    assert caught.value.setting == "protocols"
    if isinstance(protocols, list):
        with pytest.raises(SettingsError, match="the one protocol that a broker speaks"):
            Acceptor(f"tcp://127.0.0.1:0?protocols={','.join(protocols)}")


def test_an_acceptor_is_insecure_or_not() -> None:
    with pytest.raises(SettingsError, match="insecure"):
        Acceptor("tcp://127.0.0.1:0", insecure=1)  # type: ignore[arg-type]


def test_tls_belongs_to_a_tls_url_and_the_other_way_round() -> None:
    tls = TLS(certificate="a.pem")
    assert Acceptor("tls://0.0.0.0:1", tls=tls).tls is tls
    assert Acceptor("tls://127.0.0.1:1", tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).endpoint.scheme == "tls"
    for url, given in (("tls://127.0.0.1:1", None), ("tcp://127.0.0.1:1", tls)):
        with pytest.raises(SettingsError, match="with tls=, or tcp://HOST:PORT without"):
            Acceptor(url, tls=given)
    with pytest.raises(SettingsError, match="a certificate"):
        Acceptor("tls://127.0.0.1:1", tls=TLS(authorities="a.pem"))
    for wrong in (object(), "a.pem", True):
        with pytest.raises(SettingsError, match="SSLContext or None"):
            Acceptor("tls://127.0.0.1:1", tls=wrong)


# -- TLS


def test_tls_is_paths_and_building_it_reads_none() -> None:
    tls = TLS(certificate=Path("no") / "such", key="key", authorities=Path("all"), client_certificates="required")
    assert (tls.certificate, tls.key, tls.authorities) == ("no/such", "key", "all")
    assert TLS() == TLS(client_certificates="none")


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"certificate": ""}, "certificate"),
        ({"certificate": b"a"}, "certificate"),
        ({"key": "k"}, "key"),
        ({"authorities": 1}, "authorities"),
        ({"client_certificates": "maybe"}, "client_certificates"),
        ({"client_certificates": None}, "client_certificates"),
        ({"certificate": "a", "client_certificates": "required"}, "authorities"),
        ({"certificate": "a", "client_certificates": "optional"}, "authorities"),
    ],
)
def test_a_wrong_part_of_tls_is_refused_by_name(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        TLS(**given)
    assert caught.value.setting == setting


# -- secrets and users


def test_a_secret_is_shown_to_nobody_who_does_not_ask_for_it() -> None:
    secret = Secret("canary")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>5}", repr([secret])]
    shown += [repr(Security(users={"app": "canary"})), str(attrs.asdict(Security(users={"app": secret})))]
    assert "canary" not in "".join(shown)
    assert secret.reveal() == Secret(secret).reveal() == "canary"
    assert secret == Secret("canary") != Secret("other") and secret != "canary"
    assert len({secret, Secret("canary")}) == 1
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)


@pytest.mark.parametrize("value", ["", b"x", 7, None, "\ud800canary", "canary" * 200])
def test_what_is_no_password_is_refused_without_being_shown(value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        Secret(value)
    assert caught.value.setting == "password" and "canary" not in str(caught.value)


@pytest.mark.parametrize("users", [None, {}, [], "app:canary", [("app", "canary")], {"app": None}, {"": "canary"}])
def test_users_are_names_with_passwords(users: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        Security(users=users)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("user", ["", "x" * 257, "a\nb", 7, None])
def test_what_is_no_name_is_refused(user: Any) -> None:
    with pytest.raises(SettingsError, match="users="):
        Security(users={user: "canary"})


def test_users_are_copied_and_frozen() -> None:
    given: dict[str, str | Secret] = {"app": "one", "ops": Secret("two")}
    security = Security(users=given)  # type: ignore[arg-type]
    given.clear()
    assert {user: secret.reveal() for user, secret in security.users.items()} == {"app": "one", "ops": "two"}
    with pytest.raises(TypeError):
        security.users["other"] = Secret("three")  # type: ignore[index]


def test_security_can_not_be_changed_from_within_and_is_shown_and_compared_as_before() -> None:
    def build() -> Security:
        return Security(
            users={"app": "one"},
            certificates={"CN=app": "app"},
            roles={"app": {"r"}},
            permissions={"#": Permissions(send={"r"})},
        )

    security = build()
    for name in ("users", "certificates", "roles", "permissions"):
        with pytest.raises(TypeError):
            getattr(security, name)["x"] = None
        with pytest.raises(AttributeError):
            getattr(security, name).clear()
    assert security == build() == attrs.evolve(security) and security.users == {"app": Secret("one")}
    assert security != attrs.evolve(security, users={"app": "two"})
    shown = "Security(users={'app': ***}, certificates={'CN=app': 'app'}, roles={'app': frozenset({'r'})}, permissions="
    assert repr(security).startswith(shown + "{'#': Permissions(")
    assert repr(Security(users={"app": "one"})).endswith("certificates={}, roles=None, permissions=None)")


@pytest.mark.parametrize(
    "certificates",
    [
        None,
        [],
        "CN=app",
        {"app": "app"},
        {"CN=": "app"},
        {"O=app": "app"},
        {"CN=app": ""},
        {7: "app"},
        {"SHA256=12": "app"},
    ],
)
def test_certificates_are_what_they_say_with_users(certificates: Any) -> None:
    with pytest.raises(SettingsError, match="certificates="):
        Security(certificates=certificates)


def test_somebody_must_be_able_to_come_in() -> None:
    with pytest.raises(SettingsError, match="one user at least, or certificates"):
        Security()
    with pytest.raises(SettingsError, match="an acceptor that asks for them"):
        Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"], security=Security(certificates={"CN=app": "app"}))
    with pytest.raises(SettingsError, match="roles='app'"):
        Security(certificates={"CN=app": "app"}, permissions={"#": Permissions(send={"a"})})
