"""The kinds of values that the annotations of settings ask for, and how plain ones are read: a text is no number."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from meshq.abc import HAPolicy
from meshq.config._keys import is_class, is_table
from meshq.config._problems import WrongTypeError, seen


def strict(kind: type[Any], allowed: str) -> Callable[[Any, Any], Any]:
    """Return a function that takes values of this type and of no other one; ``allowed``: how an error calls these."""
    kinds = (int, float) if kind is float else (kind,)

    def structure(value: object, _: object) -> Any:
        if type(value) not in kinds:
            raise WrongTypeError(f"{seen(value)} is not allowed; allowed: {allowed}")
        return value

    return structure


def octets(value: object, _: object) -> bytes:
    """Read bytes from hexadecimal digits."""
    try:
        return bytes.fromhex(value if isinstance(value, str) else "-")
    except ValueError:
        raise WrongTypeError(f"{seen(value)} is not allowed; allowed: hexadecimal digits, two for each byte") from None


def policy_name(value: object, _: object) -> Any:
    """Take a policy's name, or several times the same one."""
    names = value if isinstance(value, list) else [value]
    if not names or any(not isinstance(name, str) for name in names):
        raise WrongTypeError(f"{seen(value)} is not allowed; allowed: a text")
    return names


def one_of_words(value: object, kind: Any) -> Any:
    """Take one of several words."""
    words = typing.get_args(kind)
    if type(value) is not str or value not in words:
        raise WrongTypeError(f"{seen(value)} is not allowed; allowed: {' or '.join(map(repr, words))}")
    return value


def is_union(kind: Any) -> bool:
    """Whether a value may be of one of several types."""
    return typing.get_origin(kind) in (types.UnionType, typing.Union)


def is_mapping(kind: Any) -> bool:
    """Whether values are tables whose keys are names that the user chooses."""
    return is_class(kind, Mapping)


def is_sequence(kind: Any) -> bool:
    """Whether values are lists."""
    return is_class(kind, Sequence)


def is_set(kind: Any) -> bool:
    """Whether values are sets, which a file lists."""
    return is_class(kind, Set)


def is_composite(kind: Any) -> bool:
    """Whether values of this type are made of others."""
    if kind is HAPolicy or is_table(kind) or is_mapping(kind) or is_sequence(kind):
        return True
    return is_union(kind) and any(is_composite(one) for one in typing.get_args(kind))
