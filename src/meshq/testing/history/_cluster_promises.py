"""Promises about nodes, copies and counters, and about messages with several consumers or dead letters.

The first group is judged by facts that a test has seen at its nodes (``NodeFacts``), the second by what clients have
done.  A settlement counts here only if it was confirmed, which a broker does for one holder of a message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from meshq.testing.history._delivery import Violation
from meshq.testing.history._history import Delivery, History, Settlement


def q9_one_node_acts(history: History) -> Iterator[Violation]:
    """Q9: at most one node acts for a node id at a time: once a later term has acted, no earlier one does."""
    seen: dict[str, list[int]] = {}
    for act in history.final.nodes.acts:
        terms = seen.setdefault(act.store, [])
        if act.term in terms[:-1]:
            what = (
                f"{act.node} acts for {act.store} at {act.at_s:.4f} s, after {len(terms)} terms, one later than its own"
            )
            yield Violation("Q9", what)
        elif act.term not in terms:
            terms.append(act.term)


def q10_copies_are_equal(history: History) -> Iterator[Violation]:
    """Q10: a record at one position has the same bytes on every node that is in sync."""
    for store, nodes in history.final.nodes.copies.items():
        for one, other in itertools.combinations(nodes, 2):
            first, second = nodes[one], nodes[other]
            wrong = [at for at, digest in first.items() if at in second and second[at] != digest]
            if wrong:
                what = f"{store}: record {wrong[0]} on {one} differs from that on {other}, as do {len(wrong) - 1} more"
                yield Violation("Q10", what)


def _confirmed(history: History) -> dict[int, list[tuple[Delivery, Settlement]]]:
    """The deliveries of each message that was sent once, with the acknowledgement of each that was confirmed."""
    sends = history.sends_by_uid()
    once = {uid for uid, found in sends.items() if len(found) == 1 and len(found[0].queues) == 1}
    found: dict[int, list[tuple[Delivery, Settlement]]] = {}
    for delivery in history.deliveries:
        if delivery.uid in once:
            done = [one for one in delivery.settlements if one.kind == "ack" and one.outcome == "done"]
            found.setdefault(delivery.uid or 0, []).extend((delivery, one) for one in done[:1])
    return found


def q12_one_holder(history: History) -> Iterator[Violation]:
    """Q12: a message is with one consumer of the cluster at a time, unless this consumer is fenced or gone.

    Shown by two consumers that had it at the same time, and were both told that their acknowledgement counts.
    """
    for uid, pairs in _confirmed(history).items():
        for (one, first), (other, second) in itertools.combinations(pairs, 2):
            if one.queue != other.queue or one.consumer == other.consumer:
                continue
            if one.at_s <= second.invoked_s and other.at_s <= first.invoked_s:
                what = f"message {uid} of {one.queue} was with {one.consumer} and {other.consumer} at the same time"
                yield Violation("Q12", f"{what}, and both acknowledgements were confirmed", uid)


def q13_one_fate(history: History) -> Iterator[Violation]:
    """Q13: a message is dead-lettered, or expires, once, and is not consumed besides.

    Shown by acknowledgements that were confirmed: two of one message from an address of dead letters, or one there and
    one where the message was sent.
    """
    graves = history.final.nodes.dead_letters
    if not graves:
        return
    sent = {uid: sends[0].queues[0] for uid, sends in history.sends_by_uid().items()}
    for uid, pairs in _confirmed(history).items():
        dead = [one for one, _ in pairs if one.queue in graves and sent[uid] not in graves]
        alive = [one for one, _ in pairs if one.queue == sent[uid]]
        if len({(one.place, one.sequence) for one in dead}) > 1:
            yield Violation("Q13", f"message {uid} was dead-lettered {len(dead)} times, to {dead[0].queue}", uid)
        if dead and alive:
            what = f"message {uid} was consumed from {alive[0].queue}, and is dead-lettered to {dead[0].queue}"
            yield Violation("Q13", what, uid)


def q16_nothing_is_left(history: History) -> Iterator[Violation]:
    """Q16: memory stays under its limit, and a node that was stopped leaves no task and no open file."""
    for what, used, allowed in history.final.nodes.bounds:
        if used > allowed:
            yield Violation("Q16", f"{what}: {used}, and {allowed} are allowed")
    for line in history.final.nodes.left:
        yield Violation("Q16", f"after its stop {line}")


def q17_counters_are_right(history: History) -> Iterator[Violation]:
    """Q17: the counters that a broker tells agree with the sends and acknowledgements of its clients."""
    for one in history.final.nodes.exported:
        if not one.least <= one.told <= one.most:
            counted = str(one.least) if one.least == one.most else f"{one.least} to {one.most}"
            yield Violation("Q17", f"{one.place} tells of {one.told} messages {one.name}, and clients of {counted}")
