"""Settings: frozen, by keyword only, validated when built.  Building one touches nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from meshq import limits
from meshq.address import check_routing, matches, specificity
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def in_range(low: float, high: float, *, whole: bool = False) -> Validator:
    """A validator for numbers from ``low`` to ``high``, both included."""
    kind = "a whole number" if whole else "a number"
    allowed = f"{kind} from {low} to {high}"

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        good = type(value) is int or (type(value) is float and (not whole or value == math.inf))
        if not good or not low <= value <= high:
            raise SettingsError(attribute.name, value, allowed)

    return check


def is_bool(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A validator for True and False."""
    if type(value) is not bool:
        raise SettingsError(attribute.name, value, "True or False")


def only(served: object, later: str) -> Validator:
    """A validator for a setting of which this version serves one value; ``later`` says what is to come."""

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value != served or type(value) is not type(served):
            raise SettingsError(attribute.name, value, f"{served!r} in this version ({later} to come)")

    return check


def _routing(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_routing(attribute.name, value)


@attrs.frozen(kw_only=True)
class AddressSettings:
    """How the addresses that fit a pattern behave.

    ``duplicate_id_cache_size``: duplicate ids remembered per address.  ``auto_create_queues``: an address or queue
    comes into being on first use.  ``default_routing``: what such an address is.
    """

    duplicate_id_cache_size: int = attrs.field(
        default=limits.DUPLICATE_IDS_DEFAULT, validator=in_range(0, 10_000_000, whole=True)
    )
    auto_create_queues: bool = attrs.field(default=True, validator=is_bool)
    default_routing: str = attrs.field(default="anycast", validator=_routing)
    # Names of the settings that were written out: a default that is written out wins over a wider pattern, too.
    given: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)

    def __new__(cls, **given: object) -> AddressSettings:
        self = super().__new__(cls)
        object.__setattr__(self, "given", tuple(given))
        return self


DEFAULT_ADDRESS_SETTINGS = AddressSettings()


def check_address_settings(value: object) -> dict[str, AddressSettings]:
    """``address_settings`` of a broker, checked: patterns to settings.

    Raises:
        SettingsError: it is not a mapping from patterns to ``AddressSettings``.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError("address_settings", value, "a mapping from patterns to AddressSettings")
    for pattern, settings in value.items():
        if type(pattern) is not str or not all(pattern.split(".")):
            raise SettingsError("address_settings", pattern, "patterns of words, '*' and '#' between dots")
        if not isinstance(settings, AddressSettings):
            raise SettingsError(f"address_settings[{pattern!r}]", settings, "AddressSettings")
    return dict(value)


def settings_for(patterns: Mapping[str, AddressSettings], address: str) -> AddressSettings:
    """The settings of one address: field by field, the most specific pattern that sets it wins."""
    fitting = sorted((pattern for pattern in patterns if matches(pattern, address)), key=specificity)
    values: dict[str, Any] = {}
    for pattern in fitting:
        settings = patterns[pattern]
        values.update((name, getattr(settings, name)) for name in settings.given)
    return AddressSettings(**values) if values else DEFAULT_ADDRESS_SETTINGS


@attrs.frozen(kw_only=True)
class JournalSettings:
    """How a broker's journal is kept.

    ``segment_bytes``: the size of its files.
    """

    segment_bytes: int = attrs.field(
        default=limits.SEGMENT_BYTES,
        validator=in_range(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX, whole=True),
    )


@attrs.frozen
class Acceptor:
    """Where a broker listens: ``tcp://HOST:PORT``, port 0 for any free one.

    Without authentication only the loopback device may be listened on; this version has none yet.
    """

    url: str
    tls: None = attrs.field(default=None, kw_only=True, validator=only(None, "TLS is"))
    insecure: bool = attrs.field(default=False, kw_only=True, validator=is_bool)
    endpoint: Endpoint = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        endpoint = Endpoint.parse(self.url)
        insecure = self.insecure
        for key, value in endpoint.options:
            if key != "insecure" or value not in ("true", "false"):
                raise SettingsError("acceptor", self.url, "the one option insecure=true|false")
            insecure = value == "true"
        if endpoint.scheme != "tcp":
            raise SettingsError("acceptor", self.url, "tcp://HOST:PORT")
        if not endpoint.loopback and not insecure:
            raise SettingsError("acceptor", self.url, "a loopback host, or insecure=True")
        object.__setattr__(self, "endpoint", endpoint)
        object.__setattr__(self, "insecure", insecure)
