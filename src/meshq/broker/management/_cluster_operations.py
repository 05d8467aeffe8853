"""The management operations that look beyond one node: the nodes of its clusters, and their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meshq.abc import QUESTION_HOPS_MAX, ClusterMember, NodeQuestions
from meshq.address import parse_target
from meshq.broker.access._access import may_look
from meshq.broker.ingress._rerouting import node_of
from meshq.broker.management._pages import page_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import UNACKED, QueueRun
from meshq.broker.work._long_operations import AnswerWait, Steps, Values
from meshq.errors import MeshqError, NotActiveError, SettingsError, UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import decline, decode_map

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester

#: Runs that are asked in one step: a fraction of a millisecond.
_STEP_RUNS: Final = 1_000
#: What a row says of an address at which the asker may not look.
_HIDDEN: Final = "what becomes of it there the user may not know"
#: Bytes of the arguments of a question.
_ARGUMENTS_BYTES_MAX: Final = 3_500


def cluster_nodes(core: Core, after: int = 0) -> Values:
    """A page of the nodes of the clusters, this node first, as this node knows them."""
    here = core.settings
    rows: list[Values] = [_member_row(here.node_id, here.name, "here", 0, 0.0)]
    for member, _ in _members(core).values():
        rows.append(_member_row(member.node_id, member.name, member.state, member.distance, member.age))
    return page_of("nodes", rows, after)


def stuck(core: Core, after: int = 0) -> Values:
    """A page of the messages on this node that do not move although a consumer wants them, with the cause of each."""
    rows = [dict(row) for questions in core.settings.clusters.values() for row in questions.stuck()]
    return page_of("stuck", rows, after)


def _member_row(node_id: bytes, name: str, state: str, distance: int, age: float) -> Values:
    # JSON and the wire have no infinite numbers in common: -1 says that the age is not known.
    shown = round(age, 3) if math.isfinite(age) else -1.0
    return {"node_id": node_id.hex(), "node_name": name, "state": state, "distance": distance, "age": shown}


def _members(core: Core) -> dict[bytes, tuple[ClusterMember, NodeQuestions]]:
    """The other nodes by id; of a node in several clusters the one in which it is nearest."""
    found: dict[bytes, tuple[ClusterMember, NodeQuestions]] = {}
    for questions in core.settings.clusters.values():
        for member in questions.members():
            known = found.get(member.node_id)
            if known is None or _nearness(member) < _nearness(known[0]):
                found[member.node_id] = member, questions
    return found


def _nearness(member: ClusterMember) -> tuple[bool, float]:
    return member.state != "linked", member.distance or math.inf


def node_queue(core: Core, name: str, after: int = 0) -> Steps:
    """A page of the parts of a queue on this node: its consumers, the messages for queues of its name on other nodes,
    and the descriptions of these queues."""
    target = parse_target(name, "name")
    queue = core.router.find_queue(target)
    full = queue.name if queue is not None else name
    rows: list[Values] = []
    if queue is not None:
        for consumer in queue.roster.consumers:
            text = consumer.filter.text if consumer.filter is not None else ""
            rows.append(_row("consumer", filter=text, messages=consumer.unacked, stalled=consumer.credit() <= 0))
    for forward in [one for one in core.router.queues.values() if one.kind is QueueKind.STORE_AND_FORWARD]:
        waiting = sent = 0
        for counted in _in_flight(core, forward, full):
            if counted is None:
                yield None
            else:
                waiting, sent = counted
        node = core.definitions.peers.peers.get(forward.number)
        if waiting:
            gone = node.gone if node is not None else ""
            rows.append(_row("link", node_id=node_of(forward), filter=gone, messages=waiting, sent=sent))
    rows += _bindings(core, full)
    yield {**_counts(core, queue), **page_of("parts", rows, after)}


def _row(
    kind: str, *, node_id: str = "", filter: str = "", messages: int = 0, sent: int = 0, stalled: bool = False
) -> Values:
    about: Values = {"kind": kind, "node_id": node_id, "filter": filter, "messages": messages}
    return about | {"sent": sent, "stalled": stalled}


def _counts(core: Core, queue: Queue | None) -> Values:
    if queue is None:
        return {"exists": False}
    counts = queue.counts
    return {
        "exists": True,
        "name": queue.name,
        "address": queue.address,
        "routing": core.router.addresses[queue.address].routing,
        "number": queue.number,
        "own_filter": queue.spec.filter_text,
        "paused": queue.paused,
        "ready": counts.ready,
        "delivering": counts.unacked,
        "delayed": counts.delayed,
        "scheduled": queue.scheduled.messages,
        "consumers": len(queue.roster.consumers),
    }


def numbers_there(core: Core, forward: Queue, name: str) -> set[int]:
    """The numbers of the queues of a name at the other end of a store-and-forward queue, linked now or before."""
    known = core.definitions.peers.peers.get(forward.number)
    kept = known.queues.items() if known is not None else ()
    found = {number for number, one in kept if one.kept["name"] == name}
    link = forward.number.to_bytes(8, "big")
    return found | {binding.number for binding in core.router.remote(link) if binding.name == name}


def is_for(view: QueueRun, name: str, numbers: set[int]) -> bool:
    """Whether a run of a store-and-forward queue is for a queue of a name, or for one of these numbers."""
    there = view.run.options.there if view.run.options is not None else None
    return there.name == name if there is not None else not numbers.isdisjoint(view.remote)


def _in_flight(core: Core, forward: Queue, name: str) -> Iterator[tuple[int, int] | None]:
    """Count the messages that wait for a queue of another node, and those on their way; None after each step."""
    numbers = numbers_there(core, forward, name)
    waiting = sent = asked = 0
    for priority_list in forward.lists.all:
        following = priority_list.head
        while following is not None:
            view, following = following, following.next
            if view.live and is_for(view, name, numbers):
                waiting += view.live
                sent += view.states.count(UNACKED)
            asked += 1
            if asked % _STEP_RUNS == 0:
                yield None
    yield waiting, sent


def _bindings(core: Core, name: str) -> list[Values]:
    """The descriptions of other nodes of their queues of a name: a row for each queue, and one for each filter."""
    rows: list[Values] = []
    for address in core.router.remote_addresses:
        for binding in core.router.bindings(address):
            if binding.name != name:
                continue
            node = binding.path[0] if binding.path else node_of(binding.forward)
            rows.append(_row("binding", node_id=node, filter=binding.gone, messages=binding.consumers))
            rows += [_row("filter", node_id=node, filter=one.text) for one in binding.filters]
    return rows


def ask_node(
    core: Core,
    asker: Requester | None,
    node_id: str,
    question: str,
    arguments: bytes | dict[str, Any] | None = None,
    hops: int = QUESTION_HOPS_MAX,
) -> Values | Steps:
    """Ask another node of a cluster; `reached` says whether it has answered, and `why` it has not."""
    values = arguments_of(arguments)
    try:
        wanted = bytes.fromhex(node_id)
    except ValueError:
        wanted = b""
    if len(wanted) != IDENTITY_BYTES:
        raise SettingsError("node_id", node_id[:64], f"the id of a node, {2 * IDENTITY_BYTES} hexadecimal digits")
    if type(hops) is not int or not 0 < hops <= QUESTION_HOPS_MAX:
        raise UsageError(f"hops is a whole number from 1 to {QUESTION_HOPS_MAX}")
    known = _members(core).get(wanted)
    if known is None:
        return {"reached": False, "why": "it is not known here"}
    return _asking(asker, known[1], (wanted, question, values), hops)


def pin_groups(core: Core, asker: Requester, cluster: str, **letter: Any) -> Steps:
    """Answer the letter of another node about the pins of message groups, once all that follows from it is durable."""
    if not asker.node[0] or asker.node != (letter["node_id"], letter["instance"]):
        # What one node says of itself another one must not say of it: two would consume a group.
        text = f"a letter of the node {letter['node_id'][:64]!r} comes over its own link, in its own life"
        raise decline("forbidden", f"{text}, not over a link of {asker.node[0] or 'no node'!r}")
    questions = core.settings.clusters.get(cluster)
    if questions is None:
        raise NotActiveError(f"the cluster {cluster[:64]!r} is not served")
    return _once_kept(core, dict(questions.pin_groups(letter)))


def _once_kept(core: Core, answer: Values) -> Steps:
    yield AnswerWait(core.definitions.pins.when_kept)
    yield answer


def arguments_of(arguments: bytes | dict[str, Any] | None) -> Values:
    """The arguments of a question.  Raises: RemoteProtocolError: they can't be read."""
    if isinstance(arguments, bytes):
        return decode_map(arguments, _ARGUMENTS_BYTES_MAX)
    return dict(arguments or {})


def _asking(
    asker: Requester | None, questions: NodeQuestions, question: tuple[bytes, str, Mapping[str, Any]], hops: int
) -> Steps:
    answer: Values = {}

    def done(resume: Callable[[], None], values: Mapping[str, Any]) -> None:
        answer.update(_seen_by(asker, values))
        answer.setdefault("reached", True)
        resume()

    def failed(resume: Callable[[], None], error: MeshqError) -> None:
        older = error.refusal == "unknown_operation"
        answer.update(reached=False, why="it is older, and does not answer that" if older else str(error)[:300])
        resume()

    def begin(resume: Callable[[], None]) -> None:
        questions.ask(*question, partial(done, resume), partial(failed, resume), hops)

    yield AnswerWait(begin)
    yield answer


def _seen_by(asker: Requester | None, values: Mapping[str, Any]) -> Values:
    """An answer in which rows about addresses are empty at which the asker may not look on this node."""
    found = dict(values)
    if asker is None or asker.rights is None or asker.owner[0] == "peer":
        return found
    for key, address in values.items():
        index = key.removeprefix("address")
        if key.startswith("address") and index.isdecimal() and not may_look(asker, str(address)):
            found.update({f"{name}{index}": "" for name in ("name", "via", "filter") if f"{name}{index}" in found})
            if f"why{index}" in found:
                found[f"why{index}"] = _HIDDEN
    return found
