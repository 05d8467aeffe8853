"""Scale-down: where a node's messages go when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from meshq.address import check_name
from meshq.errors import SettingsError
from meshq.settings import is_bool, only


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


@attrs.frozen(kw_only=True)
class ScaleDown:
    """The order to hand over all that a node holds to another node of its cluster when it stops cleanly.

    ``connectors``: the nodes that may take over, by the names or URLs of their connectors, in this order; empty: any
    node, one of the same process first.  ``group_name``: only nodes whose ``ClusterConnection`` has this group; None:
    of any group.  ``cluster_name``: the cluster connection that finds the node; None: the first.  ``enabled``: False
    leaves the order unused.  Without a node that can take over the stop is an ordinary one, with a warning.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    connectors: Sequence[str] = attrs.field(default=(), converter=_names, validator=_all_names)
    discovery: None = attrs.field(default=None, validator=only(None, "targets that only a discovery group knows are"))
    group_name: str | None = attrs.field(default=None, validator=_name_or_none)
    cluster_name: str | None = attrs.field(default=None, validator=_name_or_none)
    enabled: bool = attrs.field(default=True, validator=is_bool)
