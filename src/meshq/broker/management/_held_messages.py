"""The messages at the front of a queue, and the facts that may keep them there, for another part to judge.

Only the first runs of a queue are looked at, however many wait behind these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshq import abc
from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._redistribution import has_room
from meshq.broker.ingress._rerouting import node_of
from meshq.broker.queue._consumer_state import AnyConsumer
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import PARKED, READY, QueueRun
from meshq.ids import MessageId
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.core._core import Core

#: Runs of a priority list in which the first waiting message is looked for.
RUNS_MAX: Final = 8
#: Consumers that are asked whether they take it.
CONSUMERS_MAX: Final = 256


class Head(NamedTuple):
    """The first message that waits in a queue."""

    view: QueueRun
    row: int

    @property
    def message_id(self) -> MessageId:
        """The id of the message."""
        run = self.view.run
        return MessageId(run.producer, run.number + self.row * run.number_step)


def waiting_queues(core: Core) -> list[str]:
    """The names of the queues in which something waits, but for stages, which wait for a decision."""
    return [
        queue.name
        for queue in core.router.queues.values()
        if (queue.counts.ready or queue.counts.delayed or queue.counts.unacked) and queue.kind is not QueueKind.STAGE
    ]


def held_messages(core: Core, name: str) -> Iterator[abc.HeldMessages]:
    """The messages at the front of a queue, and the facts that may keep them."""
    queue = core.router.queues.get(name)
    if queue is None or queue.kind is QueueKind.STAGE:
        return
    if queue.forwards:
        yield from _forwarding(core, queue)
        return
    counts = queue.counts
    about: dict[str, Any] = {"queue": queue.name, "address": queue.address, "paused": queue.paused}
    about["consumers"] = len(queue.roster.consumers)
    head = head_of(queue) if counts.ready else None
    if head is not None:
        yield _ready(core, queue, head, about)
    if counts.delayed:
        # Which of them is next is not looked for: as long as the ways out of the delay stand still, none has moved.
        mark, remote = ("delayed", counts.redelivered, counts.delayed), _remote(core, queue, None)
        yield abc.HeldMessages(kind="delayed", mark=mark, messages=counts.delayed, remote=remote, **about)
    if counts.acked_in_transaction and (holder := core.transactions.two_phase.holder(queue)) is not None:
        yield abc.HeldMessages(
            kind="prepared",
            mark=holder.xid,
            messages=counts.acked_in_transaction,
            xid=holder.xid,
            remote=_remote(core, queue, None),
            **about,
        )


def head_of(queue: Queue) -> Head | None:
    """The first message of a queue that is ready; None: it is not among the first runs."""
    for priority_list in queue.lists.all:
        if not priority_list.ready and not priority_list.parked:
            continue
        following, looked = priority_list.head, 0
        while following is not None and looked < RUNS_MAX:
            if (head := _first_in(following)) is not None:
                return head
            following, looked = following.next, looked + 1
        return _first_in(priority_list.fresh) if priority_list.fresh is not None else None
    return None


def _first_in(view: QueueRun) -> Head | None:
    found = [row for row in (view.states.find(READY), view.states.find(PARKED)) if row >= 0]
    return Head(view, min(found)) if found else None


def _ready(core: Core, queue: Queue, head: Head, about: dict[str, Any]) -> abc.HeldMessages:
    served = [consumer for consumer in queue.roster.consumers if consumer.served][:CONSUMERS_MAX]
    owner = _owner(queue, head)
    if owner is not None:
        served = [owner]
    taking = [(consumer, _takes(head, consumer.filter)) for consumer in served]
    wants: bool | None = any(takes for _, takes in taking)
    if not wants and (any(takes is None for _, takes in taking) or len(queue.roster.consumers) > len(served)):
        wants = None
    credit = not queue.roster.hands_over and any(takes and consumer.credit() > 0 for consumer, takes in taking)
    delay = queue.settings.redistribution_delay
    group, group_node = _group_elsewhere(core, queue, head)
    return abc.HeldMessages(
        kind="ready",
        mark=("ready", head.view.first + head.row, head.message_id),
        messages=queue.counts.ready,
        first=str(head.message_id),
        wants=wants,
        credit=credit,
        remote=_remote(core, queue, head),
        redistribution_delay=delay,
        keeps=_keeps(core, queue),
        group=group,
        group_node=group_node,
        **about,
    )


def _group_elsewhere(core: Core, queue: Queue, head: Head) -> tuple[str | None, str]:
    """The group of a message that is not consumed on this node, and the node on which it is; None: there is none."""
    pins = core.router.pins
    group = head.view.groups[head.row] if head.view.groups is not None else None
    if group is None or not pins.takes(queue.address) or (queue.name, group) in pins.held:
        return None, ""
    return group, pins.holder_of((queue.name, group)) or ""


def _owner(queue: Queue, head: Head) -> AnyConsumer | None:
    """The consumer to which the group of a message belongs; None: it belongs to nobody."""
    groups = head.view.groups
    name = groups[head.row] if groups is not None else None
    group = queue.grouped.table.get(name) if queue.grouped is not None and name is not None else None
    return group.owner if group is not None else None


def _takes(head: Head, *filters: Filter | None) -> bool | None:
    if any(filter is None for filter in filters):
        return True
    if head.view.run.paged:
        # What is on the disk is not read for a question.
        return None
    return wants_of(head.view.run)(tuple(one for one in filters if one is not None), head.row)


def _keeps(core: Core, queue: Queue) -> str:
    """The reason for which messages of a queue are never redistributed; empty: they may be."""
    if queue.roster.cursor is not None:
        return f"the cursor {queue.roster.cursor.facts.name!r} has them"
    if core.router.addresses[queue.address].routing == "multicast":
        return "the messages of subscriptions are not redistributed"
    if queue.kind is QueueKind.TEMPORARY:
        return "the messages of temporary queues are not redistributed"
    if queue.roster.consumers and not queue.settings.redistribute_unmatched:
        return "a queue with consumers is redistributed only with redistribute_unmatched"
    return ""


def _remote(core: Core, queue: Queue, head: Head | None) -> tuple[abc.RemoteDemand, ...]:
    """The queues of the same name on other nodes that have consumers."""
    return tuple(
        abc.RemoteDemand(
            node_id=binding.path[0] if binding.path else node_of(binding.forward),
            node_name=binding.node_name,
            consumers=binding.consumers,
            wants=_wanted(binding, head),
            mode=binding.mode,
            gone=binding.gone,
            room=has_room(binding.forward, queue.address, core.router.quotas.get(queue.address)),
        )
        for binding in core.router.bindings(queue.address)
        if binding.name == queue.name and binding.consumers
    )


def _wanted(binding: RemoteBinding, head: Head | None) -> bool | None:
    if head is None or not binding.understood or not binding.precise:
        return None
    own = True if binding.filter is None else _takes(head, binding.filter)
    asked = True if not binding.filters else _takes(head, *binding.filters)
    if own is False or asked is False:
        return False
    return True if own and asked else None


def _forwarding(core: Core, queue: Queue) -> Iterator[abc.HeldMessages]:
    """The messages that wait for another node: they move when that node has stored one of them."""
    counts = queue.counts
    if not counts.ready and not counts.unacked:
        return
    known = core.definitions.peers.peers.get(queue.number)
    if queue.branches is not None:
        for address, branch in queue.branches.waiting.items():
            head = branch.head
            yield abc.HeldMessages(
                queue=queue.name,
                address=address,
                kind="full",
                mark=("full", head.first if head is not None else 0, branch.ready),
                messages=branch.ready,
                node_id=node_of(queue),
            )
    mark = "forwarding", counts.acknowledged, sum(counts.removed.values())
    yield abc.HeldMessages(
        queue=queue.name,
        address=queue.address,
        kind="forwarding",
        mark=mark,
        messages=counts.ready + counts.unacked,
        paused=queue.paused,
        node_id=node_of(queue),
        gone=known.gone if known is not None else "",
        sent=counts.unacked,
    )
