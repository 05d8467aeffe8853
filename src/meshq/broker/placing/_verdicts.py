"""What filters say of the messages of a run before it is placed: found out in steps, where that is much work.

Placing is one step that nothing may interrupt, and on an address with hundreds of filtered queues each message of a run
is put to hundreds of filters.  So a run whose messages are much work is put to the filters beforehand, as much in a
step as a queue puts to the filters of its consumers, and placing looks up what they have said.  A filter that comes in
between is asked by placing itself, if that is no more than a step, and else beforehand as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshq import limits
from meshq.broker.placing._router import Router
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._run_messages import RunMessages, accepted
from meshq.selector import Filter

#: By filter: the rows that it accepts.
Verdicts = dict[Filter, dict[int, None]]


def filters_at(router: Router, name: str) -> list[Filter]:
    """The filters that may be asked where the messages go that are sent to an address."""
    found: dict[Filter, None] = {}
    for one in router.diverts.order(name):
        for rule in router.diverts.leaving(one):
            if rule.filter is not None:
                found[rule.filter] = None
        address = router.addresses.get(one)
        if address is None:
            continue
        if address.filtered:
            own = (queue.terms.filter for queue in address.queues)
            found |= dict.fromkeys(filter for filter in own if filter is not None)
        for ring in address.rings.values():
            if ring.judged:
                found |= dict.fromkeys(ring.filters())
    return list(found)


def is_much(run: StoredRun, filters: Sequence[Filter]) -> bool:
    """Whether it takes more than a step to put all messages of a run to filters."""
    rows, budget = range(run.content.rows), limits.SCAN_MESSAGES_MAX
    messages = RunMessages(run)
    for filter in filters:
        budget -= messages.portion(rows, filter.terms, filter.searches, budget + 1)[1]
        if budget < 0:
            return True
    return False


def judge(run: StoredRun, filters: Sequence[Filter], verdicts: Verdicts) -> Iterator[None]:
    """Put the messages of a run to filters, step by step; what they say is in ``verdicts`` at the end."""
    budget = limits.SCAN_MESSAGES_MAX
    for filter in filters:
        rows: Sequence[int] = range(run.content.rows)
        found: list[int] = []
        while rows:
            part, seen, work = accepted(run, filter, rows, budget)
            found += part
            rows = rows[seen:]
            budget -= work
            if budget <= 0:
                yield None
                budget = limits.SCAN_MESSAGES_MAX
        verdicts[filter] = dict.fromkeys(found)
