"""The resolution of a target: the address and queue that exist, or that would be created on first use."""

from __future__ import annotations

from typing import NamedTuple

from meshq.address import SEPARATOR, TEMPORARY, Target
from meshq.broker.catalog._router import Address, Router
from meshq.errors import NotFoundError, UsageError


class TargetResolution(NamedTuple):
    """The address and the queue of a target, existing or to be created."""

    #: None: it is to be made, with this routing type.
    address: Address | None
    routing: str
    #: The one name of queues that is meant, on this node or others; empty: all of the address.
    only: str = ""
    #: The queue that is to be made; empty: none.
    makes: str = ""


def resolve_target(router: Router, target: Target) -> TargetResolution:
    """Find the address and the queue of a target, without creating either.

    Raises:
        NotFoundError: the target doesn't exist, and isn't created on first use.
        UsageError: the queue can't be created: another queue has its name.
    """
    address = router.addresses.get(target.address)
    if target.queue is not None:
        return _named(router, target, target.queue, address)
    if address is not None and (address.queues or address.routing == "multicast" or address.clustered_queues):
        return TargetResolution(address, address.routing)
    elsewhere = router.remote_routing(target.address)
    if address is None:
        if target.address.startswith(TEMPORARY):
            return _temporary(target.address, elsewhere)
        settings = router.settings(target.address)
        if elsewhere is not None and (elsewhere == "multicast" or not settings.auto_create_queues):
            return TargetResolution(None, elsewhere)
        if not settings.auto_create_queues:
            raise NotFoundError(f"there is no address {target.address!r}")
        if elsewhere is None and settings.default_routing == "multicast":
            return TargetResolution(None, "multicast")
    makes = makeable(router, target.address, target.address)
    return TargetResolution(address, "anycast", makes=makes)


def _named(router: Router, target: Target, name: str, address: Address | None) -> TargetResolution:
    """Resolve one queue of an address, which may be on other nodes, too, or only there."""
    names = (f"{target.address}{SEPARATOR}{name}", name)
    there = router.remote_names(target.address)
    routing = address.routing if address is not None else router.remote_routing(target.address)
    for one in names:
        if routing is not None and there.get(one) == routing:
            return TargetResolution(address, routing, one)
    queue = router.find_queue(target)
    if queue is not None:
        known = router.addresses[target.address]
        return TargetResolution(known, known.routing, queue.name)
    makes = makeable(router, name, target.address)
    return TargetResolution(address, routing or router.settings(target.address).default_routing, makes, makes)


def _temporary(name: str, elsewhere: str | None) -> TargetResolution:
    if elsewhere is None:
        raise NotFoundError(f"there is no temporary queue {name!r}: it goes with the session that made it")
    return TargetResolution(None, "anycast")


def makeable(router: Router, name: str, address: str) -> str:
    """Check that a queue may be created on first use; return its name.

    Raises:
        NotFoundError: the queue may not be created.
        UsageError: another queue has its name.
    """
    if not router.settings(address).auto_create_queues or address.startswith(TEMPORARY):
        raise NotFoundError(f"there is no queue {name!r}" + (f" on {address!r}" if name != address else ""))
    other = router.queues.get(name)
    if other is not None:
        raise UsageError(f"{name!r} can't be a queue of {address!r}: another address has one of that name")
    return name
