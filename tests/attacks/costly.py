"""Filters that cost as much as they can, and somebody who only sends meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Final

import trio

from meshq import Client
from meshq.selector import parse_filter
from tests.attacks.kit import Report

#: As many as a filter's text has room for.  What steps back when it looks takes minutes for it.
STEPPING_BACK: Final = " OR ".join(["p LIKE '%_x%'"] * 110)
#: What fits nowhere, but nearly everywhere: what looks at each character takes long for it.  In the end it is true of
#: the messages that are marked: these show that it was asked.
NEARLY: Final = " OR ".join(["p LIKE '%a_b_c%'"] * 88) + " OR marked"
FILTERS: Final = (STEPPING_BACK, NEARLY)
TEXT: Final = "a" * 20_000 + "acab" * 9_999
#: Seconds for which somebody sends.
SENDING_S: Final = 8.0


def cost_s() -> float:
    """Seconds that the costlier filter takes here for one message."""
    message: Any = SimpleNamespace(properties={"p": TEXT, "marked": False})
    condition = parse_filter(NEARLY)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        assert not condition.matches(message)
        best = min(best, time.perf_counter() - began)
    return best


async def send_meanwhile(client: Client) -> list[float]:
    """Send one message after the other to an address of one's own; returns how long each took."""
    waits: list[float] = []
    end = trio.current_time() + SENDING_S
    while trio.current_time() < end:
        began = trio.current_time()
        await client.send("orders", b"an order")
        waits.append(trio.current_time() - began)
    return waits


def judge(report: Report, waits: list[float], *, messages: int, asked: int, longest_s: float) -> None:
    """What the attack costs, and whom.

    ``messages``: those that the attack brings in one piece.  ``asked``: of how many the broker was seen to have put
    them to the costlier filter meanwhile.
    """
    report.at_least("seconds that the filter takes for what is brought at once", messages * cost_s(), 2 * longest_s)
    report.at_least("messages that were put to it meanwhile", asked, 1)
    report.at_least("sends that were confirmed meanwhile", len(waits), 10)
    report.at_most("seconds that the longest of them took", max(waits), longest_s)
