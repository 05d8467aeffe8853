"""Promises about bridges (B), and about nodes that are gone (M)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshq.testing.history._delivery import Violation, numbers_of
from meshq.testing.history._history import History, queue_of


def b1_no_dead_letter_by_refusal(history: History) -> Iterator[Violation]:
    """B1: a message that a bridge's target refuses counts as not delivered, and never becomes a dead letter.

    The place of the dead letters is empty in the end, and nothing is delivered from there.

    Nobody but the bridge consumes from its queue.
    """
    for place, why in history.expected.spared.items():
        found = [delivery.uid for delivery in history.deliveries if delivery.place == place]
        found += [uid for uid, _ in history.final.remaining.get(place, ())]
        for uid in dict.fromkeys(found):
            yield Violation("B1", f"message {uid} is in {place}, where nothing goes because {why}", uid)


def b2_carried_all_the_way(history: History) -> Iterator[Violation]:
    """B2: a message out of bridges has crossed as many as it had to, each once, and has its sender's id."""
    sends = history.sends_by_uid()
    for number, (hops, expected, duplicate_id) in history.hops.items():
        uid = history.deliveries[number].uid
        if hops != expected:
            yield Violation("B2", f"message {uid} has made {hops} hops, and should have made {expected}", uid)
        sent = dict.fromkeys(send.duplicate_id for send in sends.get(uid or -1, ()))
        if sent and duplicate_id not in sent:
            what = f"message {uid} was sent with the duplicate id {' or '.join(map(str, sent))} and came with"
            yield Violation("B2", f"{what} {duplicate_id}", uid)


def b3_no_more_than_was_under_way(history: History) -> Iterator[Violation]:
    """B3: where a bridge's target remembers a few ids only, no more messages come once more than it remembers, for each
    start of the bridge's own broker.

    A bridge has no more under way than that.  What it had under way when its broker died may be held up by the network,
    and come when the next life has sent others, and the target has forgotten the ids.
    """
    for queue, (node, remembered) in history.expected.forgetful.items():
        sent = [send.invoked_s for send in history.sends.values() if queue in send.queues]
        starts = sum(at_s > min(sent, default=math.inf) for at_s in history.starts.get(node, ()))
        # What the target has stored and could not confirm waits at the source, too, if the target is gone for good.
        numbers = numbers_of(history).items()
        twice = [uid for (place, uid), found in numbers if queue_of(place) == queue and len(found) > 1]
        if len(twice) > remembered * starts:
            what = f"{len(twice)} messages came once more over a bridge from {node}, which was started {starts} times"
            yield Violation("B3", f"{what}, to an address that remembers {remembered}", twice[0])


def m1_nothing_for_who_is_gone(history: History) -> Iterator[Violation]:
    """M1: a node that has left, is away or is down is dealt no message that another node can take; in strict mode a
    node that is only away keeps its share.

    All nodes have all queues that are sent to, and no node comes or goes meanwhile.
    """
    for node, mode, state, number in history.deals:
        share = mode == "strict" and state == "away"
        if state in ("", "connecting", "linked"):
            yield Violation("M1", f"{node} does not know that a node is gone")
        elif number and not share:
            yield Violation("M1", f"{node} has dealt {number} messages to a node that is {state}")
        elif share and not number:
            yield Violation("M1", f"{node} has dealt nothing to a node that is away, which keeps its share")
