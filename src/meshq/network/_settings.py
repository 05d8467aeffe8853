"""The settings of network connectors: names, defaults and allowed values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from meshq import limits
from meshq.address import check_name
from meshq.bridge import LinkOptions, LinkSettings
from meshq.client import Agent, agent_of
from meshq.errors import SettingsError
from meshq.network._destinations import Destinations, Queues, Topics
from meshq.network._inclusion_plan import InclusionPlan
from meshq.settings import in_range, is_bool

#: The settings that belong on all connectors of a network.
SHARED_SETTINGS: Final = ("decrease_network_consumer_priority", "suppress_duplicate_queue_subscriptions")


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _uri(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    agent_of(value)


def _shown(uri: str) -> str:
    """Show a URI without the options of its URLs, which may be secrets."""
    return repr(uri) if "?" not in uri and "@" not in uri else "***"


def _listed(value: Any) -> Any:
    """Make a tuple of a list, and leave anything else for the validator."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else value


def _destinations(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not tuple or not all(type(one) in (Queues, Topics) for one in value):
        raise SettingsError(attribute.name, value, "a list of Queues(…) and Topics(…)")


def _names(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _destinations(instance, attribute, value)
    for one in value:
        if not one.is_name:
            allowed = "names without wildcards: what is forwarded unasked"
            raise SettingsError(attribute.name, one, allowed, shown=repr(one.pattern))


class NetworkOptions(LinkOptions, total=False):
    """The keywords of ``NetworkConnector`` beside its URI and who it is there."""

    network_ttl: int
    duplex: bool
    conduit_subscriptions: bool
    decrease_network_consumer_priority: bool
    suppress_duplicate_queue_subscriptions: bool
    dynamically_included: Sequence[Destinations]
    excluded: Sequence[Destinations]
    statically_included: Sequence[Destinations]
    prefetch: int
    replay: bool


@attrs.frozen(kw_only=True)
class NetworkSettings(LinkSettings):
    """The settings of a ``NetworkConnector``.  Times are seconds, sizes bytes."""

    name: str = attrs.field(validator=_name)
    uri: str = attrs.field(validator=_uri, repr=_shown)
    network_ttl: int = attrs.field(default=1, validator=in_range(1, limits.NETWORK_HOPS_MAX, whole=True))
    duplex: bool = attrs.field(default=False, validator=is_bool)
    conduit_subscriptions: bool = attrs.field(default=True, validator=is_bool)
    decrease_network_consumer_priority: bool = attrs.field(default=False, validator=is_bool)
    suppress_duplicate_queue_subscriptions: bool = attrs.field(default=False, validator=is_bool)
    dynamically_included: tuple[Destinations, ...] = attrs.field(default=(), converter=_listed, validator=_destinations)
    excluded: tuple[Destinations, ...] = attrs.field(default=(), converter=_listed, validator=_destinations)
    statically_included: tuple[Destinations, ...] = attrs.field(default=(), converter=_listed, validator=_names)
    prefetch: int = attrs.field(default=1_000, validator=in_range(1, limits.DUPLICATE_IDS_DEFAULT, whole=True))
    replay: bool = attrs.field(default=False, validator=is_bool)

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of the settings that are set and belong on all connectors of a network."""
        return tuple(name for name in SHARED_SETTINGS if getattr(self, name))

    @property
    def agent(self) -> Agent:
        """Which other brokers there are."""
        return agent_of(self.uri)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the other brokers that are listed; none if they announce themselves."""
        return self.agent.urls

    @property
    def inclusion(self) -> InclusionPlan:
        """Which destinations pass."""
        return InclusionPlan(
            dynamically_included=self.dynamically_included,
            excluded=self.excluded,
            statically_included=self.statically_included,
        )
