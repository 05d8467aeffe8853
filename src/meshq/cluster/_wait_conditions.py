"""The conditions that a program may wait for at a cluster connection."""

from __future__ import annotations

import math
from typing import Any

from meshq.address import parse_place
from meshq.errors import SettingsError


def check_wanted(nodes: object, queue: Any, consumers: object, timeout: object) -> None:
    """Check the conditions of ``wait_for``.

    Raises:
        SettingsError: a part is not allowed, or consumers of no queue are to be counted.
    """
    if type(nodes) is not int or nodes < 1:
        raise SettingsError("nodes", nodes, "a whole number from 1; the node itself is one")
    if queue is not None:
        # A subscription's queue bears its address, too.
        parse_place(queue, "queue")
    if type(consumers) is not int or consumers < 0:
        raise SettingsError("consumers", consumers, "a whole number from 0")
    if consumers and queue is None:
        raise SettingsError("queue", queue, "the name of the queue whose consumers are counted")
    if type(timeout) not in (int, float) or math.isnan(timeout) or timeout < 0:  # type: ignore[arg-type,operator]
        raise SettingsError("timeout", timeout, "seconds from 0, or math.inf")
