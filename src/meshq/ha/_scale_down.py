"""Scale-down: where a node's messages go when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from meshq.address import check_name
from meshq.discovery import DiscoveryGroup
from meshq.errors import SettingsError
from meshq.settings import is_bool


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SettingsError("connectors", value, "a list of connectors' names, or URLs")
    return tuple(value)


def _all_names(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    for name in value:
        check_name(attribute.name, name)


def _name_or_none(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        check_name(attribute.name, value)


def _group_or_none(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, DiscoveryGroup):
        raise SettingsError(attribute.name, value, "one DiscoveryGroup, or None")


@attrs.frozen(kw_only=True)
class ScaleDown:
    """The order to hand over all that a node holds to another node: when it stops, or in place of a takeover.

    A node with ``LiveOnly`` does it when it stops cleanly; a backup when it takes over what a node that is gone held.

    ``connectors``: the nodes that may take over, by the names or URLs of their connectors, in this order.
    ``discovery``: without ``connectors``, the group that hears of them; the broker then has the group, too.  Without
    both it is a node of the same process to which a connector of the broker leads, or else one that a cluster
    connection links: that of ``cluster_name``, which also goes before the same process; None: the first one.
    ``group_name``: only nodes whose ``ClusterConnection`` has this group; None: of any group.  ``enabled``: False
    leaves the order unused.  A node that no cluster connection links is dialed for this, with the user and password of
    that cluster connection.  Without a node that can take over a stop is an ordinary one, with a warning, and
    a backup tries again.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    connectors: Sequence[str] = attrs.field(default=(), converter=_names, validator=_all_names)
    discovery: DiscoveryGroup | None = attrs.field(default=None, validator=_group_or_none)
    group_name: str | None = attrs.field(default=None, validator=_name_or_none)
    cluster_name: str | None = attrs.field(default=None, validator=_name_or_none)
    enabled: bool = attrs.field(default=True, validator=is_bool)


def check_scale_down(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check the setting of a policy that has an order to hand over.

    Raises:
        SettingsError: it is none.
    """
    if value is not None and type(value) is not ScaleDown:
        raise SettingsError(attribute.name, value, "a ScaleDown, or None")


def never_serves(order: ScaleDown | None, *, waits: bool) -> None:
    """Check that no program waits until a backup serves that hands everything over.  ``waits``: one does.

    Raises:
        SettingsError: it does.
    """
    if waits and order is not None and order.enabled:
        raise SettingsError("wait_for_activation", True, "False for a backup that scales down: it never serves")
