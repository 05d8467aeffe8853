"""The management operations about high availability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import Values
from meshq.errors import NotActiveError, RefusedError, SettingsError
from meshq.wire import decline

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester

#: Characters of a reason: a frame has room for that.
_WHY_CHARACTERS_MAX: Final = 1_000


def ha(core: Core, after: int = 0) -> Values:
    """The role of the node, and a page of the nodes that wait to take over."""
    values = dict(core.settings.host.role())
    rows: list[Values] = values.pop("waiting", [])
    return {**values, **page_of("waiting", rows, after)}


def hosted_backups(core: Core, after: int = 0, node_id: str = "") -> Values:
    """A page of the backups that the node runs for others, and how many it runs and may run; `mine` is the name of the
    one that it runs for a node."""
    values = dict(core.settings.host.hosted_backups(node_id))
    rows: list[Values] = values.pop("hosted")
    return {**values, **page_of("hosted", rows, after)}


def host_backup(core: Core, asker: Requester, request: bytes, ends: bool = False, clears: bool = False) -> Values:
    """Run the backup of the node that asks; `name` is empty if this node does not, and `why` says the reason."""
    if not asker.node[0]:
        raise decline("forbidden", "a node asks for its backup over its own link, and this one has not linked")
    host, node_id = core.settings.host, asker.node[0]
    try:
        return {"name": host.host_backup(node_id, request, ends=ends, clears=clears), "why": ""}
    except (RefusedError, SettingsError, NotActiveError) as error:
        return {"name": "", "why": str(error)[:_WHY_CHARACTERS_MAX]}


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
