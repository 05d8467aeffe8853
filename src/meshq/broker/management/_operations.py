"""The management operations: one function for each, called by frames and by messages alike.

A function gets the core and its arguments by name, checked for their types; some get the session that asks, too.  It
returns the answer, or the steps that lead to the answer; a list of rows in it is one page of many.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from meshq import limits
from meshq.address import Target, check_name, check_place, parse_place, parse_target
from meshq.broker.access._access import may_look, permit_moving
from meshq.broker.catalog._names import check_open, check_sendable
from meshq.broker.ingress._explainer import Explainer
from meshq.broker.ingress._filters_at import costly, filters_explained
from meshq.broker.ingress._rerouting import node_of
from meshq.broker.ingress._sample_run import imagined
from meshq.broker.management._bulk_move import bulk_move, to_address, to_origin, to_others
from meshq.broker.management._queue_deletion import remove_when_moved, still_there
from meshq.broker.management._subscriptions import create_temporary
from meshq.broker.management._subscriptions import unsubscribe as end_subscription
from meshq.broker.settlement._tracing import trace as tracing
from meshq.broker.work._fair_scheduler import NODE, CostlyScan
from meshq.broker.work._long_operations import FairTurnWait, PendingMovesWait, Steps
from meshq.errors import NotFoundError, SettingsError, UsageError
from meshq.ids import MessageId
from meshq.selector import Filter, parse_filter
from meshq.settings import AddressSettings
from meshq.wire import COUNTER_MAX, decline

if TYPE_CHECKING:
    from meshq.abc import Controllable
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester
    from meshq.broker.queue._queue_machine import Queue
    from meshq.broker.queue._run import StoredRun

#: Bytes of names in one page: well under what the header of a frame may have.
_NAMES_BYTES_MAX: Final = 3_000
#: Of what a bridge says went wrong.
_TEXT_BYTES_MAX: Final = 500
#: More messages than a queue can have numbers.
_ALL: Final = COUNTER_MAX
#: Rows behind the first one of a page: there is another page if there are so many.
_ROWS_AHEAD: Final = 200
#: What a row of an explanation costs, as that of so many small messages.
_ROW_WORK: Final = 8
#: The settings of addresses; what each of them may be is their own affair.
SETTINGS: Final = tuple(field.name for field in attrs.fields(AddressSettings) if field.init)

Values = dict[str, Any]


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
        core.transactions.two_phase.check_free(queue)
        for session in list(core.sessions.values()):
            session.consumers.lose_queue(name, error)

    return remove_when_moved(core, queue, end_consumers)


def create_temporary_queue(core: Core, asker: Requester) -> Values:
    """Create a queue that goes with its session."""
    return {"name": create_temporary(core, asker).name}


def unsubscribe(core: Core, address: str, name: str) -> Values | Steps:
    """Delete a named subscription with everything in its queue."""
    return end_subscription(core, check_open(address), name)


def purge_queue(core: Core, name: str) -> Values | Steps:
    """Remove all waiting messages of a queue, except messages on their way to another address."""
    queue = _existing(core, check_open(name))
    return _purging(core, queue) if queue in core.mover.pending_moves else _purged(core, queue)


def _purging(core: Core, queue: Queue) -> Steps:
    # What comes after that is on its way is not waited for: a consumer may reject for ever.
    yield PendingMovesWait(queue)
    yield _purged(core, still_there(core, queue))


def _purged(core: Core, queue: Queue) -> Values:
    removed = core.acknowledger.purge(queue)
    # It may have been what kept the queue.
    core.pending.schedule_dispatch(queue)
    return {"removed": removed}


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


def broker(core: Core) -> Values:
    """The state and the counters of the broker."""
    return core.settings.host.describe()


def diverts(core: Core, asker: Requester | None, after: str = "") -> Values:
    """A page of all diverts that the asker may know of."""
    rules = core.router.diverts.by_name
    rows: list[Values] = []
    size = 0
    for name in sorted(name for name in rules if name > after and may_look(asker, rules[name].address)):
        rule = rules[name]
        about = (name, rule.address, rule.forwarding_address, rule.filter_text)
        size += sum(len(text.encode()) + 24 for text in about)
        if size > _NAMES_BYTES_MAX and rows:
            return {"diverts": rows, "more": True}
        rows.append(dict(zip(_DIVERT, (*about, rule.exclusive), strict=True)))
    return {"diverts": rows, "more": False}


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
    found = [queue for queue in core.router.queues.values() if queue.forwards and node_of(queue) == node_id]
    if not found:
        raise NotFoundError(f"nothing was ever kept here for a node {node_id[:64]!r}")
    for queue in found:
        known = core.definitions.peers.peers.get(queue.number)
        if queue.roster.consumers or (known is not None and not known.gone):
            raise UsageError(f"the node {node_id!r} is linked: what waits for it goes there")
        if known is not None and known.gone == "away" and not force:
            text = f"the node {node_id!r} is only away, and may have some of what waits for it"
            raise UsageError(f"{text}: force=True gives it back all the same")
    return _give_back(core, asker, found)


def _give_back(core: Core, asker: Requester | None, queues: list[Queue]) -> Steps:
    moved = 0
    for queue in queues:
        aim, movable = to_others(core, queue)
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
    rows: list[Values] = []
    size = 0
    for name in sorted(name for name in known if name > after and may_look(asker, known[name].address)):
        size += len(name.encode()) + 16
        if size > _NAMES_BYTES_MAX and rows:
            return {"queues": rows, "more": True}
        rows.append({"queue": name})
    return {"queues": rows, "more": False}


def explain_route(
    core: Core,
    asker: Requester | None,
    address: str,
    properties: bytes | dict[str, Any] | None = None,
    headers: bytes | dict[str, Any] | None = None,
    durable: bool = True,
    priority: int = limits.PRIORITY_DEFAULT,
    user: str | None = None,
    after: int = 0,
) -> Steps:
    """Say where a message would go, and why; without `properties`, where any message may."""
    target = parse_place(address)
    message = imagined(target.address, properties, headers, durable=durable, priority=priority)
    return _explained(core, asker, target, message, user, after)


def _explained(
    core: Core, asker: Requester | None, target: Target, message: StoredRun | None, user: str | None, after: int
) -> Steps:
    """Explain a route, in steps if the filters are costly."""
    owner = asker.owner if asker is not None else NODE
    wait_for_turn = partial(FairTurnWait, owner, asker or core, alive=lambda: asker is None or not asker.ended)
    while (
        message is not None
        and (asked := costly(core.pending.fair_scheduler, owner, message, _filters_on(core, target))) is not None
    ):
        yield wait_for_turn(asked)
        if asker is not None and asker.ended:
            yield {}
            return
    explainer = Explainer(core.router, message)
    known = _KnownRows(core, asker)
    for count in explainer.follow(target):
        known.add(explainer.rows)
        if len(known.rows) > max(after, 0) + _ROWS_AHEAD:
            # No page gets there.
            break
        work = _ROW_WORK * count
        if not core.pending.fair_scheduler.afford(owner, work):
            yield wait_for_turn(CostlyScan(iter(()), work))
            if asker is not None and asker.ended:
                yield {}
                return
    known.add(explainer.rows)
    rows = list(known.rows.values())
    yield {**_about_target(core, asker, target, user), **_page("steps", rows, after)}


def _filters_on(core: Core, target: Target) -> list[Filter]:
    return filters_explained(core.router, target) if core.router.sieves else []


def _about_target(core: Core, asker: Requester | None, target: Target, user: str | None) -> Values:
    known = core.router.addresses.get(target.address)
    settings = core.router.settings(target.address)
    creates = core.definitions.would_make(target)
    rights = core.access.of(("client", user)) if user else asker.rights if asker is not None else None
    needed = {"send", "create"} if creates else {"send"}
    named = target.queue if creates and target.queue is not None else target.address
    return {
        "address": target.address,
        "routing": known.routing if known is not None else settings.default_routing,
        "exists": known is not None,
        "creates": creates,
        "permitted": rights is None or (needed <= rights.at(target.address) and needed - {"send"} <= rights.at(named)),
        "waits": _why_senders_wait(core, target.address),
    }


class _KnownRows:
    """The steps on a way, as far as the asker may know them: diverts may lead to where it may not look."""

    __slots__ = ("_asker", "_core", "_named", "_seen", "rows")

    def __init__(self, core: Core, asker: Requester | None) -> None:
        self._core = core
        self._asker = asker
        self.rows: dict[int | str, Values] = {}
        # Addresses of which the asker knows that messages come there.
        self._named: dict[str, None] = {}
        # Steps that were looked at.
        self._seen = 0

    def add(self, rows: list[Values]) -> None:
        """Add the rows that the asker may see."""
        if rows and not self._seen:
            self._named[rows[0]["address"]] = None
        for row in rows:
            self._seen += 1
            address = row["address"]
            if may_look(self._asker, address):
                self.rows[self._seen] = row
                rule = self._core.router.diverts.by_name.get(row["name"]) if row["kind"] == "divert" else None
                if rule is not None:
                    self._named[rule.forwarding_address] = None
            elif address in self._named and address not in self.rows:
                why = "it comes there, and what becomes of it the user may not know"
                about = {"name": "", "via": "", "filter": "", "gets": "maybe", "why": why}
                self.rows[address] = {"kind": "queue", "address": address, **about}
        rows.clear()


def _why_senders_wait(core: Core, address: str) -> str:
    quota = core.router.quotas.get(address)
    if quota is not None and quota.policy == "block" and quota.full:
        return "the address is full"
    if core.memory.blocked:
        return "the disk is full"
    return "the broker's memory is full" if core.memory.used_bytes >= core.memory.limit_bytes else ""


def trace(core: Core, message_id: str, after: int = 0) -> Steps:
    """Say in which queues a message is, in which state, and who holds it."""
    try:
        wanted = MessageId.parse(message_id)
    except ValueError as error:
        allowed = "the number of a message behind its producer's 32 hexadecimal digits and '-'"
        raise SettingsError("message_id", message_id[:64], allowed) from error
    for rows in tracing(core.release_queue, core.router, wanted):
        if rows is None:
            yield None
        else:
            accepted = core.ingress.producers.highest(wanted.producer) >= wanted.number > 0
            yield {"accepted": accepted, **_page("sightings", rows, after)}


def prepared(core: Core, after: int = 0) -> Values:
    """A page of the transactions that are prepared and not decided, the oldest first."""
    return _page("prepared", core.transactions.two_phase.statistics(), after)


def bridges(core: Core, after: int = 0) -> Values:
    """A page of the bridges of this node, with the state and the counters of each."""
    rows = [attrs.asdict(bridge.statistics()) for _, bridge in sorted(core.settings.controlled.items())]
    return _page("bridges", [{**row, "last_error": _brief(row["last_error"])} for row in rows], after)


def pause_bridge(core: Core, name: str) -> Values:
    """Have a bridge carry nothing more, and leave its queue to others."""
    _bridge(core, name).pause()
    return {}


def resume_bridge(core: Core, name: str) -> Values:
    """Have a bridge carry again."""
    _bridge(core, name).resume()
    return {}


def _bridge(core: Core, name: str) -> Controllable:
    found = core.settings.controlled.get(check_name("name", name))
    if found is None:
        raise NotFoundError(f"there is no bridge {name!r}")
    return found


def _brief(text: str | None) -> str | None:
    """As much of a text as a frame has room for, beside the rest of a row."""
    return text.encode()[:_TEXT_BYTES_MAX].decode(errors="ignore") if text is not None else None


def _page(name: str, rows: list[Values], after: int) -> Values:
    """Rows from ``after`` on, as many as a frame holds."""
    size = 0
    page: list[Values] = []
    for row in rows[max(after, 0) :]:
        size += sum(len(str(item).encode()) + len(key) + 8 for key, item in row.items())
        if size > _NAMES_BYTES_MAX and page:
            break
        page.append(row)
    return {name: page, "more": max(after, 0) + len(page) < len(rows)}


#: What is said of a divert.
_DIVERT: Final = ("name", "address", "forwarding_address", "filter", "exclusive")


def _existing(core: Core, name: str) -> Queue:
    queue = core.router.find_queue(parse_target(name, "queue"))
    if queue is None:
        raise NotFoundError(f"there is no queue {name!r}")
    return queue
