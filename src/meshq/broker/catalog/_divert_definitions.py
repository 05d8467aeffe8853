"""Making and deleting diverts, in memory and in the journal at once."""

from __future__ import annotations

from typing import Any

from meshq import limits
from meshq.address import check_name
from meshq.broker.catalog._definition_records import DefinitionRecords, kept_filter
from meshq.broker.catalog._diverts import DivertRule, Diverts
from meshq.broker.catalog._names import check_made, check_sendable
from meshq.errors import NotFoundError, UsageError
from meshq.selector import Filter


class DivertDefinitions:
    """Creates and deletes diverts."""

    def __init__(self, diverts: Diverts, records: DefinitionRecords) -> None:
        self._diverts = diverts
        self._records = records

    def create(
        self, name: str, *, address: str, forwarding_address: str, filter: Filter | None, exclusive: bool
    ) -> DivertRule:
        """Return the divert; create it unless it exists.

        Raises:
            UsageError: a name is not valid; or the divert has other settings, would close a loop, or is one too many.
        """
        check_made(check_name("name", name))
        check_made(check_name("address", address), check_name("forwarding_address", forwarding_address))
        check_sendable(forwarding_address)
        diverts = self._diverts
        text = filter.text if filter is not None else ""
        wanted = {
            "address": address,
            "forwarding_address": forwarding_address,
            "filter": text,
            "exclusive": exclusive,
        }
        rule = diverts.by_name.get(name)
        if rule is not None:
            for key, value in wanted.items():
                found = rule.filter_text if key == "filter" else getattr(rule, key)
                if found != value:
                    raise UsageError(f"the divert {name!r} exists with {key}={found!r}, not {value!r}")
            return rule
        diverts.check_loop(address, forwarding_address)
        if len(diverts.by_name) >= limits.DIVERTS_MAX:
            raise UsageError(f"the node has its {limits.DIVERTS_MAX} diverts")
        values = {"kind": "divert", "name": name, **wanted}
        rule = _divert_of(values, self._records.write(values))
        diverts.add(rule)
        return rule

    def delete(self, name: str) -> None:
        """Delete a divert.

        Raises:
            NotFoundError: there is no divert of this name.
        """
        rule = self._diverts.by_name.get(name)
        if rule is None:
            raise NotFoundError(f"there is no divert {name!r}")
        self._records.forget([rule.position])
        self._diverts.remove(rule)

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Restore a divert from the journal."""
        self._diverts.add(_divert_of(values, position))


def _divert_of(values: dict[str, Any], position: int) -> DivertRule:
    return DivertRule(
        name=values["name"],
        address=values["address"],
        forwarding_address=values["forwarding_address"],
        filter=kept_filter(values["filter"], position),
        exclusive=values["exclusive"],
        position=position,
    )
