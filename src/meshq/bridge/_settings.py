"""The settings of bridges: names, defaults and allowed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from meshq import limits
from meshq.address import check_name, parse_place
from meshq.bridge._link_settings import LinkOptions, LinkSettings
from meshq.errors import SettingsError
from meshq.message import Message
from meshq.selector import parse_filter
from meshq.settings import in_range, is_bool


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _address(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        parse_place(value, attribute.name)


def _filter(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        parse_filter(value)


def _function(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not callable(value):
        raise SettingsError(attribute.name, value, "a function from a Message to a Message or None")


class BridgeOptions(LinkOptions, total=False):
    """The keywords of ``Bridge`` beside its queue, its target and who it is there."""

    forwarding_address: str | None
    filter: str | None
    transformer: Callable[[Message], Message | None] | None
    use_duplicate_detection: bool
    window: int


@attrs.frozen(kw_only=True)
class BridgeSettings(LinkSettings):
    """The settings of a ``Bridge``.  Times are seconds, sizes bytes."""

    name: str = attrs.field(validator=_name)
    queue: str = attrs.field(validator=_address)
    target: str = attrs.field(validator=_name)
    forwarding_address: str | None = attrs.field(default=None, validator=_address)
    filter: str | None = attrs.field(default=None, validator=_filter)
    transformer: Any = attrs.field(default=None, validator=_function)
    use_duplicate_detection: bool = attrs.field(default=True, validator=is_bool)
    window: int = attrs.field(default=2_000, validator=in_range(1, limits.DUPLICATE_IDS_DEFAULT, whole=True))
