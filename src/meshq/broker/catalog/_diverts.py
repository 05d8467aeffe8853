"""Diverts: messages to one address also go to another address, or only there."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from meshq.errors import UsageError
from meshq.selector import Filter


@attrs.frozen(kw_only=True, eq=False)
class DivertRule:
    """A divert, as it was made."""

    name: str
    address: str
    forwarding_address: str
    #: Only messages that it accepts are diverted.
    filter: Filter | None
    #: They don't go to the queues of ``address``.
    exclusive: bool
    #: Where its definition stands in the journal.
    position: int = 0

    @property
    def filter_text(self) -> str:
        """The filter, empty if there is none."""
        return self.filter.text if self.filter is not None else ""


class Diverts:
    """All diverts of one node."""

    __slots__ = ("_sieves", "by_name", "from_address")

    def __init__(self, sieves: dict[object, None]) -> None:
        # Those with filters stand among whatever sorts messages.
        self._sieves = sieves
        self.by_name: dict[str, DivertRule] = {}
        #: By the address that they leave; an address without diverts is not in it.
        self.from_address: dict[str, list[DivertRule]] = {}

    def leaving(self, address: str) -> Sequence[DivertRule]:
        """The diverts of an address, in the order in which they were made."""
        return self.from_address.get(address, ())

    def uses(self, address: str) -> bool:
        """Whether a divert begins or ends at an address."""
        return any(address in (rule.address, rule.forwarding_address) for rule in self.by_name.values())

    def add(self, rule: DivertRule) -> None:
        """Enter a divert."""
        self.by_name[rule.name] = rule
        if rule.filter is not None:
            self._sieves[rule] = None
        self.from_address.setdefault(rule.address, []).append(rule)

    def remove(self, rule: DivertRule) -> None:
        """Forget a divert."""
        del self.by_name[rule.name]
        self._sieves.pop(rule, None)
        rules = self.from_address[rule.address]
        rules.remove(rule)
        if not rules:
            del self.from_address[rule.address]

    def check_loop(self, address: str, forwarding_address: str) -> None:
        """See that a divert between two addresses leads nowhere back.

        Raises:
            UsageError: it does; names the loop.
        """
        way = self.way(forwarding_address, address)
        if way:
            raise UsageError(f"the divert would close a loop: {' -> '.join([address, *way])}")

    def way(self, start: str, end: str) -> list[str]:
        """The addresses from one to another, by diverts; none if there is no way."""
        return self._way(start, end, {}) or []

    def _way(self, start: str, end: str, seen: dict[str, None]) -> list[str] | None:
        """As ``way``, but by no address that was seen; None: there is no way."""
        if start == end:
            return [start]
        seen[start] = None
        for rule in self.from_address.get(start, ()):
            if rule.forwarding_address not in seen:
                rest = self._way(rule.forwarding_address, end, seen)
                if rest is not None:
                    return [start, *rest]
        return None

    def order(self, address: str) -> list[str]:
        """Return the addresses that a message may reach by diverts, each address before its forwarding addresses."""
        found: dict[str, None] = {}
        self._visit(address, found)
        return list(reversed(found))

    def sources(self, address: str) -> list[str]:
        """The other addresses whose messages may reach one by diverts."""
        found: dict[str, None] = {address: None}
        news = [address]
        while news:
            name = news.pop()
            for rule in self.by_name.values():
                if rule.forwarding_address == name and rule.address not in found:
                    found[rule.address] = None
                    news.append(rule.address)
        del found[address]
        return list(found)

    def _visit(self, address: str, found: dict[str, None]) -> None:
        for rule in self.from_address.get(address, ()):
            if rule.forwarding_address not in found:
                self._visit(rule.forwarding_address, found)
        found[address] = None
