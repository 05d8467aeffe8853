"""All of a node that a crash must leave as it was, and what is not as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq.broker import Core
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import GONE, QueueRun
from meshq.wire import RunView

State = dict[str, dict[Any, Any]]


def state_of(core: Core, *, held: bool, bodies: bool) -> State:
    """What a node with nothing on its way to the disk has; ``held``: consumers hold messages.

    ``bodies``: they are to be compared, too; a core that reads excerpts has none.
    """
    return {
        "queues": {
            queue.name: (queue.address, queue.number, queue.paused, _messages(queue, bodies=bodies))
            for queue in core.router.queues.values()
            # What a consumer holds there may have been replaced meanwhile, and that is not written.
            if queue.durable and not (held and queue.last_values is not None)
        },
        "ids": {
            address.name: found
            for address in core.router.addresses.values()
            if (found := [one for chunk in address.duplicates._chunks for one in chunk.ids[chunk.start :]])
        },
        "producers": {
            (user, producer): mark
            for user, marks in core.ingress.producers._users.items()
            for producer, mark in marks._highest.items()
            if mark
        },
        "links": dict(core.ingress.links),
        "prepared": {
            one.xid: (one.user, one.transaction.sent, one.transaction.acked) for one in core.transactions.two_phase
        },
    }


def _messages(queue: Queue, *, bodies: bool) -> list[tuple[Any, ...]]:
    found = [
        (
            view.first + row if view.first else 0,
            RunView(view.run.content).body(row) if bodies else b"",
            view.returns(row),
            view.remote,
            _asked(queue, view, row),
        )
        for view in (*queue.runs(), *queue.scheduled)
        if view.run.durable
        for row, state in enumerate(view.states)
        if state != GONE
    ]
    return sorted(found, key=lambda message: message[:2])


def _asked(queue: Queue, view: QueueRun, row: int) -> tuple[Any, ...]:
    """What a message asks for; of what waits for another node only its expiry is looked at."""
    options = view.run.options
    if options is None:
        return (0,) if queue.forwards else ()
    expires = options.expires[row] if options.expires else 0
    if queue.forwards:
        return (expires,)
    group = options.groups[row] if options.groups else None
    return options.priority, options.due, expires, group, options.arrival, options.origin


def _same(before: Any, after: Any) -> bool:
    return bool(before == after)


def _last_known(before: Any, after: Any) -> bool:
    """The last duplicate ids are known; more may be: a window that has shrunk since."""
    return before is None or (after or [])[-len(before) :] == before


def _no_higher(before: Any, after: Any) -> bool:
    """A mark claims nothing that is not stored.  It may be behind: what no queue took has left no record, and may come
    again."""
    return after is None or after <= (before or 0)


#: How each part of two states has to be, if not equal.
RULES: dict[str, Callable[[Any, Any], bool]] = {"ids": _last_known, "producers": _no_higher, "links": _no_higher}


def differences(before: State, after: State) -> list[str]:
    """What a crash has changed and must not have; in words."""
    found = []
    for part in before:
        same = RULES.get(part, _same)
        for key in {**before[part], **after[part]}:
            one, other = before[part].get(key), after[part].get(key)
            if not same(one, other):
                found.append(f"{part} of {key!r}: {_told(one, other)}")
    return found


def _told(before: Any, after: Any) -> str:
    if isinstance(before, tuple) and isinstance(after, tuple) and before and isinstance(before[-1], list):
        lost = [message for message in before[-1] if message not in after[-1]]
        new = [message for message in after[-1] if message not in before[-1]]
        return f"{before[:-1]} became {after[:-1]}; only before: {lost[:4]}; only after: {new[:4]}"
    return f"{before} became {after}"
