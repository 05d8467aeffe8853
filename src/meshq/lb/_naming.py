"""Policies by name, by class or as they are."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Final

from meshq.abc import BalancerPolicy
from meshq.errors import SettingsError
from meshq.lb._consistent_hash import ConsistentHash
from meshq.lb._least_connections import LeastConnections
from meshq.lb._policies import FirstElement, Random, RandomSticky, RoundRobin

#: Name -> policy.
NAMES: Final[dict[str, type[BalancerPolicy]]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "random_sticky": RandomSticky,
    "first_element": FirstElement,
    "consistent_hash": ConsistentHash,
    "least_connections": LeastConnections,
}
_ALLOWED: Final = (
    f"{', '.join(map(repr, NAMES))}, 'module:Class', a subclass of meshq.BalancerPolicy that needs no arguments,"
    " or an object of one"
)


def policy_of(setting: str, value: object) -> BalancerPolicy:
    """Return a policy that is given as an object, a class, one of the names, or ``module:Class``.

    Raises:
        SettingsError: it is none; names the setting.
    """
    if isinstance(value, BalancerPolicy):
        return value
    found: object = value
    if type(value) is str:
        found = NAMES.get(value) or _imported(setting, value)
    if not (isinstance(found, type) and issubclass(found, BalancerPolicy)) or inspect.isabstract(found):
        raise SettingsError(setting, value, _ALLOWED)
    try:
        return found()
    except TypeError as error:
        raise SettingsError(setting, value, _ALLOWED) from error


def begun_policy(setting: str, policy: BalancerPolicy, chance: int) -> BalancerPolicy:
    """Return the copy of a policy with which a factory or a balancer begins.

    Raises:
        SettingsError: it can't be copied, or begins as no policy; names the setting.  Or it refuses one of its own.
    """
    try:
        begun: object = policy.begin(chance)
    except SettingsError as error:
        if error.setting != "load_balancing":
            # One's own policy says what is wrong with a setting of its own.
            raise
        # What can't be copied does not know whose setting it is, and takes itself for a client's.
        raise SettingsError(setting, error.value, error.allowed) from error.__cause__
    if not isinstance(begun, BalancerPolicy):
        shown = f"{type(policy).__name__}.begin: {begun!r}"
        raise SettingsError(setting, shown, "a policy whose begin() returns a BalancerPolicy")
    return begun


def _imported(setting: str, text: str) -> object:
    """Import the class that ``module:Class`` names."""
    module, _, name = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SettingsError(setting, text, _ALLOWED)
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(setting, text, _ALLOWED) from error
