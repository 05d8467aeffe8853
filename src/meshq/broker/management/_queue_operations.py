"""The management operations of addresses and queues: one function for each, called by frames and by messages alike.

A function gets the core and its arguments by name, checked for their types; some get the session that asks, too.  It
returns the answer, or the steps that lead to the answer; a list of rows in it is one page of many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from meshq.address import check_name, check_place, parse_target
from meshq.broker.access._access import may_look, permit_moving
from meshq.broker.catalog._names import check_open, check_sendable
from meshq.broker.cursors._cursor_machine import refuse_if_held
from meshq.broker.ingress._rerouting import node_of
from meshq.broker.management._bulk_move import bulk_move, to_address, to_origin, to_others
from meshq.broker.management._id_transfer import drop_entries
from meshq.broker.management._pages import page_of_names
from meshq.broker.management._queue_deletion import remove_when_moved, still_there
from meshq.broker.management._subscriptions import create_temporary
from meshq.broker.management._subscriptions import unsubscribe as end_subscription
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.work._long_operations import PendingMovesWait, Steps, Values
from meshq.errors import NotFoundError, UsageError
from meshq.selector import parse_filter
from meshq.settings import AddressSettings
from meshq.wire import COUNTER_MAX, decline

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester
    from meshq.broker.queue._queue_machine import Queue

#: More messages than a queue can have numbers.
_ALL: Final = COUNTER_MAX
#: The settings of addresses; what each of them may be is their own affair.
SETTINGS: Final = tuple(field.name for field in attrs.fields(AddressSettings) if field.init)


def create_address(core: Core, name: str, routing: str) -> Values:
    """Create an address, unless it is there."""
    address = core.definitions.create_address(name, routing)
    return {"name": address.name, "routing": address.routing}


def create_queue(
    core: Core,
    name: str,
    address: str | None = None,
    routing: str = "anycast",
    durable: bool = True,
    filter: str | None = None,
) -> Values:
    """Create a queue, with its address if need be, unless it is there."""
    condition = parse_filter(filter) if filter else None
    queue = core.definitions.create_queue(name, address=address, routing=routing, durable=durable, filter=condition)
    return {"name": queue.name, "address": queue.address}


def delete_queue(core: Core, name: str) -> Values | Steps:
    """Delete a queue with everything in it; its consumers end."""
    queue = _existing(core, check_open(name))
    name = queue.name
    error = decline("queue_deleted", repr(name))

    def end_consumers() -> None:
        refuse_if_held(queue.roster.cursor, "delete the cursor before the queue")
        core.transactions.two_phase.check_free(queue)
        for session in list(core.sessions):
            session.consumers.lose_queue(name, error)

    return remove_when_moved(core, queue, end_consumers)


def create_temporary_queue(core: Core, asker: Requester) -> Values:
    """Create a queue that goes with its session."""
    return {"name": create_temporary(core, asker).name}


def unsubscribe(core: Core, address: str, name: str) -> Values | Steps:
    """Delete a named subscription with everything in its queue."""
    return end_subscription(core, check_open(address, name), name)


def purge_queue(core: Core, name: str) -> Values | Steps:
    """Remove all waiting messages of a queue, except messages on their way to another address."""
    queue = _existing(core, check_open(name))
    return _purging(core, queue) if queue in core.mover.pending_moves else _purged(core, queue)


def _purging(core: Core, queue: Queue) -> Steps:
    # What comes after that is on its way is not waited for: a consumer may reject for ever.
    yield PendingMovesWait(queue)
    yield _purged(core, still_there(core, queue))


def _purged(core: Core, queue: Queue) -> Values:
    refuse_if_held(queue.roster.cursor, "nothing is purged before its owner")
    removed = core.acknowledger.purge(queue)
    # It may have been what kept the queue.
    core.pending.schedule_dispatch(queue)
    return {"removed": removed}


def move_messages(
    core: Core, asker: Requester | None, name: str, address: str, filter: str | None = None, limit: int = 0
) -> Steps:
    """Move messages that wait in a queue to an address."""
    queue = _existing(core, check_open(name))
    check_sendable(check_place("address", address))
    condition = parse_filter(filter) if filter else None
    return bulk_move(core, queue, condition, limit or _ALL, to_address(address), "moved", asker=asker)


def redrive(core: Core, asker: Requester | None, name: str, filter: str | None = None, limit: int = 0) -> Steps:
    """Send messages back to where they were moved from; takes `send` there."""
    queue = _existing(core, check_open(name))
    condition = parse_filter(filter) if filter else None

    def permitted(address: str) -> None:
        permit_moving(asker, address)

    return bulk_move(core, queue, condition, limit or _ALL, to_origin(core, permitted), "redriven", asker=asker)


def give_back(core: Core, asker: Requester | None, node_id: str, force: bool = False) -> Steps:
    """Route messages anew that wait for another node; `force`: also while that is only away."""
    kept = [queue for queue in core.router.queues.values() if queue.kind is QueueKind.STORE_AND_FORWARD]
    found = [queue for queue in kept if node_of(queue) == node_id]
    if not found:
        raise NotFoundError(f"nothing was ever kept here for a node {node_id[:64]!r}")
    for queue in found:
        known = core.definitions.peers.peers.get(queue.number)
        if queue.roster.consumers or (known is not None and not known.gone):
            raise UsageError(f"the node {node_id!r} is linked: what waits for it goes there")
        if known is not None and known.gone == "away" and not force:
            text = f"the node {node_id!r} is only away, and may have some of what waits for it"
            raise UsageError(f"{text}: force=True gives it back all the same")
    return given_back(core, asker, found)


def given_back(core: Core, asker: Requester | None, queues: list[Queue]) -> Steps:
    """Route messages anew that wait in these store-and-forward queues."""
    moved = 0
    # Whichever of them is linked between two steps: from then on its node may have some.
    ways = [(queue, *to_others(core, queue)) for queue in queues]
    for queue in queues:
        drop_entries(core, queue)
    for queue, aim, movable in ways:
        for step in bulk_move(core, queue, None, _ALL, aim, "given_back", movable=movable, asker=asker):
            if isinstance(step, dict):
                moved += step["moved"]
            else:
                yield step
    yield {"moved": moved}


def set_address_settings(core: Core, pattern: str, **fields: Any) -> Values:
    """Say how the addresses of a pattern behave from now on."""
    core.definitions.settings.set(pattern, fields)
    core.open_credits()
    core.schedule_all_dispatches()
    return {}


def remove_address_settings(core: Core, pattern: str) -> Values:
    """Delete the settings that were set for a pattern while the broker ran."""
    core.definitions.settings.remove(pattern)
    core.open_credits()
    core.schedule_all_dispatches()
    return {}


def address_settings(core: Core, address: str) -> Values:
    """The settings that apply to an address."""
    settings = core.router.settings(check_name("address", address))
    return {name: getattr(settings, name) for name in SETTINGS}


def pause_queue(core: Core, name: str) -> Values:
    """Have a queue take messages and deliver none."""
    core.definitions.pause(_existing(core, check_open(name)), True)
    return {}


def resume_queue(core: Core, name: str) -> Values:
    """Have a queue deliver again."""
    queue = _existing(core, check_open(name))
    core.definitions.pause(queue, False)
    core.pending.schedule_dispatch(queue)
    return {}


def queue(core: Core, name: str) -> Values:
    """The statistics of a queue."""
    return core.router.statistics(_existing(core, name))


def queues(core: Core, asker: Requester | None, after: str = "") -> Values:
    """A page of the names of all queues that the asker may know of."""
    known = core.router.queues
    return page_of_names("queues", (name for name in known if name > after and may_look(asker, known[name].address)))


def _existing(core: Core, name: str) -> Queue:
    queue = core.router.find_queue(parse_target(name, "queue"))
    if queue is None:
        raise NotFoundError(f"there is no queue {name!r}")
    return queue
