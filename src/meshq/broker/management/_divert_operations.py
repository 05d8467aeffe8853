"""The management operations of diverts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshq.broker.access._access import may_look
from meshq.broker.management._pages import PAGE_BYTES_MAX
from meshq.broker.work._long_operations import Values
from meshq.errors import UsageError
from meshq.selector import parse_filter

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester

#: The names of the values of a divert.
_DIVERT: Final = ("name", "address", "forwarding_address", "filter", "exclusive")


def create_divert(
    core: Core,
    asker: Requester | None,
    name: str,
    address: str,
    forwarding_address: str,
    filter: str | None = None,
    exclusive: bool = False,
) -> Values:
    """Divert messages of one address to another one, too, or only there."""
    rule = core.router.diverts.by_name.get(name)
    if rule is not None and not may_look(asker, rule.address):
        # What it is like, its owner may know.
        raise UsageError(f"another divert has the name {name!r}")
    way = core.router.diverts.way(forwarding_address, address) if rule is None else []
    if not all(may_look(asker, leaving) for leaving in way[:-1]):
        # Where the diverts of others lead, their owners may know.
        raise UsageError("the divert would close a loop")
    condition = parse_filter(filter) if filter else None
    about = {"address": address, "forwarding_address": forwarding_address}
    core.definitions.diverts.create(name, **about, filter=condition, exclusive=exclusive)
    return {"name": name}


def delete_divert(core: Core, name: str) -> Values:
    """Delete a divert."""
    rule = core.router.diverts.by_name.get(name)
    if rule is not None:
        core.transactions.two_phase.check_divert(rule)
    core.definitions.diverts.delete(name)
    return {}


def diverts(core: Core, asker: Requester | None, after: str = "") -> Values:
    """A page of all diverts that the asker may know of."""
    rules = core.router.diverts.by_name
    rows: list[Values] = []
    size = 0
    for name in sorted(name for name in rules if name > after and may_look(asker, rules[name].address)):
        rule = rules[name]
        about = (name, rule.address, rule.forwarding_address, rule.filter_text)
        size += sum(len(text.encode()) + 24 for text in about)
        if size > PAGE_BYTES_MAX and rows:
            return {"diverts": rows, "more": True}
        rows.append(dict(zip(_DIVERT, (*about, rule.exclusive), strict=True)))
    return {"diverts": rows, "more": False}
