"""A transaction: its sends and acknowledgements so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from meshq import limits
from meshq.address import Target
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.queue._verdicts import OVERHEAD_BYTES, stride_of
from meshq.errors import UsageError
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue


class Work(NamedTuple):
    """A run that waits for the commit: where it goes, and the kinds of its rows."""

    run: StoredRun
    target: Target
    kinds: int


class Counts:
    """The runs that go to one target, and the bytes in which each of their messages is a bit."""

    __slots__ = ("runs", "stride_bytes")

    def __init__(self) -> None:
        self.runs = self.stride_bytes = 0


class ServerTransaction:
    """The work that waits for a commit.  Its runs are in no queue; its acknowledged messages stay unacked."""

    __slots__ = (
        "acked", "acked_in_transaction", "expected", "expected_bytes", "forgets", "judged", "sent", "size_bytes",
        "targets", "used_at", "verdict_bytes", "work",
    )  # fmt: skip

    def __init__(self) -> None:
        self.work: list[Work] = []
        #: Where its runs go, in the order in which it first sent there.
        self.targets: dict[Target, Counts] = {}
        #: What it has acknowledged, by queue.
        self.acked_in_transaction: dict[Queue, list[RowSpan]] = {}
        self.sent: int = 0
        self.acked: int = 0
        #: Of its runs, in memory.
        self.size_bytes: int = 0
        #: By where its runs go: the filters of which they know what these say, while it is being committed.
        self.judged: dict[Target, dict[Filter, None]] = {}
        #: What that takes in memory.
        self.verdict_bytes: int = 0
        #: By where its runs go: the filters for whose verdicts there is memory; and how much that is.
        self.expected: dict[Target, dict[Filter, None]] = {}
        self.expected_bytes: int = 0
        #: How often what they say was forgotten.
        self.forgets: int = 0
        #: The tick in which it was last used.
        self.used_at: int = 0

    def check_limits(self, messages: int, size_bytes: int) -> None:
        """Whether so much fits.

        Raises:
            UsageError: it does not.
        """
        if self.sent + self.acked + messages > limits.TRANSACTION_MESSAGES_MAX:
            raise UsageError(f"a transaction has at most {limits.TRANSACTION_MESSAGES_MAX} messages")
        if self.size_bytes + size_bytes > limits.TRANSACTION_BYTES_MAX:
            raise UsageError(f"a transaction sends at most {limits.TRANSACTION_BYTES_MAX} bytes")

    def add_run(self, work: Work) -> None:
        """A run was sent."""
        self.work.append(work)
        rows = work.run.content.rows
        self.sent += rows
        counts = self.targets.setdefault(work.target, Counts())
        counts.runs += 1
        counts.stride_bytes += stride_of(rows)
        self.size_bytes += work.run.size_bytes

    def verdict_bytes_of(self, target: Target, filters: int) -> int:
        """Return the bytes for verdicts of so many filters about all messages to a target."""
        counts = self.targets[target]
        return counts.stride_bytes * filters + OVERHEAD_BYTES * counts.runs

    def forget_verdicts(self) -> None:
        """When it is committed another time filters are asked anew: it is later then."""
        self.expected, self.expected_bytes = {}, 0
        if self.judged or self.verdict_bytes:
            self.judged, self.verdict_bytes = {}, 0
            self.forgets += 1
            for run, _, _ in self.work:
                run.verdicts = ()

    def add_spans(self, queue: Queue, spans: Sequence[RowSpan]) -> None:
        """Messages were acknowledged: they are held, and no consumer has them any more."""
        rows = sum(span.rows for span in spans)
        self.acked_in_transaction.setdefault(queue, []).extend(spans)
        self.acked += rows
        queue.counts.acked_in_transaction += rows

    def absent(self) -> tuple[Queue, QueueRun] | None:
        """A run with messages that it holds, and whose content is not here; None: there is none."""
        for queue, spans in self.acked_in_transaction.items():
            for span in spans:
                if span.view.run.paged:
                    return queue, span.view
        return None

    def take_spans(self) -> Iterator[tuple[Queue, list[RowSpan]]]:
        """Take the acknowledged rows out of the transaction, queue by queue."""
        acked_in_transaction, self.acked_in_transaction = self.acked_in_transaction, {}
        for queue, spans in acked_in_transaction.items():
            queue.counts.acked_in_transaction -= sum(span.rows for span in spans)
            yield queue, spans
