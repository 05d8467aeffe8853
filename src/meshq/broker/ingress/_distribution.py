"""The distribution of a run among queues, if its messages don't all go to the same queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq.broker.catalog._distribution_plan import ClusteredQueue, Share, Wants, plan
from meshq.broker.catalog._router import Address
from meshq.broker.ingress._filter_scan_plan import sift
from meshq.broker.ingress._known_shares import deal_known
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.broker.queue._verdicts import Verdicts, known_of
from meshq.broker.records._row_options import SPECIAL
from meshq.broker.records._row_ranges import pieces
from meshq.selector import Filter

#: What a sender has named besides the address.
Named = Queue | ClusteredQueue | None
#: Divides rows of a run: those that are dealt as any others, and the shares of those with a group.
PartGroups = Callable[[str, Sequence[ClusteredQueue], Sequence[int]], tuple[Sequence[int], list[Share]]]


def shared(
    run: StoredRun,
    address: Address,
    only: Queue | ClusteredQueue | None,
    rows: Sequence[int],
    part_groups: PartGroups | None = None,
) -> list[Share]:
    """Distribute a run that was sent to an address, to one queue of it, or to the queues of one name."""
    if isinstance(only, Queue):
        return deal_here(run, address, [only], rows)
    clustered_queues = [only] if only is not None else list(address.clustered_queues.values())
    if not clustered_queues:
        return deal_here(run, address, address.queues, rows)
    anycast = address.routing == "anycast"
    grouped: list[Share] = []
    if part_groups is not None:
        rows, grouped = part_groups(address.name, clustered_queues, rows)
    shares = plan(clustered_queues, rows, anycast=anycast, next_index=address.next_index, wants=wants_of(run))
    address.next_index += len(rows)
    return joined(shares + grouped) if grouped else shares


def joined(shares: Sequence[Share]) -> list[Share]:
    """Shares for the same queues as one: there the messages keep the order of their run."""
    rows: dict[tuple[Queue, tuple[int, ...]], list[int]] = {}
    for share in shares:
        rows.setdefault((share.queue, share.remote), []).extend(share.rows)
    return [Share(queue, part, remote) for (queue, remote), found in rows.items() for part in pieces(sorted(found))]


def deal_here(run: StoredRun, address: Address, queues: Sequence[Queue], rows: Sequence[int]) -> list[Share]:
    """Distribute a run where only this node has queues."""
    anycast = address.routing == "anycast"
    shares = deal(run, queues, rows, anycast=anycast, next_index=address.next_index)
    if anycast and len(queues) > 1:
        address.next_index += len(rows)
    return shares


def deal(
    run: StoredRun, queues: Sequence[Queue], rows: Sequence[int], *, anycast: bool, next_index: int
) -> list[Share]:
    """Distribute rows among queues here: to all that take a row, or to each queue in rotation."""
    if any(queue.spec.filter is not None for queue in queues):
        known = deal_known(run, queues, rows, anycast=anycast, next_index=next_index) if run.verdicts else None
        if known is not None:
            return known
        return sift(queues, rows, anycast=anycast, next_index=next_index, wants=wants_of(run))
    count = len(queues) if anycast else 1
    dealt = [
        Share(queue, part, ())
        for index, queue in enumerate(queues)
        for part in pieces(rows[(index - next_index) % count :: count])
    ]
    return [share for share in dealt if share.rows]


def goes_apart(address: Address, only: Queue | ClusteredQueue | None, targets: Sequence[Queue], kinds: int) -> bool:
    """Whether the messages of a run may go different ways, or at different times."""
    if (kinds & SPECIAL and targets) or (address.clustered_queues and not isinstance(only, Queue)):
        return True
    return bool(address.filtered) and any(one.spec.filter is not None for one in targets)


def rows_without(count: int, skipped: tuple[int, ...]) -> Sequence[int]:
    """Return the rows of a run of ``count`` messages without the ``skipped`` rows."""
    if not skipped:
        return range(count)
    known = dict.fromkeys(skipped)
    return [row for row in range(count) if row not in known]


def wants_of(run: StoredRun) -> Wants:
    """Return a function that puts messages of a run to filters; each message is read once."""
    messages = RunMessages(run)
    seen = -1

    def wants(filters: Sequence[Filter], row: int) -> bool:
        nonlocal seen
        if row != seen:
            seen = row
            messages.move(row, properties=True)
        return any(filter.matches(messages) for filter in filters)

    return _Known(run.verdicts, wants) if run.verdicts else wants


class _Known:
    """Puts messages to filters, unless the run's verdicts have the answer."""

    __slots__ = ("_by_filter", "_together", "_verdicts", "_wants")

    def __init__(self, verdicts: tuple[Verdicts, ...], wants: Callable[[Sequence[Filter], int], bool]) -> None:
        self._verdicts = verdicts
        self._wants = wants
        # The messages that each accepts, and those of which it was asked.
        self._by_filter: dict[Filter, tuple[int, int]] = {}
        # Of several filters that are asked together, by the identity of their tuple, which is kept: the messages that
        # one of them accepts, and those of which all were asked.
        self._together: dict[int, tuple[tuple[Filter, ...], int, int]] = {}

    def __call__(self, filters: tuple[Filter, ...], row: int) -> bool:
        if len(filters) == 1:
            accepted, asked = self._of(filters[0])
        else:
            _, accepted, asked = self._together.get(id(filters)) or self._of_all(filters)
        return bool(accepted >> row & 1) or (not asked >> row & 1 and self._wants(filters, row))

    def _of(self, filter: Filter) -> tuple[int, int]:
        found = self._by_filter.get(filter)
        if found is None:
            found = self._by_filter[filter] = known_of(self._verdicts, filter)
        return found

    def _of_all(self, filters: tuple[Filter, ...]) -> tuple[tuple[Filter, ...], int, int]:
        accepted, asked = 0, -1
        for filter in filters:
            found = self._of(filter)
            accepted |= found[0]
            asked &= found[1]
        self._together[id(filters)] = filters, accepted, asked
        return self._together[id(filters)]
