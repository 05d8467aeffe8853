"""The states of the processes of a run, as the reports of the processes tell them."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from meshq.demo import _report_format as report
from meshq.demo._process import Child


class ProcessStates:
    """The last report of each process about itself; a process may be in several states at a time."""

    def __init__(self) -> None:
        #: Processes that are at work, and what a broker said of its URLs.
        self.ready: dict[Child, report.Ready] = {}
        #: Brokers that found their port taken.
        self.taken: dict[Child, None] = {}
        #: Brokers that know all others.
        self.met: dict[Child, None] = {}
        #: Brokers that stand still.
        self.frozen: dict[Child, None] = {}
        #: Consumers that hold messages without acknowledging them.
        self.holding: dict[Child, None] = {}
        #: Consumers without a connection.
        self.offline: dict[Child, None] = {}
        #: The node of each consumer that has connected again or moved; how often that was said.
        self.places: dict[Child, str] = {}
        self.arrivals = 0
        #: Brokers that have left for good.
        self.left: dict[Child, report.Left] = {}
        #: The rows up to which the producer has prepared a transaction, and whether it found the transaction again.
        self.prepared = 0
        self.decided: bool | None = None
        #: Batches that consumers have acknowledged by ticket since the last kill.
        self.acknowledging = 0
        #: What the producer has sent.
        self.progress = report.Progress(0, 0)
        self._numbers: dict[Child, report.Numbers] = {}

    def take(self, child: Child, said: report.Report) -> None:
        """Take a report of a process; reports about messages are not for this class, and change nothing."""
        if isinstance(said, report.Progress):
            self.progress = said
        elif isinstance(said, report.Ready):
            self.ready[child] = said
        elif isinstance(said, report.PortTaken):
            self.taken[child] = None
        elif isinstance(said, report.MeshReady):
            self.met[child] = None
        elif isinstance(said, report.Frozen):
            self.frozen[child] = None
        elif isinstance(said, report.Numbers):
            self._numbers[child] = said
        elif isinstance(said, report.Holding):
            self.holding[child] = None
        elif isinstance(said, report.Acknowledging):
            self.acknowledging += 1
        elif isinstance(said, report.Connection):
            self._take_connection(child, said)
        else:
            self._take_of_leaving(child, said)

    def _take_connection(self, child: Child, said: report.Connection) -> None:
        if said.up:
            self.offline.pop(child, None)
            self.places[child] = said.node
            self.arrivals += 1
        else:
            self.offline[child] = None

    def _take_of_leaving(self, child: Child, said: report.Report) -> None:
        if isinstance(said, report.Left):
            self.left[child] = said
        elif isinstance(said, report.Prepared):
            self.prepared = said.sent
        elif isinstance(said, report.Decided):
            self.decided = said.found

    def all_ready(self, children: Iterable[Child]) -> bool:
        """Whether all these processes are at work."""
        return all(child in self.ready for child in children)

    def asked(self, broker: Child) -> None:
        """Forget the numbers of a broker that is asked for new ones."""
        self._numbers.pop(broker, None)

    def has_answered(self, broker: Child) -> bool:
        """Whether a broker has told its numbers since it was asked."""
        return broker in self._numbers

    def answer(self, broker: Child) -> report.Numbers:
        """The numbers of a broker that has answered."""
        return self._numbers.pop(broker)

    def kill_is_over(self) -> None:
        """Forget who held and acknowledged for a kill."""
        self.acknowledging = 0
        self.holding.clear()

    def sizes(self) -> tuple[int, ...]:
        """Figures that change while the run progresses."""
        states: tuple[Sized, ...] = (
            *(self.ready, self.taken, self.met, self.frozen, self.holding, self.offline, self.left),
        )
        counts = self.progress.sent, self.progress.confirmed, self.arrivals, self.prepared, self.decided is not None
        return (*counts, *map(len, states))
