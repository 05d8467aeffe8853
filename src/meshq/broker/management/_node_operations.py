"""The management operations of the node: its statistics, its bridges and its prepared transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from meshq.address import check_name
from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import Values
from meshq.errors import NotFoundError
from meshq.statistics import incoming_bridge

if TYPE_CHECKING:
    from meshq.abc import Controllable
    from meshq.broker.core._core import Core

#: Bytes of a bridge's last error in a row.
_TEXT_BYTES_MAX: Final = 500


def broker(core: Core) -> Values:
    """The state and the counters of the broker."""
    return core.settings.host.describe()


def prepared(core: Core, after: int = 0) -> Values:
    """A page of the transactions that are prepared and not decided, the oldest first."""
    return page_of("prepared", core.transactions.two_phase.statistics(), after)


def bridges(core: Core, after: int = 0) -> Values:
    """A page of the bridges of this node, with the state and the counters of each.

    Links of its cluster connections are among them, and connectors of other brokers that are linked to this one.
    """
    found = [bridge.statistics() for bridge in core.settings.controlled.values()]
    found += [link for links in core.settings.links for link in links()]
    found += [incoming_bridge(one.name, one.broker) for one in core.router.demand.incoming.values()]
    rows = [attrs.asdict(one) for one in sorted(found, key=lambda one: one.name)]
    return page_of("bridges", [{**row, "last_error": _brief(row["last_error"])} for row in rows], after)


def pause_bridge(core: Core, name: str) -> Values:
    """Have a bridge carry nothing more, and leave its queue to others."""
    _bridge(core, name).pause()
    return {}


def resume_bridge(core: Core, name: str) -> Values:
    """Have a bridge carry again."""
    _bridge(core, name).resume()
    return {}


def _bridge(core: Core, name: str) -> Controllable:
    found = core.settings.controlled.get(check_name("name", name))
    if found is None:
        raise NotFoundError(f"there is no bridge {name!r}")
    return found


def _brief(text: str | None) -> str | None:
    """As much of a text as a frame has room for, beside the rest of a row."""
    return text.encode()[:_TEXT_BYTES_MAX].decode(errors="ignore") if text is not None else None
