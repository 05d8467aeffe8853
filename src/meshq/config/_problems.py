"""The texts of problems with values; a value that may be a password is hidden."""

from __future__ import annotations

import typing
from typing import Any, Final

from meshq.abc import Service
from meshq.config._keys import is_table, keys_of
from meshq.errors import FilterError, SettingsError
from meshq.settings import EncryptionKey, Secret

SECRETS: Final = (Secret, EncryptionKey)


class WrongTypeError(Exception):
    """A value has another type than its key."""


def said(error: BaseException) -> str:
    """Return the text of an error about a value."""
    if isinstance(error, SettingsError) and not isinstance(error, FilterError):
        shown = seen(error.value) if error.shown is None else error.shown
        return f"{shown} is not allowed; allowed: {error.allowed}"
    return str(error)


def seen(value: object) -> str:
    """Show a value in an error; a value that may be a password is hidden."""
    if isinstance(value, str | int | float):
        return "***" if value == "***" else repr(value).lower() if isinstance(value, bool) else repr(value)
    kinds = {dict: "a table", list: "a list", tuple: "a list" if value else "none", type(None): "nothing"}
    return kinds.get(type(value), type(value).__name__)


def seen_as(kind: Any, value: object) -> str:
    """Show a value in the place of a table or list; hidden if the table could hold a password."""
    return "***" if isinstance(value, str | int | float) and holds_secrets(kind) else seen(value)


def holds_secrets(kind: Any) -> bool:
    """Whether a secret may be somewhere in values of this type."""
    if kind is Service or kind in SECRETS:
        return True
    if is_table(kind):
        return any(holds_secrets(key.type) for key in keys_of(kind).values())
    return any(holds_secrets(one) for one in typing.get_args(kind))
