"""Permissions: roles by address pattern, and the rule that selects one of several patterns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from meshq import limits
from meshq.address import is_pattern, matches, specificity
from meshq.errors import SettingsError

#: All permissions, in the order in which they are shown.
PERMISSIONS: Final = ("send", "consume", "create", "manage", "browse")

Roles = frozenset[str]


def _roles(value: Any) -> Any:
    """Convert a few names into a set; the validator refuses other types."""
    return frozenset(value) if isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping) else value


def _is_roles(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _check_roles(attribute.name, value)


def _check_roles(setting: str, value: object) -> Roles:
    if not isinstance(value, frozenset) or not all(_is_role(role) for role in value):
        most = limits.USER_CHARACTERS_MAX
        raise SettingsError(setting, value, f"a set of roles, each of them 1 to {most} printable characters")
    return value


def _is_role(role: object) -> bool:
    return type(role) is str and 1 <= len(role) <= limits.USER_CHARACTERS_MAX and role.isprintable()


@attrs.frozen(kw_only=True)
class Permissions:
    """The roles that have each permission at the addresses of a pattern; a permission without roles is granted to no
    user.

    ``send``: send messages there.  ``consume``: take messages from its queues, and subscribe.  ``create``: bring the
    address, its queues and its durable subscriptions into being, by a call or by first use, and end a subscription.
    ``manage``: everything that an operator does to its queues.  ``browse``: look at messages, and take none.
    """

    send: Roles = attrs.field(factory=frozenset, converter=_roles, validator=_is_roles)
    consume: Roles = attrs.field(factory=frozenset, converter=_roles, validator=_is_roles)
    create: Roles = attrs.field(factory=frozenset, converter=_roles, validator=_is_roles)
    manage: Roles = attrs.field(factory=frozenset, converter=_roles, validator=_is_roles)
    browse: Roles = attrs.field(factory=frozenset, converter=_roles, validator=_is_roles)

    @property
    def named(self) -> Roles:
        """All roles that have any permission."""
        return self.send | self.consume | self.create | self.manage | self.browse


def check_roles(value: object) -> dict[str, Roles] | None:
    """``roles`` of a broker's security: the roles of each user.

    Raises:
        SettingsError: it is not a mapping from users to sets of roles.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise SettingsError("roles", value, "a mapping from users to sets of roles, or None")
    return {user: _check_roles(f"roles[{user!r}]", _roles(roles)) for user, roles in value.items()}


def check_permissions(value: object) -> dict[str, Permissions] | None:
    """``permissions`` of a broker's security, by pattern.

    Raises:
        SettingsError: it is not a mapping from patterns to ``Permissions``, or an empty one.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        raise SettingsError("permissions", value, "a mapping from patterns to Permissions, one at least, or None")
    for pattern, permissions in value.items():
        if not is_pattern(pattern):
            raise SettingsError("permissions", pattern, "patterns of words, '*' and '#' between dots")
        if type(permissions) is not Permissions:
            raise SettingsError(f"permissions[{pattern!r}]", permissions, "Permissions(send={...}, ...)")
    return dict(value)


def check_together(
    users: Iterable[str], roles: Mapping[str, Roles] | None, permissions: Mapping[str, Permissions] | None
) -> None:
    """Check that roles and permissions name existing users and roles.

    Raises:
        SettingsError: names the user or the role that has no counterpart.
    """
    if roles is None and permissions is None:
        return
    if permissions is None:
        raise SettingsError("permissions", None, "what the roles may do: Permissions by pattern")
    known = dict.fromkeys(users)
    for user in roles or {}:
        if user not in known:
            raise SettingsError("roles", user, f"users that there are: {', '.join(map(repr, known))}")
    named = frozenset[str]().union(*(one.named for one in permissions.values()))
    for user in known:
        held = (roles or {}).get(user, frozenset())
        if not held:
            raise SettingsError("roles", user, "a role at least for each user: without one nothing is permitted")
        for role in sorted(held - named):
            allowed = ", ".join(map(repr, sorted(named))) or "none"
            raise SettingsError(f"roles[{user!r}]", role, f"roles to which something is permitted: {allowed}")


def permissions_for(patterns: Mapping[str, Permissions], address: str) -> Permissions | None:
    """Return the permissions of the most specific pattern that matches an address; None: no pattern matches."""
    fitting = fitting_patterns(patterns, address)
    return patterns[fitting[0]] if fitting else None


def fitting_patterns(patterns: Iterable[str], address: str) -> list[str]:
    """The patterns that fit an address, the most specific one, which holds, first."""
    fitting = [(specificity(pattern), pattern) for pattern in patterns if matches(pattern, address)]
    return [pattern for _, pattern in sorted(fitting, reverse=True)]


@attrs.frozen(kw_only=True)
class PermissionExplanation:
    """The permissions of one user at one address, with the roles and the pattern that grant them."""

    user: str
    address: str
    #: The roles of the user, in order of their names.
    roles: tuple[str, ...]
    #: The patterns that fit the address.  The first one holds, whole; empty: nothing is permitted.
    patterns: tuple[str, ...]
    #: Whether the broker asks for permissions at all; if it doesn't, everything is permitted.
    restricted: bool
    #: For each permission the roles by which the user has it, and the roles that have it in the pattern that holds.
    granted: Mapping[str, tuple[str, ...]]
    named: Mapping[str, tuple[str, ...]]

    @property
    def permitted(self) -> frozenset[str]:
        """The permissions that the user has."""
        return frozenset(name for name in PERMISSIONS if not self.restricted or self.granted[name])

    def __str__(self) -> str:
        """A line for the user, one for the pattern and one for each permission."""
        if not self.restricted:
            return f"{self.user!r} may do everything: there are no permissions"
        lines = [f"{self.user!r} has the roles {', '.join(self.roles) or 'none'}"]
        if self.patterns:
            others = f"; less specific, and without effect: {', '.join(self.patterns[1:])}" if self.patterns[1:] else ""
            lines.append(f"at {self.address!r} the pattern {self.patterns[0]!r} holds{others}")
        else:
            lines.append(f"no pattern fits {self.address!r}: nothing is permitted there")
        for name in PERMISSIONS:
            if self.granted[name]:
                lines.append(f"{name:8} yes, by {', '.join(self.granted[name])}")
            elif self.named[name]:
                lines.append(f"{name:8} no, that takes {' or '.join(self.named[name])}")
            else:
                lines.append(f"{name:8} no{', the pattern gives it to no role' if self.patterns else ''}")
        return "\n".join(lines)


def explained(
    user: str, address: str, roles: Mapping[str, Roles] | None, permissions: Mapping[str, Permissions] | None
) -> PermissionExplanation:
    """Explain the permissions of a user at an address.  ``permissions`` None: nothing is restricted."""
    held = (roles or {}).get(user, frozenset())
    fitting = fitting_patterns(permissions or {}, address)
    there = permissions[fitting[0]] if permissions is not None and fitting else Permissions()
    return PermissionExplanation(
        user=user,
        address=address,
        roles=tuple(sorted(held)),
        patterns=tuple(fitting),
        restricted=permissions is not None,
        granted={name: tuple(sorted(held & getattr(there, name))) for name in PERMISSIONS},
        named={name: tuple(sorted(getattr(there, name))) for name in PERMISSIONS},
    )
