"""The management operations about high availability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import Values
from meshq.errors import RefusedError
from meshq.wire import decline

if TYPE_CHECKING:
    from meshq.broker.core._core import Core


def ha(core: Core, after: int = 0) -> Values:
    """The role of the node, and a page of the nodes that wait to take over."""
    values = dict(core.settings.host.role())
    rows: list[Values] = values.pop("waiting", [])
    return {**values, **page_of("waiting", rows, after)}


def fail_over(core: Core, force: bool = False) -> Values:
    """Order the node to hand its role over to a node that waits; the answer has the epoch that ends."""
    return _order(core, back=False, force=force)


def fail_back(core: Core) -> Values:
    """Order the node to hand its role back to the primary that waits; the answer has the epoch that ends."""
    return _order(core, back=True, force=False)


def _order(core: Core, *, back: bool, force: bool) -> Values:
    try:
        return {"epoch": core.settings.host.order_role(back=back, force=force)}
    except RefusedError as error:
        raise decline("no_successor", str(error)) from error
