"""The management operations of cursors: one function for each."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from meshq.address import check_name, parse_target
from meshq.broker.access._access import may, permit, permit_look, queue_address
from meshq.broker.catalog._names import check_open
from meshq.broker.cursors._cursor_machine import CursorRequest
from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import Values
from meshq.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.cursors._cursor_machine import CursorMachine
    from meshq.broker.management._requester import Requester
    from meshq.broker.queue._queue_machine import Queue

#: The characters that prove an owner, at most, and how long a lease may be, ms.
TOKEN_CHARACTERS_MAX: Final = 64
LEASE_MS: Final = range(100, 3_600_001)
#: Holes, or cursors, of one answer.
PAGE_HOLES: Final = 32
PAGE_CURSORS: Final = 32
#: Characters of a label that name an owner: a row of the cursors has to fit in one answer.
LABEL_CHARACTERS_MAX: Final = 64


def open_cursor(
    core: Core,
    asker: Requester | None,
    queue: str,
    name: str,
    token: str,
    lease_ms: int,
    start: str = "earliest",
    max_lag: int = 0,
) -> Values:
    """Take a cursor of a queue, which is registered if it is not there; `held` says that another owner has it."""
    found = _existing(core, queue)
    if found.spec.routes:
        raise UsageError(f"{found.name!r} keeps messages for another broker of the network, and can have no cursor")
    if not 1 <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise UsageError(f"the token of an owner has from 1 to {TOKEN_CHARACTERS_MAX} characters, not {len(token)}")
    if lease_ms not in LEASE_MS:
        raise UsageError(f"a lease is from {LEASE_MS[0]} to {LEASE_MS[-1]} ms, not {lease_ms}")
    if max_lag < 0:
        raise UsageError(f"max_lag is a number of messages from 1, or 0 for that of the settings, not {max_lag}")
    known = found.roster.cursor
    if known is None:
        core.transactions.two_phase.check_free(found)
    else:
        permit_cursor(asker, found, known)
    wanted = CursorRequest(
        name=check_name("cursor", name),
        user=asker.owner[1] if asker is not None else "",
        start=start,
        token=token,
        holder=_holder(asker),
        lease_ms=lease_ms,
        max_lag=max_lag,
    )
    cursor = core.cursors.open(found, wanted)
    if cursor is None:
        assert known is not None
        left_ms = max(0, round(known.lease_until_ms - core.timers.elapsed_ms))
        return {"held": True, "holder": known.facts.holder, "left_ms": left_ms, "renewals": known.renewals}
    return {"held": False, **_place(found, cursor)}


def _holder(asker: Requester | None) -> str:
    """Return the name of the asking session, for people."""
    if asker is None:
        return "the node"
    label = f" {asker.label[:LABEL_CHARACTERS_MAX]!r}" if asker.label else ""
    return f"session {asker.number}{label} at {asker.peer}"


def permit_cursor(asker: Requester | None, queue: Queue, cursor: CursorMachine) -> None:
    """See that a session may use a cursor of a queue: it is that of the user who registered it.

    Raises:
        SecurityError: it is another user's, and the asker may not manage the address.
    """
    if asker is not None and cursor.facts.user != asker.owner[1]:
        permit(asker, "manage", queue.address, queue=queue.name)


def renew_cursor(core: Core, asker: Requester | None, queue: str, name: str, fence: int) -> Values:
    """Renew the lease of a cursor."""
    found = _used(core, asker, queue, fence)
    return _place(found, core.cursors.renew(found, name, fence))


def pin_cursor(core: Core, asker: Requester | None, queue: str, name: str, fence: int, number: int) -> Values:
    """Keep the messages with numbers below `number` from expiring."""
    found = _used(core, asker, queue, fence)
    return _place(found, core.cursors.pin(found, name, fence, number))


def ack_cursor(core: Core, asker: Requester | None, queue: str, name: str, fence: int, number: int) -> Values:
    """Acknowledge the messages with numbers below `number`."""
    found = _used(core, asker, queue, fence)
    return _place(found, core.cursors.ack(found, name, fence, number))


def release_cursor(core: Core, asker: Requester | None, queue: str, name: str, fence: int) -> Values:
    """Give up the ownership of a cursor, which stays."""
    core.cursors.release(_used(core, asker, queue, fence), name, fence)
    return {}


def delete_cursor(core: Core, asker: Requester | None, queue: str, name: str) -> Values:
    """Delete a cursor: takes `consume` if the asker has registered the cursor, else `manage`."""
    address = queue_address(core.router, queue)
    known = queue if queue in core.router.queues else ""
    if not may(asker, "manage", address):
        # Before anything is said of what is there.
        permit(asker, "consume", address, queue=known)
    found = _used(core, asker, queue)
    core.cursors.delete(found, name)
    return {}


def cursor_lag(core: Core, asker: Requester | None, queue: str, name: str) -> Values:
    """How far a cursor is behind: messages, bytes of their runs, age of the oldest by the clock of its sender."""
    found = _used(core, asker, queue)
    lag = core.cursors.lag(found, core.cursors.find(found, name), core.timers.now_ms)
    return {"messages": lag.messages, "bytes": lag.bytes, "age_ms": lag.age_ms}


def holes(core: Core, queue: str, lo: int, hi: int) -> Values:
    """The first numbers of a range that no message has, and why; `more`: ask again from behind the last of them on."""
    found = list(islice(core.cursors.holes(_existing(core, queue), lo, hi), PAGE_HOLES + 1))
    rows = [{"lo": hole.lo, "hi": hole.hi, "kind": hole.kind} for hole in found[:PAGE_HOLES]]
    return {"holes": rows, "more": len(found) > PAGE_HOLES}


def cursors(core: Core, asker: Requester | None, queue: str = "", after: int = 0) -> Values:
    """Return a page of the cursors that the asker has registered or may manage."""
    if queue:
        permit_look(asker, queue_address(core.router, queue), queue=queue if queue in core.router.queues else "")
    found = [_existing(core, queue)] if queue else core.cursors.queues()
    seen: list[tuple[Queue, CursorMachine]] = []
    for one in found:
        cursor = one.roster.cursor
        if cursor is not None and (may(asker, "manage", one.address) or _is_own(asker, cursor)):
            seen.append((one, cursor))
    rest = seen[max(after, 0) :]
    page = page_of("cursors", [_statistics(core, *one) for one in rest[:PAGE_CURSORS]], 0)
    return {**page, "more": len(page["cursors"]) < len(rest)}


def _is_own(asker: Requester | None, cursor: CursorMachine) -> bool:
    return asker is not None and cursor.facts.user == asker.owner[1]


def _statistics(core: Core, queue: Queue, cursor: CursorMachine) -> Values:
    facts, elapsed_ms = cursor.facts, core.timers.elapsed_ms
    cursor.look(elapsed_ms)
    until_ms = core.timers.now_ms + round(cursor.lease_until_ms - elapsed_ms) if cursor.held else 0
    return {
        "queue": queue.name,
        "name": facts.name,
        "user": facts.user,
        "holder": facts.holder if cursor.held else "",
        "lease_until": until_ms / 1000,
        "start": facts.start,
        "processed": facts.processed,
        "pinned": facts.pinned,
        "high": queue.counts.high,
        "lag": core.cursors.waiting(queue, cursor),
        "max_lag": core.cursors.max_lag(queue, cursor),
    }


def _place(queue: Queue, cursor: CursorMachine) -> Values:
    facts = cursor.facts
    return {
        "queue": queue.name,
        "fence": facts.fence,
        "epoch": facts.epoch,
        "start": facts.start,
        "processed": facts.processed,
        "pinned": facts.pinned,
        "high": queue.counts.high,
    }


def _used(core: Core, asker: Requester | None, name: str, fence: int = 0) -> Queue:
    """The queue whose cursor a session uses; ``fence``: an owner that was replaced is told that, whoever has it now."""
    found = _existing(core, name)
    cursor = found.roster.cursor
    if cursor is not None and fence in (0, cursor.facts.fence):
        permit_cursor(asker, found, cursor)
    return found


def _existing(core: Core, name: str) -> Queue:
    queue = core.router.find_queue(parse_target(check_open(name), "queue"))
    if queue is None:
        raise NotFoundError(f"there is no queue {name!r}")
    return queue
