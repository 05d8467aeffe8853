"""Where the messages of a run go whose address has diverts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq.broker.catalog._distribution_plan import Share, takes
from meshq.broker.catalog._diverts import Diverts
from meshq.broker.catalog._router import Address
from meshq.broker.ingress._distribution import deal_here, wants_of
from meshq.broker.queue._run import StoredRun

#: The diverts of a node, and what finds an address there, or makes it; None: it can't be made.
Ways = tuple[Diverts, Callable[[str], Address | None]]


def diverted_shares(
    run: StoredRun, address: Address, rows: Sequence[int], ways: Ways, divide: Callable[[list[int]], list[Share]]
) -> list[Share]:
    """Return the shares of a run that is diverted.  ``divide``: divides rows among the queues of the address itself.

    An address gets each message once, however many ways lead there.  Behind a divert only the queues of this node get
    something: the others have their own diverts.

    Raises:
        AddressFullError, JournalBrokenError: a queue can't be made.
    """
    (diverts, address_here), wants = ways, wants_of(run)
    reached: dict[str, dict[int, None]] = {address.name: dict.fromkeys(rows)}
    shares: list[Share] = []
    for name in diverts.order(address.name):
        here = sorted(reached.get(name, ()))
        kept = dict.fromkeys(here)
        for rule in diverts.leaving(name):
            for row in here:
                if takes(rule.filter, row, wants):
                    reached.setdefault(rule.forwarding_address, {})[row] = None
                    if rule.exclusive:
                        kept.pop(row, None)
        if not kept:
            continue
        if name == address.name:
            shares += divide(list(kept))
        elif (found := address_here(name)) is not None:
            shares += deal_here(run, found, found.queues, list(kept))
    return shares
