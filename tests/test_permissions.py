"""Permissions as settings: what may be given, which pattern holds, and what leads nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import Permissions, Security, SettingsError
from meshq.permissions import permissions_for
from tests.broker.kit import make_core

USERS = {"app": "one", "ops": "two"}
ROLES = {"app": {"writers", "readers"}, "ops": {"operators"}}
PERMISSIONS = {"#": Permissions(send={"writers"}, consume=["readers"], manage=("operators",))}


def test_the_most_specific_pattern_holds_whole() -> None:
    wide, narrow, exact = Permissions(send={"a"}, consume={"a"}), Permissions(send={"b"}), Permissions(browse={"c"})
    patterns = {"#": wide, "orders.*": narrow, "orders.emea": exact}
    assert permissions_for(patterns, "prices") is wide
    assert permissions_for(patterns, "orders.us") is narrow
    assert permissions_for(patterns, "orders.emea") is exact
    assert permissions_for({"orders.#": narrow}, "prices") is None
    # What is said of one address holds there, though another pattern is for it and for all below.
    below = {"orders": exact, "orders.#": wide}
    assert permissions_for(below, "orders") is exact and permissions_for(below, "orders.emea") is wide
    # Neither is narrower than the other: which one holds does not depend on the order in which they were given.
    alike = {"#.b.#": wide, "#.c.#": narrow}
    assert permissions_for(alike, "b.c") is permissions_for(dict(reversed(alike.items())), "b.c") is narrow


def test_security_with_roles_and_permissions_is_frozen_and_shows_no_secret() -> None:
    security = Security(users=USERS, roles=ROLES, permissions=PERMISSIONS)
    assert security.permissions == PERMISSIONS and security.permissions is not PERMISSIONS
    assert security.roles == {"app": frozenset({"writers", "readers"}), "ops": frozenset({"operators"})}
    assert security.permissions["#"].consume == frozenset({"readers"})
    assert "'one'" not in repr(security)
    for name in ("users", "roles", "permissions"):
        with pytest.raises(AttributeError):
            setattr(security, name, None)


@pytest.mark.parametrize("name", ["send", "consume", "create", "manage", "browse"])
@pytest.mark.parametrize("roles", ["writers", None, 7, {"writers": 1}, {""}, {7}, {"a\n"}, {"x" * 257}])
def test_a_permission_is_a_set_of_roles(name: str, roles: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name}=.* allowed: a set of roles"):
        Permissions(**{name: roles})


@pytest.mark.parametrize("value", [{}, [], "#", {"#": {"send": {"writers"}}}, {"": PERMISSIONS["#"]}, {7: 7}])
def test_permissions_are_patterns_with_permissions(value: Any) -> None:
    with pytest.raises(SettingsError, match="permissions"):
        Security(users=USERS, roles=ROLES, permissions=value)


@pytest.mark.parametrize(
    ("roles", "permissions", "names"),
    [
        (None, PERMISSIONS, "roles='app'"),
        ({"app": {"writers"}}, PERMISSIONS, "roles='ops'"),
        ({**ROLES, "ops": set()}, PERMISSIONS, "roles='ops'"),
        ({**ROLES, "nobody": {"writers"}}, PERMISSIONS, "roles='nobody'.*users that there are: 'app', 'ops'"),
        ({**ROLES, "ops": {"operator"}}, PERMISSIONS, "roles.'ops'.='operator'.*'operators', 'readers', 'writers'"),
        (ROLES, None, "permissions=None"),
        ({"app": "writers"}, PERMISSIONS, "roles.'app'."),
        (["app"], PERMISSIONS, "roles="),
    ],
)
def test_what_leads_nowhere_is_refused_by_name(roles: Any, permissions: Any, names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        Security(users=USERS, roles=roles, permissions=permissions)


def test_an_explanation_permits_what_the_broker_does() -> None:
    security = Security(
        users={"app": "secret", "boss": "secret"},
        roles={"app": {"writers"}, "boss": {"owners"}},
        permissions={
            "orders.*": Permissions(send={"writers"}, browse={"owners"}),
            "orders.#": Permissions(consume={"writers", "owners"}),
        },
    )
    for user in ("app", "boss"):
        rights = make_core(security=security).access.of(("client", user))
        assert rights is not None
        for address in ("orders", "orders.eu", "orders.eu.north", "other"):
            assert security.explain(user, address).permitted == rights.at(address), (user, address)
    assert security.explain("app", "other").patterns == ()
    assert "nothing is permitted there" in str(security.explain("app", "other"))
    assert len(Security(users={"app": "secret"}).explain("app", "q").permitted) == 5


@pytest.mark.parametrize(
    ("user", "address"), [("stranger", "orders"), ("app", "a::b"), ("app", ""), ("app", "orders.#")]
)
def test_a_user_or_an_address_that_there_is_not_has_no_explanation(user: str, address: str) -> None:
    with pytest.raises(SettingsError, match=r"(user|address)="):
        Security(users={"app": "secret"}).explain(user, address)
