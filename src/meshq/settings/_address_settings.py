"""Settings of addresses, by pattern."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from meshq import limits
from meshq.address import (
    INTERNAL,
    TEMPORARY,
    Routing,
    check_literal,
    check_name,
    check_routing,
    is_pattern,
    matches,
    specificity,
    tells_events,
)
from meshq.errors import SettingsError
from meshq.settings._secrets import fits
from meshq.settings._validators import in_range, is_bool, one_of

#: The effect of a known duplicate id on its transaction.
DuplicateInTransaction = Literal["reject", "skip"]
#: The treatment of messages for a full address.
FullPolicy = Literal["page", "block", "drop", "fail"]


def _routing(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_routing(attribute.name, value)


def _check_own(setting: str, value: object) -> None:
    if value is not None and check_name(setting, value).startswith((INTERNAL, TEMPORARY)):
        own = f"{INTERNAL!r} and {TEMPORARY!r} begin those of the broker"
        raise SettingsError(setting, value, f"an address of one's own: {own}")


def _address(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _check_own(attribute.name, value)
    if value is not None:
        check_literal(attribute.name, value)
        if tells_events(value):
            raise SettingsError(attribute.name, value, "an address to which others than the broker send, too")


def _property_name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    most = limits.PROPERTY_NAME_BYTES_MAX
    if value is not None and (type(value) is not str or not value or not fits(value, most)):
        allowed = f"the name of a property, 1 to {most} bytes, or None"
        raise SettingsError(attribute.name, value, allowed)


_IN_TIME = in_range(0, limits.TIME_S_MAX)


def _delay(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        try:
            _IN_TIME(instance, attribute, value)
        except SettingsError as error:
            raise SettingsError(attribute.name, value, f"{error.allowed}, or None") from None


@attrs.frozen(kw_only=True)
class AddressSettings:
    """The settings of the addresses that match a pattern.

    ``duplicate_id_cache_size``: duplicate ids remembered per address; a producer whose window has more messages is
    refused, because not all that it may have to repeat would be known.  0: none are, and a window may be of any size.
    ``duplicate_in_transaction``: whether a message with a known one is left out of its transaction (``skip``) or the
    whole of that is rolled back (``reject``).  ``auto_create_queues``: an address or queue comes into being on first
    use.  ``default_routing``: what such an address is.  ``auto_delete_queues``: such a queue goes when it is empty and
    its last consumer has left, and such an address with its last queue, unless it remembers duplicate ids or is of
    another routing than the default one.

    ``dead_letter_address``: where a message goes that is rejected, or was delivered ``max_delivery_attempts`` times in
    vain; None: what is rejected is gone, and nothing else is taken away however often it fails.  ``expiry_address``:
    where a message goes whose time to live is over; None: it is gone.  Both come into being on first use.
    ``redelivery_delay``: seconds after which a message comes again that was handed back, the first time; each time
    after that ``redelivery_delay_multiplier`` times as many, at most ``max_redelivery_delay``.

    ``default_exclusive``: every consumer of its queues is an exclusive one.  ``default_group_rebalance``: when a
    consumer joins, all groups of its queue are given anew.  ``default_last_value_key``: the name of a property; of the
    messages with one value of it a queue keeps only the newest, and those that a consumer holds; None: all.

    ``max_size_bytes`` and ``max_size_messages``: how much an address may hold, in memory or at all; one run, thus up to
    256 messages, may go in beyond that.  ``full_policy`` says what happens then, or when the node has no memory left:
    ``"page"``: what is not needed next goes to the disk and comes back when it is, ``page_size_bytes`` at a time;
    ``"block"``: producers wait; ``"drop"``: messages are confirmed and dropped; ``"fail"``: a send raises
    ``AddressFullError``.  A broker without a ``data_dir`` has nowhere to page to: there ``"page"`` waits as ``"block"``
    does.  ``page_size_bytes``: 65,536 (64 KiB) to 1,073,741,824 (1 GiB).

    ``redistribution_delay``: seconds after which messages of a queue without a consumer here go to nodes of the cluster
    with one that takes them; they count from the later of no consumer here and one there, and anew when the setting
    changes.  0.0: at once; None: never.  ``redistribute_unmatched``: whether messages go, too, that none of the
    consumers here takes, for all of these have filters; otherwise any consumer holds all messages.

    ``cursor_max_lag``: with more than so many messages before it a durable cursor that has no owner is given up, and
    its messages are for consumers; ``client.cursor(max_lag=...)`` says otherwise for one.

    All of them can be changed while the broker runs (``client.set_address_settings``).  ``auto_create_queues`` and
    ``default_routing`` hold from the next first use on; ``default_exclusive`` and ``default_group_rebalance`` for who
    joins from then on; ``dead_letter_address``, ``expiry_address``, ``max_delivery_attempts`` and what says how long a
    message waits for what is rejected, handed back or expires from then on; all others at once.
    """

    duplicate_id_cache_size: int = attrs.field(
        default=limits.DUPLICATE_IDS_DEFAULT, validator=in_range(0, 10_000_000, whole=True)
    )
    duplicate_in_transaction: DuplicateInTransaction = attrs.field(
        default="reject", validator=one_of(get_args(DuplicateInTransaction))
    )
    auto_create_queues: bool = attrs.field(default=True, validator=is_bool)
    auto_delete_queues: bool = attrs.field(default=False, validator=is_bool)
    default_routing: Routing = attrs.field(default="anycast", validator=_routing)
    dead_letter_address: str | None = attrs.field(default=None, validator=_address)
    expiry_address: str | None = attrs.field(default=None, validator=_address)
    max_delivery_attempts: float = attrs.field(default=10, validator=in_range(1, math.inf, whole=True))
    redelivery_delay: float = attrs.field(default=0.0, validator=in_range(0, limits.TIME_S_MAX))
    redelivery_delay_multiplier: float = attrs.field(default=1.0, validator=in_range(1, 1_000))
    max_redelivery_delay: float = attrs.field(default=math.inf, validator=in_range(0, math.inf))
    default_exclusive: bool = attrs.field(default=False, validator=is_bool)
    default_group_rebalance: bool = attrs.field(default=False, validator=is_bool)
    default_last_value_key: str | None = attrs.field(default=None, validator=_property_name)
    full_policy: FullPolicy = attrs.field(default="page", validator=one_of(get_args(FullPolicy)))
    max_size_bytes: float = attrs.field(default=math.inf, validator=in_range(1, math.inf, whole=True))
    max_size_messages: float = attrs.field(default=math.inf, validator=in_range(1, math.inf, whole=True))
    page_size_bytes: int = attrs.field(
        default=limits.PAGE_BYTES_DEFAULT, validator=in_range(limits.PAGE_BYTES_MIN, limits.PAGE_BYTES_MAX, whole=True)
    )
    redistribution_delay: float | None = attrs.field(default=None, validator=_delay)
    redistribute_unmatched: bool = attrs.field(default=False, validator=is_bool)
    cursor_max_lag: float = attrs.field(default=math.inf, validator=in_range(1, math.inf, whole=True))
    # Names of the settings that were written out: a default that is written out wins over a wider pattern, too.
    given: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)

    def __new__(cls, **given: object) -> AddressSettings:
        self = super().__new__(cls)
        object.__setattr__(self, "given", tuple(given))
        return self


# What ``help`` shows: each setting with its default, not what ``__new__`` takes.
_BUILT = inspect.signature(AddressSettings.__init__).parameters.values()
AddressSettings.__signature__ = inspect.Signature(list(_BUILT)[1:])  # type: ignore[attr-defined]

DEFAULT_ADDRESS_SETTINGS = AddressSettings()


def check_pattern(value: object) -> str:
    """A pattern of addresses.

    Raises:
        SettingsError: it is none.
    """
    if not is_pattern(value):
        raise SettingsError("address_settings", value, "patterns of words, '*' and '#' between dots")
    return str(value)


def address_settings_of(fields: Mapping[str, Any]) -> AddressSettings:
    """Settings from their names and values.

    Raises:
        SettingsError: a name is not known, or a value not allowed.
    """
    known = [field.name for field in attrs.fields(AddressSettings) if field.init]
    for name in fields:
        if name not in known:
            raise SettingsError("address_settings", name, f"settings from {', '.join(known)}")
    return AddressSettings(**fields)


def kept_address_settings_of(fields: Mapping[str, Any]) -> AddressSettings:
    """Settings that a store has kept: earlier versions took an address with a wildcard as a word literally.

    Raises:
        SettingsError: a name is not known, or a value was never allowed.
    """
    places = {name: fields[name] for name in ("dead_letter_address", "expiry_address") if name in fields}
    made = address_settings_of({**fields, **dict.fromkeys(places)})
    for name, value in places.items():
        _check_own(name, value)
        object.__setattr__(made, name, value)
    return made


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
        check_pattern(pattern)
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
    return kept_address_settings_of(values) if values else DEFAULT_ADDRESS_SETTINGS
