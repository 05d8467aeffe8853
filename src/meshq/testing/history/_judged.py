"""The history of a test for its user: events as text, and the verdict of the checkers."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from meshq.settings import AddressSettings, settings_for
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import CHECKERS, NODE_CHECKERS, HistoryError, found_by
from meshq.testing.history._final_counts import FinalCounts
from meshq.testing.history._history import History, Send, place_of
from meshq.testing.history._node_facts import ExportedCounter
from meshq.testing.history._recorder import Recorder, queue_named

#: Characters of a body that are shown.
SHOWN_BYTES_MAX: Final = 60
#: Promises that are judged at any moment, whatever happens to nodes.
ALWAYS: Final = ("Q2", "Q6", "Q7")
#: Promises about nodes, which are no queue's.
OF_NODES: Final = ("Q9", "Q10", "Q16")


@attrs.frozen
class PlaceCounts:
    """The messages of a queue on one node: its counters by name, and how many are there now."""

    counters: Mapping[str, int]
    here: int
    #: Messages that have left in another way than by an acknowledgement.
    removed: int
    #: The counters as the broker tells them to clients.
    exported: Mapping[str, int] = attrs.field(factory=dict)


class JudgedCluster(Protocol):
    """A cluster as checkers look at it."""

    def judged_queues(self) -> Mapping[str, AddressSettings]:
        """Return the queues that all nodes have from the beginning, with their settings."""

    def judged_counts(self) -> tuple[dict[str, dict[str, PlaceCounts]], int] | None:
        """Return the counts by queue and store, and the messages under way; None: some store is served by no node."""

    def store_of(self, node: str) -> str:
        """Return the store that a node shares."""

    def node_at(self, host: str) -> str | None:
        """Return the name of the node on a host; None: it is no node of this cluster."""

    def look_at_nodes(self, final: FinalCounts) -> None:
        """Note the facts about the nodes: copies, recoveries of their disks, memory."""


class ClusterHistory:
    """The sends, deliveries and settlements of all clients of a simulated test."""

    def __init__(self, recorder: Recorder, cluster: JudgedCluster, events: Sequence[Any]) -> None:
        self._recorder = recorder
        self._cluster = cluster
        self._events = events

    def __repr__(self) -> str:
        history = self._recorder.history
        return f"<ClusterHistory sends={len(history.sends)} deliveries={len(history.deliveries)}>"

    # -- all that happened

    def to_jsonl(self) -> str:
        """Return all that happened as text, a JSON object a line, in the order of time.

        ``kind`` is ``send``, ``delivery``, ``ack``, ``nack``, ``reject`` or ``event``; ``at`` the simulated seconds.
        An ``outcome`` of None is not known, which is never taken for a failure.
        """
        rows = sorted(self._rows(), key=lambda row: row["at"])
        return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)

    def _rows(self) -> Iterator[dict[str, Any]]:
        history = self._recorder.history
        for event in self._events:
            yield {"at": event.at_s, "kind": "event", "node": event.node, "text": event.text}
        for send in history.sends.values():
            facts: dict[str, Any] = {"address": send.queues[0], "producer": send.producer, "durable": send.durable}
            facts |= {"duplicate_id": send.duplicate_id, "transaction": send.transaction or None}
            ends = {"ended": send.ended_s, "outcome": send.outcome}
            yield {"at": send.invoked_s, "kind": "send", **self._message(send.uid), **facts, **ends}
        for one in history.deliveries:
            facts = {"number": one.number, "queue": one.queue, "node": one.node, "consumer": one.consumer}
            facts |= {"sequence": one.sequence, "delivery_count": one.delivery_count}
            yield {"at": one.at_s, "kind": "delivery", **self._message(one.uid), **facts}
        for settlement in history.settlements.values():
            numbers = [one.number for one in settlement.deliveries]
            facts = {"deliveries": numbers, "outcome": settlement.outcome}
            yield {"at": settlement.invoked_s, "kind": settlement.kind, **facts}

    def _message(self, uid: int | None) -> dict[str, Any]:
        body = self._recorder.bodies[uid - 1] if uid else b""
        return {"message": uid, "body": body[:SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace")}

    # -- the verdict

    def check(self) -> list[str]:
        """Raise if a promise is broken that can be judged now; return the queues that were judged, sorted.

        Judged are the queues that the cluster was made with: nothing that was confirmed is lost (Q1), nothing comes
        from nowhere (Q2), what was refused is never delivered and a transaction is whole (Q3), with a duplicate id a
        message stands once (Q4), without one not more often than it was sent (Q5), consumed is final (Q6), in order
        (Q7), counters balance (Q8) and agree with what clients did (Q17), and a message is with one consumer at a time
        (Q12).  Q4 is not judged of a queue to which more ids were sent than its address remembers.  Of the nodes: one
        acts for a node id (Q9), copies are equal (Q10), recovering a disk twice, or after a crash, comes to the same
        (Q15), nothing is left of a node that was stopped (Q16).  A message that was rejected or has expired is dead
        once (Q13).  Q1, Q3, Q8 and Q17 are judged while every node, or its backup, serves: call
        ``await cluster.healed()`` before.  Q4 and Q5 are judged of clients that stayed at their node, and Q7 in a
        cluster with one node.  A queue is left out whose address drops or replaces messages, from which some expired,
        were purged, moved or dead-lettered, to which some were moved, or that was deleted; and an address of dead
        letters.  To a judged queue nothing may come but what clients of the test send.

        Raises:
            HistoryError: ``checkers`` names the promises, and the text has the story of the first message concerned.
        """
        counts = self._cluster.judged_counts()
        judged: list[str] = []
        violations: list[Violation] = []
        shown: History | None = None
        graves = self._dead_letter_addresses()
        violations += self._of_nodes(graves)
        for queue, settings in self._cluster.judged_queues().items():
            if queue in graves:
                continue
            places = {} if counts is None else counts[0].get(queue, {})
            if self._is_lossy(queue, settings, places):
                continue
            judged.append(queue)
            history = self._of_queue(queue)
            found = found_by([CHECKERS[name] for name in ALWAYS], history)
            found += found_by([CHECKERS["Q5"]], self._of_one_node(history))
            if ids_of(history) <= settings.duplicate_id_cache_size:
                found += found_by([CHECKERS["Q4"]], self._of_one_node(history))
            found += found_by([NODE_CHECKERS["Q12"]], history)
            if counts is not None:
                found += self._judged_at_the_end(queue, history, places, counts[1])
            if found and shown is None:
                shown = history
            violations += found
        if violations:
            shown = self._recorder.history if shown is None else shown
            uid = next((violation.uid for violation in violations if violation.uid is not None), None)
            told = "" if uid is None else f"message {uid} is {self._message(uid)['body']!r}:\n{shown.story(uid)}"
            raise HistoryError(violations, told)
        return sorted(judged)

    def _dead_letter_addresses(self) -> set[str]:
        every = self._cluster.judged_queues().values()
        found = {address for one in every for address in (one.dead_letter_address, one.expiry_address)}
        return {address for address in found if address is not None}

    def _of_nodes(self, graves: set[str]) -> list[Violation]:
        """Judge the facts about the nodes, and the dead letters."""
        facts = History(lambda: 0.0)
        for act in self._recorder.history.final.nodes.acts:
            node = self._cluster.node_at(act.node)
            if node is not None:
                facts.final.nodes.acts.append(attrs.evolve(act, node=node, store=self._cluster.store_of(node)))
        facts.final.nodes.left = self._recorder.history.final.nodes.left
        self._cluster.look_at_nodes(facts.final)
        found = found_by([*(NODE_CHECKERS[name] for name in OF_NODES), CHECKERS["Q15"]], facts)
        whole = self._recorder.history
        moved = self._recorder.moved_from
        whole.final.nodes.dead_letters = dict.fromkeys(sorted(graves.difference(moved)))
        return found + found_by([NODE_CHECKERS["Q13"]], whole)

    def _judged_at_the_end(
        self, queue: str, history: History, places: Mapping[str, PlaceCounts], under_way: int
    ) -> list[Violation]:
        """Judge the messages that are left: all of the queue are in these places, or under way."""
        left = sum(place.here for place in places.values()) + under_way
        for store, place in places.items():
            history.final.counted(place_of(queue, store), place.counters)
            if not left:
                history.final.recounted(place_of(queue, store), [])
        history.final.nodes.exported = list(self._exported(queue, history, places))
        found = found_by([CHECKERS["Q8"], NODE_CHECKERS["Q17"]], history)
        if not left:
            return found + found_by([CHECKERS["Q1"], CHECKERS["Q3"]], history)
        history.expected.drains(queue)
        lost = found_by([CHECKERS["Q1"]], history)
        if len(lost) > left:
            what = f"{len(lost)} confirmed messages of {queue} are not settled, and {left} are there"
            found.append(Violation("Q1", what, lost[0].uid))
        return found

    def _exported(self, queue: str, history: History, places: Mapping[str, PlaceCounts]) -> Iterator[ExportedCounter]:
        """Return the counters of a queue that is at one place, whose node has not been started again meanwhile."""
        if len(places) != 1 or len(self._recorder.history.starts) > 1 or self._recorder.history.restarts > 1:
            return
        (place,) = places.values()
        sends, settled = history.sends.values(), history.settlements.values()
        # What is not due is not added yet.
        sure = {send.uid for send in sends if send.outcome == "done" and not (send.transaction or send.delay_s)}
        acked = {one.number for op in settled if op.kind == "ack" and op.outcome == "done" for one in op.deliveries}
        asked = sum(len(op.deliveries) for op in settled if op.kind == "ack" and op.possible)
        bounds = {
            "added": (len(sure), sum(send.possible for send in sends)),
            "acknowledged": (len(acked), asked),
        }
        for name, (least, most) in bounds.items():
            yield ExportedCounter(queue, name, place.exported[name], least, most)

    def _of_one_node(self, history: History) -> History:
        """Return a history without the sends of clients that went from node to node meanwhile.

        Each node knows the duplicate ids that came to it, and none knows those of the others.
        """
        if len({send.node for send in history.sends.values()} | {one.node for one in history.deliveries}) < 2:
            return history
        part = copy.copy(history)
        strayed = {send.uid for op, send in history.sends.items() if op not in self._recorder.stayed}
        part.sends = {op: send for op, send in history.sends.items() if send.uid not in strayed}
        return part

    def _is_lossy(self, queue: str, settings: AddressSettings, places: Mapping[str, PlaceCounts]) -> bool:
        bounded = settings.full_policy == "drop" and min(settings.max_size_bytes, settings.max_size_messages) < math.inf
        removed = any(place.removed for place in places.values())
        return queue in self._recorder.lossy or removed or bounded or settings.default_last_value_key is not None

    def _of_queue(self, queue: str) -> History:
        """Return the part of one queue, with the expectations of the checkers."""
        whole, stores = self._recorder.history, self._cluster.store_of
        part = History(lambda: 0.0)
        sends = {op: send for op, send in whole.sends.items() if queue_named(send.queues[0]) == queue}
        same = one_message(sends.values())
        part.sends = {
            op: attrs.evolve(send, node=stores(send.node), queues=(queue,), uid=same.get(send.uid, send.uid))
            for op, send in sends.items()
        }
        renamed = {
            one.number: attrs.evolve(
                one, node=stores(one.node), queue=queue, uid=None if one.uid is None else same.get(one.uid, one.uid)
            )
            for one in whole.deliveries
            if queue_named(one.queue) == queue
        }
        part.deliveries = list(renamed.values())
        for op, settlement in whole.settlements.items():
            mine = tuple(renamed[one.number] for one in settlement.deliveries if one.number in renamed)
            if mine:
                part.settlements[op] = attrs.evolve(settlement, deliveries=mine)
        part.notes = [(event.at_s, f"{event.node}: {event.text}") for event in self._events]
        part.restarts = whole.restarts
        for node, at_s in whole.starts.items():
            part.starts.setdefault(stores(node), []).extend(at_s)
        several = len({stores(node) for node in whole.starts}) > 1
        if several or any(send.delay_s for send in part.sends.values()):
            part.expected.moves(queue)
            part.expected.redistributes(queue)
        for op, send in part.sends.items():
            if send.ttl_s < math.inf or sends[op].uid in self._recorder.streamed:
                part.gone(queue, send.uid, "it may have expired, or was streamed")
        return part


def ids_of(history: History) -> int:
    """How many duplicate ids were sent; one that messages have which are durable, and others, counts for each."""
    return len({(send.duplicate_id, send.durable) for send in history.sends.values() if send.duplicate_id is not None})


def one_message(sends: Iterable[Send]) -> dict[int, int]:
    """Return the number under which to judge a message, where it isn't its own.

    Bodies that were sent under one duplicate id are one message, of which the broker keeps the body that came first.
    A send that surely did nothing is no part of it.
    """
    found: dict[int, int] = {}

    def first(uid: int) -> int:
        while uid in found:
            uid = found[uid]
        return uid

    by_id: dict[str, int] = {}
    for send in sends:
        if send.duplicate_id is not None and send.possible:
            one, other = first(send.uid), first(by_id.setdefault(send.duplicate_id, send.uid))
            if one != other:
                found[max(one, other)] = min(one, other)
    return {uid: first(uid) for uid in found}


def settings_of(patterns: Mapping[str, AddressSettings], queues: Sequence[str]) -> dict[str, AddressSettings]:
    """Return the settings of each queue's address."""
    return {queue: settings_for(patterns, queue) for queue in queues}
