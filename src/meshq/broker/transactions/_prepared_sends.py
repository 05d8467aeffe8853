"""The sends of prepared transactions, by address: the queues that will get the messages stay until the decision.

A message is routed when its transaction is committed.  If a queue was deleted before that, the message would be lost
silently on a multicast address, and the commit would fail on an anycast one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.address import SEPARATOR, Target

if TYPE_CHECKING:
    from meshq.broker.catalog._diverts import DivertRule, Diverts
    from meshq.broker.queue._queue_machine import Queue
    from meshq.broker.transactions._prepared import ServerPreparedTransaction


class PreparedSends:
    """The targets of all prepared transactions."""

    def __init__(self, diverts: Diverts) -> None:
        self._diverts = diverts
        # By address, then by transaction in the order in which they were prepared: the queues that are named there.
        # None among them stands for all queues of the address.
        self._by_address: dict[str, dict[ServerPreparedTransaction, dict[str | None, None]]] = {}

    def add(self, prepared: ServerPreparedTransaction) -> None:
        """A transaction is prepared."""
        for _, target, _ in prepared.transaction.work:
            named = self._by_address.setdefault(target.address, {}).setdefault(prepared, {})
            named[target.queue] = None

    def remove(self, prepared: ServerPreparedTransaction, targets: list[Target]) -> None:
        """A transaction is decided.  ``targets``: what it has sent to."""
        for target in targets:
            known = self._by_address.get(target.address)
            if known is not None and known.pop(prepared, None) is not None and not known:
                del self._by_address[target.address]

    def for_queue(self, queue: Queue) -> ServerPreparedTransaction | None:
        """The oldest transaction that sends to a queue, or to an address from which diverts lead there."""
        if not self._by_address:
            return None
        for prepared, named in self._by_address.get(queue.address, {}).items():
            if any(name is None or queue.name in (name, f"{queue.address}{SEPARATOR}{name}") for name in named):
                return prepared
        return self._diverted(queue.address)

    def for_divert(self, rule: DivertRule) -> ServerPreparedTransaction | None:
        """The oldest transaction of which a divert may take messages."""
        if not self._by_address:
            return None
        return self._for_all(rule.address) or self._diverted(rule.address)

    def _diverted(self, address: str) -> ServerPreparedTransaction | None:
        found = map(self._for_all, self._diverts.sources(address))
        return next((prepared for prepared in found if prepared is not None), None)

    def _for_all(self, address: str) -> ServerPreparedTransaction | None:
        """The oldest transaction that sends to an address, and not to one queue of it."""
        known = self._by_address.get(address, {})
        return next((prepared for prepared, named in known.items() if None in named), None)
