"""The credits of the producers and links at one address, and the line of waiting ones.

The credit of a producer can't be taken back.  The credit of a link can be asked for: the other node answers how much of
it is kept, because that was sent already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from meshq.errors import invariant
from meshq.wire import COUNTER_MAX, violation


class CreditGrantor(Protocol):
    """The grantor of credit: the quota of an address."""

    def sent(self, credit: ProducerCredit, count: int) -> None:
        """Note messages that have come."""

    def kept(self, credit: ProducerCredit, freed: int) -> None:
        """Note that a link was asked for credit, and does not keep ``freed`` messages of it."""

    def close(self, credit: ProducerCredit) -> None:
        """Take the credit of a closed producer back."""


class ProducerCredit:
    """The credit of one producer, or of one link of another node, at an address with a quota."""

    __slots__ = ("_quota", "_tell", "asked", "count", "link", "step", "told", "until")

    def __init__(self, quota: CreditGrantor, count: int, tell: Callable[[int], None], *, link: bool = False) -> None:
        self._quota = quota
        #: What a link carries was confirmed to its producer: it can't be refused, so that it waits with "fail", too.
        self.link: bool = link
        # How many messages came, and how many it may send in all.
        self.count: int = count
        self.until: int = count
        # What the other side was told last of that, which is less if it was asked for some of it.
        self.told: int = count
        # What it was granted last.
        self.step: int = 0
        # How often a link was asked for credit and has not answered: meanwhile it is granted nothing.
        self.asked: int = 0
        self._tell = tell

    @property
    def promised(self) -> int:
        """Messages that the producer may still send."""
        return max(0, self.until - self.count)

    def sent(self, count: int) -> None:
        """Note that ``count`` messages of the producer have come in all."""
        self._quota.sent(self, count)

    def close(self) -> None:
        """Give the credit back: the producer is closed."""
        self._quota.close(self)

    def extend(self, until: int) -> None:
        """Let the producer send ``until`` messages in all."""
        self.until = self.told = until
        self._tell(until)

    def ask(self, until: int) -> None:
        """Ask a link for the credit beyond ``until``, which is less than the link was told."""
        invariant(until < self.told, "a link is asked for what it was told that it has")
        self.asked += 1
        self.told = until
        self._tell(until)

    def kept(self, until: int) -> None:
        """Note that the link was asked, and sends ``until`` messages in all.

        Raises:
            RemoteProtocolError: it was not asked.
        """
        if not self.asked:
            raise violation("bad_number", f"credit up to {until} messages is given back, which was not asked for")
        self.asked -= 1
        if self.asked:
            # What it was asked for later counts.
            return
        if self.until == COUNTER_MAX:
            # The address is not bounded any more.
            return
        before = self.promised
        self.until = min(self.until, max(self.count, until))
        self._quota.kept(self, before - self.promised)


class OpenCredits:
    """The credits at one address, and the line of waiting ones: first come first served."""

    __slots__ = ("_all", "_links", "_waiting", "_waiting_links")

    def __init__(self) -> None:
        self._all: dict[ProducerCredit, None] = {}
        self._links: dict[ProducerCredit, None] = {}
        self._waiting: dict[ProducerCredit, None] = {}
        self._waiting_links: dict[ProducerCredit, None] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[ProducerCredit]:
        return iter(self._all)

    @property
    def links(self) -> list[ProducerCredit]:
        """The credits of links, waiting or not."""
        return list(self._links)

    @property
    def first(self) -> ProducerCredit | None:
        """The first credit in the line; None: nobody waits."""
        return next(iter(self._waiting), None)

    @property
    def first_link(self) -> ProducerCredit | None:
        """The first credit of a link in the line; None: no link waits."""
        return next(iter(self._waiting_links), None)

    @property
    def waiting_producers(self) -> int:
        """The number of waiting credits of producers."""
        return len(self._waiting) - len(self._waiting_links)

    def add(self, credit: ProducerCredit) -> None:
        """Enter a credit that is new."""
        self._all[credit] = None
        if credit.link:
            self._links[credit] = None

    def remove(self, credit: ProducerCredit) -> None:
        """Remove a credit that is closed."""
        del self._all[credit]
        self._links.pop(credit, None)
        self.serve(credit)

    def wait(self, credit: ProducerCredit) -> None:
        """Append a credit to the line."""
        self._waiting[credit] = None
        if credit.link:
            self._waiting_links[credit] = None

    def serve(self, credit: ProducerCredit) -> None:
        """Remove a credit from the line, if it waits there."""
        self._waiting.pop(credit, None)
        self._waiting_links.pop(credit, None)
