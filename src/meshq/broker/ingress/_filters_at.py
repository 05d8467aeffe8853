"""Which filters may be asked of a run that is placed: all of them, before any is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshq.address import SEPARATOR, Target
from meshq.broker.catalog._router import Router
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._verdicts import AskedFilters, cost_of, judging, unasked, work_of
from meshq.broker.work._fair_scheduler import CostlyScan, FairScheduler, Owner
from meshq.selector import Filter


def filters_at(router: Router, target: Target) -> list[Filter]:
    """Return the filters of all queues that messages to a target may reach, diverts included."""
    if target.queue is not None:
        return _distinct(_of_name(router, target))
    name = target.address
    address = router.addresses.get(name)
    if name in router.diverts.from_address:
        return _distinct(_of_diverts(router, name))
    if address is None or not (address.filtered or address.clustered_queues):
        return []
    return _distinct(_of_address(router, name))


def filters_here(router: Router, target: Target) -> list[Filter]:
    """Return the filters of all queues that the node's own moves to a target may reach."""
    address = router.addresses.get(target.address)
    if address is None or not address.filtered:
        return []
    if target.queue is not None:
        found = [router.queues.get(name) for name in _names(target)]
        named = [queue for queue in found if queue is not None and queue.address == target.address]
        if named:
            return _distinct(_of_queues(named))
    return _distinct(_of_queues(address.queues))


def filters_anew(router: Router, name: str) -> list[Filter]:
    """Return the filters for messages of an address that go to other nodes, or waited for one which has left.

    Those of consumers here are among these where what no consumer here takes may go.
    """
    return _distinct([*_of_everybody(router, name), *_of_consumers(router, name)])


def filters_of_moved(router: Router, target: Target, *, anew: bool = False) -> list[Filter]:
    """Return the filters for messages that the node moves; ``anew``: the messages waited for a node which has left."""
    return filters_anew(router, target.address) if anew else filters_here(router, target)


def forwarded_to(router: Router, address: str, queues: Sequence[int]) -> dict[Queue, None]:
    """Return those queues, given by number, that still exist and belong to an address."""
    found = [router.by_number.get(number) for number in queues]
    return dict.fromkeys(queue for queue in found if queue is not None and queue.address == address)


def relayed_to(router: Router, address: str, queues: Sequence[int]) -> dict[Queue, tuple[int, ...]]:
    """Return the queues of further nodes among these: by store-and-forward queue, the numbers of the queues there."""
    found = router.relays.places(address, queues).items()
    return {router.by_number[forward]: numbers for forward, numbers in found if forward in router.by_number}


def filters_of_forwarded(router: Router, address: str, queues: Sequence[int]) -> list[Filter]:
    """Return the filters for messages that another node has sent to queues here."""
    targets = forwarded_to(router, address, queues)
    if not targets and router.relays.places(address, queues):
        # The node that has the queue asks its filter.
        return []
    if not targets:
        # What is for a queue that is gone is routed once more.
        return filters_at(router, Target(address, None))
    found = _distinct(_of_queues(targets))
    # So is what an anycast queue does not take.
    anycast = bool(found) and router.addresses[address].routing == "anycast"
    return _distinct([*found, *_of_queues(router.addresses[address].queues)]) if anycast else found


def filters_explained(router: Router, target: Target) -> list[Filter]:
    """Return the filters that an explanation of a target asks."""
    found: dict[Filter, None] = {}
    for name in router.diverts.order(target.address):
        found.update(dict.fromkeys(_of_everybody(router, name)))
        found.update({rule.filter: None for rule in router.diverts.leaving(name) if rule.filter is not None})
    return list(found)


def costly(
    fair_scheduler: FairScheduler,
    owner: Owner,
    run: StoredRun,
    filters: Sequence[Filter],
    rows: Sequence[int] | None = None,
) -> CostlyScan | None:
    """The steps in which messages of a run are put to filters before it is placed; None: placing may ask them."""
    missing = unasked(run, filters, rows)
    if not missing:
        return None
    work = work_of(run, cost_of(missing), rows)
    return (
        None
        if fair_scheduler.afford(owner, work)
        else CostlyScan(judging(run, missing, AskedFilters(missing), rows), work)
    )


def _distinct(filters: Iterable[Filter]) -> list[Filter]:
    return list(dict.fromkeys(filters))


def _of_queues(queues: Iterable[Queue]) -> Iterator[Filter]:
    for queue in queues:
        if queue.spec.filter is not None:
            yield queue.spec.filter


def _of_consumers(router: Router, name: str) -> Iterator[Filter]:
    address = router.addresses.get(name)
    for queue in address.queues if address is not None else ():
        for consumer in queue.roster.consumers if queue.settings.redistribute_unmatched else ():
            if consumer.filter is not None:
                yield consumer.filter


def _of_address(router: Router, name: str) -> Iterator[Filter]:
    address = router.addresses.get(name)
    if address is None:
        return
    yield from _of_queues(address.queues)
    for clustered in address.clustered_queues.values():
        yield from clustered.filters()


def _of_diverts(router: Router, name: str) -> Iterator[Filter]:
    for one in router.diverts.order(name):
        for rule in router.diverts.leaving(one):
            if rule.filter is not None:
                yield rule.filter
        address = router.addresses.get(one)
        # Behind a divert only the queues of this node get something.
        if one != name and address is not None and address.filtered:
            yield from _of_queues(address.queues)
    yield from _of_address(router, name)


def _of_name(router: Router, target: Target) -> Iterator[Filter]:
    address = router.addresses.get(target.address)
    for name in _names(target):
        queue = router.queues.get(name)
        if queue is not None and queue.address == target.address:
            yield from _of_queues([queue])
        clustered = address.clustered_queues.get(name) if address is not None else None
        if clustered is not None:
            yield from clustered.filters()


def _of_everybody(router: Router, name: str) -> Iterator[Filter]:
    yield from _of_address(router, name)
    address = router.addresses.get(name)
    for queue in address.queues if address is not None else ():
        yield from queue.roster.filters
    for binding in router.bindings(name):
        yield from binding.filters
        if binding.filter is not None:
            yield binding.filter


def _names(target: Target) -> tuple[str, str]:
    name = target.queue or ""
    return f"{target.address}{SEPARATOR}{name}", name
