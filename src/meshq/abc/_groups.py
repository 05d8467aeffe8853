"""Message groups that are consumed on one node of a cluster at a time, as the service sees them that pins them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence


class PinnedGroups(ABC):
    """The groups of the queues of a broker, and the pins that say which node consumes each."""

    @abstractmethod
    def begin(self, takes: Callable[[str], bool], wake: Callable[[], None]) -> bool:
        """Serve the groups of some addresses from now on; False: another service of the broker does so.

        ``wake`` is called when there is something to ask or to move; it must not raise.
        """

    @abstractmethod
    def end(self) -> None:
        """Serve no groups any more."""

    @abstractmethod
    def see(
        self,
        members: Collection[str],
        targets: Collection[str],
        *,
        leavers: Collection[str] = (),
        active: bool,
        leaving: bool,
    ) -> None:
        """Take in the ids of the nodes of the cluster, and of those to which messages may go.

        ``leavers``: other nodes that leave, to which nothing more is to go.  ``active``: whether groups are pinned at
        all.  ``leaving``: whether this node leaves, and consumes no more.
        """

    @abstractmethod
    def wanted(self) -> Sequence[tuple[str, str, str, bool]]:
        """Return the queues and groups whose pins are wanted, the ids of the nodes that are to get these, and whether
        this node could have them, too."""

    @abstractmethod
    def waiting(self) -> int:
        """Return the number of wanted pins.  Some of them may be pins that no node is to get now."""

    @abstractmethod
    def has_place(self, queue: str, node: str) -> bool:
        """Return whether messages of a queue can go to a node, now or later: it has a queue of the name, or is away."""

    @abstractmethod
    def held(self) -> Sequence[tuple[str, str]]:
        """Return the queues and groups whose pins this node holds."""

    @abstractmethod
    def ask(self, queue: str, group: str) -> None:
        """Note that the arbiter is asked for a pin now: its answer holds for the messages that are here."""

    @abstractmethod
    def told(self, queue: str, group: str, holder: str) -> None:
        """Take in who holds a pin."""

    @abstractmethod
    def freed(self, queue: str, group: str) -> None:
        """Forget which node held a pin."""

    @abstractmethod
    def given_up(self) -> Sequence[tuple[str, str]]:
        """Give up pins without messages whose queue has no consumer here, or all if this node leaves.  Return these."""

    @abstractmethod
    def period_over(self, idle_after: float, pins_max: int) -> tuple[Sequence[tuple[str, str]], int]:
        """End a period; return the pins that were given up for being idle, and how many were forgotten, held or not,
        only because more than ``pins_max`` were known.

        ``idle_after``: in periods, the time after which a pin is idle.
        """

    @abstractmethod
    def kept(self) -> Mapping[tuple[str, str], str]:
        """Return the pins that this node has given, also in earlier lives: the ids of the nodes by queue and group."""

    @abstractmethod
    def keep(self, queue: str, group: str, node: str | None) -> None:
        """Keep who has a pin that this node has given; None: nobody has it any more."""

    @abstractmethod
    def introduced(self) -> tuple[str, str]:
        """Return the two texts of the last ``keep_introduced`` in any life; empty ones if there is none."""

    @abstractmethod
    def keep_introduced(self, members: str, lives: str) -> None:
        """Keep which nodes have introduced themselves to this node as the arbiter.

        ``members``: the ids of the members that they knew, separated by spaces; several lists, separated by commas, if
        not all knew the same.  ``lives``: for each list, the ids of these nodes, each before its life.  Two empty
        texts: none has.
        """

    @abstractmethod
    def move(self) -> None:
        """Have messages moved to the nodes that hold their groups."""
