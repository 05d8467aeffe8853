"""The promise of replication: nothing is confirmed or delivered that the partner does not have."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshq.testing.history._delivery import Violation
from meshq.testing.history._history import History


def r1_nothing_before_the_partner(history: History) -> Iterator[Violation]:
    """R1: a durable message is confirmed, and handed to a consumer, only when the partner has the message, too.

    Judged for messages that the partner was given, which are those that are records of the journal: a large body is a
    file, and a message that no durable queue takes is stored nowhere.
    """
    had_s = history.partner_s
    if had_s is None:
        return
    durable = dict.fromkeys(send.uid for send in history.sends.values() if send.durable)
    fleeting = dict.fromkeys(send.uid for send in history.sends.values() if not send.durable)
    judged = {uid: at_s for uid, at_s in had_s.items() if uid in durable and uid not in fleeting}
    for send in history.sends.values():
        if send.outcome == "done" and send.ended_s is not None and judged.get(send.uid, -math.inf) > send.ended_s:
            yield Violation(
                "R1", f"message {send.uid} was confirmed at {send.ended_s:.4f} s, {_had(judged[send.uid])}", send.uid
            )
    for delivery in history.deliveries:
        uid = delivery.uid
        if uid is not None and judged.get(uid, -math.inf) > delivery.at_s:
            yield Violation("R1", f"message {uid} was delivered at {delivery.at_s:.4f} s, {_had(judged[uid])}", uid)


def _had(at_s: float) -> str:
    return "and the partner never had it" if at_s == math.inf else f"and the partner had it at {at_s:.4f} s"
