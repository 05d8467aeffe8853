"""The queue of a subscription: its name in sentences, and whether it is the one that is asked for."""

from __future__ import annotations

from typing import Any

from meshq.address import SEPARATOR
from meshq.broker.queue._queue_machine import Queue
from meshq.errors import UsageError


def check_same(queue: Queue, *, kind: str, durable: bool, filter: str) -> None:
    """See that a subscription that exists is the one that is asked for.

    Raises:
        UsageError: it differs; says in what.
    """
    found = {
        "durable": queue.durable,
        "shared": queue.spec.subscription == "shared",
        "filter": queue.spec.filter_text,
    }
    asked: dict[str, Any] = {"durable": durable, "shared": kind == "shared", "filter": filter}
    for name, value in found.items():
        if value != asked[name]:
            shown, wanted = value or (None if name == "filter" else False), asked[name] or None
            wanted = wanted if name == "filter" else bool(wanted)
            raise UsageError(f"{subscription_name(queue)} exists with {name}={shown!r}, not {wanted!r}")


def subscription_name(queue: Queue) -> str:
    """Name the subscription of a queue in a sentence."""
    address, _, name = queue.name.partition(SEPARATOR)
    return f"the subscription {name!r} on {address!r}"
