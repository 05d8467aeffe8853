"""The settings of a simulated cluster, validated when built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

import attrs

from meshq.abc import Service
from meshq.address import check_name
from meshq.cluster import LoadBalancing
from meshq.errors import SettingsError
from meshq.settings import AddressSettings, Security
from meshq.testing.kit._pairs import backups_of, check_ha

#: The most nodes: each is linked to each other one.
NODES_MAX: Final = 32
#: All addresses.
EVERYTHING: Final = "#"


class NodeKeywords(TypedDict, total=False):
    """The keywords that say how the nodes of a cluster are, of ``meshq_cluster`` as of ``simulate``."""

    queues: Sequence[str]
    ha: str | None
    load_balancing: LoadBalancing
    max_hops: int
    address_settings: Mapping[str, AddressSettings] | None
    security: Security | None
    redistribution_delay: float | None


class ClusterKeywords(NodeKeywords, total=False):
    """The keywords of ``meshq_cluster`` beside the number of nodes."""

    seed: int | None
    faults: str


#: The keywords that say how the nodes are, and all those of a cluster.
NODE_KEYWORDS: Final[tuple[str, ...]] = tuple(NodeKeywords.__annotations__)
CLUSTER_KEYWORDS: Final[tuple[str, ...]] = tuple(ClusterKeywords.__annotations__)


def check_keywords(given: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Raise ``SettingsError`` for a keyword that is not allowed."""
    names = list(dict.fromkeys(allowed))
    for key, value in given.items():
        if key not in names:
            raise SettingsError(key, value, f"no setting of this name; the settings: {', '.join(names)}")


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SettingsError("queues", value, "a list of names of queues")
    for name in value:
        check_name("queues", name)
    return tuple(value)


@attrs.frozen(kw_only=True)
class ClusterPlan:
    """The settings of a simulated cluster.  What its brokers check themselves is left to them."""

    nodes: int = 3
    queues: tuple[str, ...] = attrs.field(default=(), converter=_names)
    ha: str | None = None
    seed: int | None = None
    faults: str = "none"
    load_balancing: LoadBalancing = "on_demand"
    max_hops: int = 1
    address_settings: Mapping[str, AddressSettings] | None = None
    security: Security | None = None
    #: Seconds; None: messages stay where they are.
    redistribution_delay: float | None = 0.0
    #: The services of a node beside its cluster connection, made anew for each of its lives; None: there are none.
    services: Callable[[str], Sequence[Service]] | None = None

    def __attrs_post_init__(self) -> None:
        if type(self.nodes) is not int or not 1 <= self.nodes <= NODES_MAX:
            raise SettingsError("nodes", self.nodes, f"a number from 1 to {NODES_MAX}")
        check_ha(self.ha)
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            raise SettingsError("seed", self.seed, "a whole number from 0, or None")
        if self.faults != "none":
            raise SettingsError("faults", self.faults, "'none': the faults are those that the test asks for")
        delay = self.redistribution_delay
        if delay is not None and (type(delay) not in (int, float) or not 0 <= delay < math.inf):
            raise SettingsError("redistribution_delay", delay, "seconds from 0, or None")

    @classmethod
    def of(cls, nodes: int, settings: Mapping[str, Any], allowed: Iterable[str]) -> ClusterPlan:
        """Make the settings out of the keywords of a call.

        Raises:
            SettingsError: a keyword is none of those that are allowed, or a value is not allowed.
            UsageError: this version has no such backups.
        """
        check_keywords(settings, allowed)
        return cls(nodes=nodes, **settings)

    def services_of(self, name: str) -> list[Service]:
        """The services of a node beside its cluster connection, for a new life."""
        return [] if self.services is None else list(self.services(name))

    @property
    def primaries(self) -> list[str]:
        """The names of the nodes that are no backups."""
        return [f"n{number}" for number in range(self.nodes)]

    @property
    def names(self) -> list[str]:
        """The names of all nodes, the backups last."""
        return self.primaries + backups_of(self.primaries, self.ha)

    def settings_of_addresses(self) -> dict[str, AddressSettings]:
        """The settings of addresses at every node, with the redistribution delay for all addresses."""
        given = dict(self.address_settings or {})
        everywhere = given.pop(EVERYTHING, AddressSettings())
        if everywhere.redistribution_delay is None:
            everywhere = attrs.evolve(everywhere, redistribution_delay=self.redistribution_delay)
        return {EVERYTHING: everywhere, **given}
