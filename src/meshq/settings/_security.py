"""The security settings of a broker: users, roles, permissions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

import attrs

from meshq import limits
from meshq.address import check_place
from meshq.errors import SettingsError
from meshq.permissions import (
    PermissionExplanation,
    Permissions,
    Roles,
    check_permissions,
    check_roles,
    check_together,
    explained,
)
from meshq.settings._secrets import Secret

V = TypeVar("V")


def check_user(setting: str, value: object) -> str:
    """The name of a user, checked.

    Raises:
        SettingsError: it isn't one.
    """
    if type(value) is not str or not 1 <= len(value) <= limits.USER_CHARACTERS_MAX or not value.isprintable():
        raise SettingsError(setting, value, f"1 to {limits.USER_CHARACTERS_MAX} printable characters")
    return value


def check_users(setting: str, value: object) -> dict[str, Secret]:
    """Names with passwords, checked; the passwords are shown no more.

    Raises:
        SettingsError: it is not a mapping from names to passwords, or an empty one.
    """
    allowed = "a mapping from the names of users to their passwords, one at least"
    if not isinstance(value, Mapping) or not value:
        # Whatever it is, a password may be in it.
        raise SettingsError(setting, "***", allowed)
    return {check_user(setting, user): Secret(password) for user, password in value.items()}


def _users(value: object) -> Mapping[str, Secret]:
    return MappingProxyType({} if value == {} else check_users("users", value))


def _roles(value: object) -> Mapping[str, Roles] | None:
    return _fixed(check_roles(value))


def _permissions(value: object) -> Mapping[str, Permissions] | None:
    return _fixed(check_permissions(value))


def _fixed(value: dict[str, V] | None) -> Mapping[str, V] | None:
    return None if value is None else MappingProxyType(value)


def _shown(value: Mapping[str, object] | None) -> str:
    return repr(None if value is None else dict(value))


#: The fields of a certificate that may name a user.
IDENTITIES = ("CN", "DNS", "URI", "EMAIL", "SHA256")


def _identities(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise SettingsError("certificates", value, "a mapping from what certificates say to users")
    found = {_identity(identity): check_user("certificates", user) for identity, user in value.items()}
    return MappingProxyType(found)


def _identity(value: object) -> str:
    kind, _, text = value.partition("=") if type(value) is str else ("", "", "")
    if kind == "SHA256":
        text = text.replace(":", "").lower()
    if kind not in IDENTITIES or not text or (kind == "SHA256" and not re.fullmatch("[0-9a-f]{64}", text)):
        allowed = f"one of {', '.join(f'{name}=…' for name in IDENTITIES)}, the last one with 64 hexadecimal digits"
        raise SettingsError("certificates", value, allowed)
    return f"{kind}={text}"


@attrs.frozen(kw_only=True)
class Security:
    """The users, roles and permissions of a broker: ``Security(users={"app": "secret"})``.

    Every acceptor then asks for a user and the password; only clients in the broker's own process are not asked.

    ``certificates``: users who need no password, by what the certificate says that they show at an acceptor with
    ``client_certificates``: ``{"CN=app": "app"}``, or ``DNS=``, ``URI=`` and ``EMAIL=`` of its alternative names, or
    ``SHA256=`` and its fingerprint.

    ``permissions``: what may be done at the addresses of a pattern, by role; of several patterns that fit an address
    the most specific one holds, whole, and where none fits nothing may be done.  ``roles``: the roles of each user.
    Without the two, whoever comes in may do everything; clients in the broker's own process may in any case.

    The mappings are kept as read-only copies.
    """

    users: Mapping[str, Secret] = attrs.field(factory=dict, converter=_users, repr=_shown)
    certificates: Mapping[str, str] = attrs.field(factory=dict, converter=_identities, repr=_shown)
    roles: Mapping[str, Roles] | None = attrs.field(default=None, converter=_roles, repr=_shown)
    permissions: Mapping[str, Permissions] | None = attrs.field(default=None, converter=_permissions, repr=_shown)

    def __attrs_post_init__(self) -> None:
        if not self.users and not self.certificates:
            raise SettingsError("users", {}, "one user at least, or certificates that stand for users")
        check_together([*self.users, *self.certificates.values()], self.roles, self.permissions)

    def explain(self, user: str, address: str) -> PermissionExplanation:
        """Explain the permissions of a user at an address, and the roles and the pattern that grant them.

        Raises:
            SettingsError: there is no such user, or the address is no name, or a pattern of names.
        """
        known = dict.fromkeys([*self.users, *self.certificates.values()])
        if user not in known:
            raise SettingsError("user", user, f"users that there are: {', '.join(map(repr, known))}")
        return explained(user, check_place("address", address), self.roles, self.permissions)
