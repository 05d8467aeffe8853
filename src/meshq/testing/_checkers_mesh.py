"""Promises about bridges: what they carry comes whole, and a target that says no costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from meshq.testing._checkers import Violation
from meshq.testing._history import History


def b1_no_dead_letter_by_refusal(history: History) -> Iterator[Violation]:
    """B1: what a bridge's target refuses does not count as a delivery, so nothing of it becomes a dead letter, however
    often it is refused: the place of the dead letters is empty in the end, and nothing is delivered from there.

    Nobody but the bridge consumes from its queue.
    """
    for place, why in history.spared.items():
        found = [delivery.uid for delivery in history.deliveries if delivery.place == place]
        found += [uid for uid, _ in history.remaining.get(place, ())]
        for uid in dict.fromkeys(found):
            yield Violation("B1", f"message {uid} is in {place}, where nothing goes because {why}", uid)


def b2_carried_all_the_way(history: History) -> Iterator[Violation]:
    """B2: what comes out of bridges has come over as many as it had to, each once, and has its sender's id."""
    sends = history.sends_by_uid()
    for number, (hops, expected, duplicate_id) in history.hops.items():
        uid = history.deliveries[number].uid
        if hops != expected:
            yield Violation("B2", f"message {uid} has made {hops} hops, and should have made {expected}", uid)
        sent = dict.fromkeys(send.duplicate_id for send in sends.get(uid or -1, ()))
        if sent and duplicate_id not in sent:
            what = f"message {uid} was sent with the duplicate id {' or '.join(map(str, sent))} and came with"
            yield Violation("B2", f"{what} {duplicate_id}", uid)
