"""The queue of a new consumer, and the checks for temporary queues and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshq import limits
from meshq.address import SEPARATOR, TEMPORARY, check_literal, parse_target
from meshq.broker.access._access import permit, permit_new, queue_address
from meshq.broker.catalog._network_demand_plan import holder_of, topic_filter
from meshq.broker.catalog._subscription import subscription_name
from meshq.broker.cursors._cursor_machine import check_owner, refuse_if_held
from meshq.broker.management._cursor_operations import permit_cursor
from meshq.broker.management._queue_deletion import remove_when_moved
from meshq.broker.queue._queue_spec import QueueSpec
from meshq.broker.replay._cursors import check_range
from meshq.broker.work._long_operations import Steps, Values
from meshq.errors import NotFoundError
from meshq.ids import IDENTITY_BYTES
from meshq.selector import parse_filter
from meshq.wire import decline

if TYPE_CHECKING:
    from meshq.broker.catalog._definitions import Definitions
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester
    from meshq.broker.queue._queue_machine import Queue
    from meshq.wire import Consume


def queue_to_consume(
    definitions: Definitions,
    token: Callable[[int], bytes],
    session: Requester,
    warn: Callable[[str, str], None],
    wanted: Consume,
) -> Queue:
    """The queue that a consumer of this session reads, made if need be.  ``warn``: takes event and text.

    Raises:
        NotFoundError, UsageError: there is none, and none can be made.
        SettingsError: the address of a subscription is a pattern.
        RefusedError: it is somebody else's, or has the one consumer that it may have.
    """
    if wanted.subscription:
        check_literal("address", wanted.queue)
    if session.rights is not None:
        permit_consuming(definitions, session, wanted)
    holder = holder_of(wanted.routes, _login(session)) if wanted.routes else ""
    if holder and wanted.subscription:
        _tell_lack(definitions, holder, wanted, warn)
    if wanted.routes and wanted.durable:
        queue = definitions.kept_for_network(wanted.queue, wanted.name, kept_spec(wanted, holder))
    elif wanted.subscription:
        name = wanted.name
        if wanted.subscription == "own":
            name = f"${token(IDENTITY_BYTES).hex()}"
        filter = parse_filter(wanted.filter) if wanted.filter else None
        queue = definitions.subscription(
            wanted.queue,
            name,
            kind=wanted.subscription,
            durable=wanted.durable,
            filter=filter,
            holder=holder,
        )
    else:
        queue = definitions.queue_for(parse_target(wanted.queue, "queue"))
    check_free(queue, session, browse=wanted.browse)
    if not wanted.browse:
        refuse_if_held(queue.roster.cursor, "no consumer takes from it")
    elif wanted.lo:
        _check_numbers(queue, wanted, session)
    return queue


def _login(session: Requester) -> str | None:
    """The user of a session; None: nobody has logged in."""
    return session.owner[1] if session.rights is not None else None


def _tell_lack(definitions: Definitions, holder: str, wanted: Consume, warn: Callable[[str, str], None]) -> None:
    """Warn if a topic has no place for one more queue of a network consumer."""
    found = definitions.router.addresses.get(wanted.queue)
    there = f"{wanted.queue}{SEPARATOR}{wanted.name}" in definitions.router.queues
    if found is not None and not there and (lack := found.network.lack(found.name, holder, named=True)):
        warn("network_places", lack if holder in lack else f"{lack}; {holder} gets none")


def kept_spec(wanted: Consume, holder: str) -> QueueSpec:
    """Return the settings of the queue of a network consumer whose messages are kept while it is away.

    Raises:
        FilterError: what the consumers want is no condition.
    """
    filter = topic_filter(wanted.routes, wanted.hops, wanted.filter)
    return QueueSpec(
        subscription=wanted.subscription,
        filter=filter,
        routes=wanted.routes,
        wanted=wanted.filter,
        network=True,
        holder=holder,
    )


def _check_numbers(queue: Queue, wanted: Consume, session: Requester) -> None:
    """See that a browse of numbers asks for a range that the queue has, and comes from the owner of the cursor.

    Raises:
        UsageError: the range is none of the queue's.
        CursorLostError: the cursor is not the asker's any more.
        SecurityError: it is that of another user.
    """
    if wanted.hi:
        check_range(queue, wanted.lo, wanted.hi)
    if wanted.cursor:
        permit_cursor(session, queue, check_owner(queue.roster.cursor, queue.name, (wanted.cursor, wanted.fence)))


def permit_consuming(definitions: Definitions, session: Requester, wanted: Consume) -> None:
    """See that a session may consume from a queue, or look at it, also if that comes into being by it.

    A subscription's queue is a part of consuming, unless it stays when nobody consumes.

    Raises:
        SecurityError: it may not.
    """
    router = definitions.router
    # Reading for a cursor is consuming.
    permission = "browse" if wanted.browse and not wanted.cursor else "consume"
    if wanted.subscription:
        permit(session, permission, wanted.queue)
        known = router.queues
        lasting = wanted.durable and not wanted.routes and f"{wanted.queue}{SEPARATOR}{wanted.name}" not in known
        if lasting or wanted.queue not in router.addresses:
            permit(session, "create", wanted.queue)
        return
    queue = router.queues.get(wanted.queue)
    if queue is not None and queue.spec.owner is session:
        return
    address = queue_address(router, wanted.queue)
    permit(session, permission, address, queue=wanted.queue if queue is not None else "")
    target = parse_target(wanted.queue, "queue")
    if queue is None and definitions.would_make_to_read(target):
        permit_new(session, target)


def check_free(queue: Queue, session: Requester, *, browse: bool = False) -> None:
    """See that a session may consume from a queue, or look at it.

    Raises:
        RefusedError: it is somebody else's, or has the one consumer that it may have.
    """
    spec = queue.spec
    if spec.owner is not None and spec.owner is not session:
        raise decline("not_owner", f"{queue.name!r} is temporary, and only the session that made it consumes from it")
    if spec.subscription in ("own", "single") and queue.roster.consumers and not browse:
        raise decline("in_use", f"{subscription_name(queue)} is not shared, and {_user(queue)} consumes from it")


def create_temporary(core: Core, session: Requester) -> Queue:
    """A queue that goes with its session, on an address of its own.

    Raises:
        UsageError: the session has as many as it may have.
    """
    if len(session.owned) >= limits.CHANNELS_MAX:
        raise decline("too_many", f"a session has at most {limits.CHANNELS_MAX} temporary queues")
    name = TEMPORARY + core.settings.token(IDENTITY_BYTES).hex()
    queue = core.definitions.create_temporary(name, session)
    session.owned[queue.number] = queue
    return queue


def unsubscribe(core: Core, address: str, name: str) -> Values | Steps:
    """Delete a subscription with everything in its queue.

    Raises:
        NotFoundError: there is none of this name.
        RefusedError: somebody consumes from it.
        BusyError: a prepared transaction holds messages of it, or sends there.
    """
    queue = core.router.queues.get(f"{address}{SEPARATOR}{name}")
    if queue is None or not queue.spec.subscription:
        raise NotFoundError(f"there is no subscription {name!r} on {address!r}")

    def check() -> None:
        refuse_if_held(queue.roster.cursor, "delete the cursor before the subscription")
        if queue.roster.consumers:
            raise decline("in_use", f"{_user(queue)} consumes from {subscription_name(queue)}")
        core.transactions.two_phase.check_free(queue)

    return remove_when_moved(core, queue, check)


def _user(queue: Queue) -> str:
    principals = (consumer.sink.principal for consumer in queue.roster.consumers)
    session = next(principal for principal in principals if principal is not None)
    label = f" {session.label!r}" if session.label else ""
    return f"session {session.number}{label} at {session.peer}"
