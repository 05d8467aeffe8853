"""Validators of settings, and the signatures of functions that take settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from meshq import limits
from meshq.errors import SettingsError

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
F = TypeVar("F", bound=Callable[..., Any])


def takes_settings(settings: type[Any]) -> Callable[[F], F]:
    """A decorator for a function that hands its ``**settings`` on to this class: its signature shows all of them.

    What the function names itself, it shows as it does.  ``settings_class`` of it is the class, with the types.
    """

    def decorate(function: F) -> F:
        function.settings_class = settings  # type: ignore[attr-defined]
        written = inspect.signature(function)
        named = [one for one in written.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {one.name for one in named}
        more = [one for one in inspect.signature(settings).parameters.values() if one.name not in names]
        function.__signature__ = written.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def in_range(low: float, high: float, *, whole: bool = False) -> Validator:
    """A validator for numbers from ``low`` to ``high``, both included; an ``int`` is one that can be sent."""
    kind = "a whole number" if whole else "a number"
    allowed = f"{kind} from {low} to {high}"

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        name = attribute.alias or attribute.name
        if type(value) is int and limits.NUMBER_MAX < value <= high:
            raise SettingsError(name, value, f"{kind} from {low} to {limits.NUMBER_MAX}, or {high}")
        good = type(value) is int or (type(value) is float and (not whole or value == math.inf))
        if not good or not low <= value <= high:
            raise SettingsError(name, value, allowed)

    return check


def is_bool(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A validator for True and False."""
    check_bool(attribute.name, value)


def check_bool(setting: str, value: object) -> None:
    """Check that a value is True or False.  Raises: SettingsError."""
    if type(value) is not bool:
        raise SettingsError(setting, value, "True or False")


def check_seconds(setting: str, value: Any) -> None:
    """Check that a value is a number of seconds for which a call waits.  Raises: SettingsError."""
    if type(value) not in (int, float) or math.isnan(value) or value < 0:
        raise SettingsError(setting, value, "seconds from 0, or math.inf")


def one_of(words: tuple[str, ...]) -> Validator:
    """A validator for one of a few words."""
    allowed = " or ".join(map(repr, words))

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in words:
            raise SettingsError(attribute.name, value, allowed)

    return check


def only(served: object, later: str) -> Validator:
    """A validator for a setting of which this version serves one value; ``later`` says what is to come."""

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        # A whole number may stand for the same one with a point.
        kinds = (int, float) if type(served) is float else (type(served),)
        if value != served or type(value) not in kinds:
            raise SettingsError(attribute.name, value, f"{served!r} in this version ({later} to come)")

    return check
