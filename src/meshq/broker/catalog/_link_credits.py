"""The credit of another node's links at the bounded addresses of this node.

What a link carries was confirmed to its producer, so that nothing of it may be refused: an address that is full, and
does not drop, grants no more credit, and what it has no room for waits at the sender.

A credit has a number.  The sender names it with each run that it counts, and only such runs are counted here: so both
sides count the same messages, although some were on their way when the credit was opened or closed.

Credit that is told as less than before is asked for: the sender answers how much of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meshq.broker.catalog._producer_credit import ProducerCredit
from meshq.broker.catalog._router import Router

#: Tells a link: its channel, the number of the credit (0: none, the address is not bounded), the address, and how many
#: messages it may send in all.
Tell = Callable[[int, int, str, int], None]


class LinkCredits:
    """The credits of one session's links, by channel and address; only for links that keep to them."""

    __slots__ = ("_by_number", "_changed", "_channels", "_last", "_router", "_tell")

    def __init__(self, router: Router, tell: Tell) -> None:
        self._router = router
        self._tell = tell
        # By channel and address the number of the credit.
        self._channels: dict[int, dict[str, int]] = {}
        self._by_number: dict[int, ProducerCredit] = {}
        self._last = 0
        # Addresses that may have become bounded, or be gone, since the last look; an ordered set.
        self._changed: dict[str, None] = {}

    def begin(self, channel: int) -> None:
        """Open the credits of a link."""
        self._channels[channel] = {}
        for address in list(self._router.quotas):
            self._compare(channel, address)

    def changed(self, address: str) -> bool:
        """Note that an address may have become bounded, or is gone.  Return True if there is a link that asks."""
        if self._channels:
            self._changed[address] = None
        return bool(self._channels)

    def flush(self) -> None:
        """Open credits at addresses that have become bounded, and close those at addresses that are gone."""
        if self._changed:
            changed, self._changed = self._changed, {}
            for address in changed:
                for channel in self._channels:
                    self._compare(channel, address)

    def _compare(self, channel: int, address: str) -> None:
        """Have a link's credit at one address if that is bounded, and none if it is not."""
        numbers, quota = self._channels[channel], self._router.quotas.get(address)
        if quota is not None and address in self._router.addresses:
            if address not in numbers:
                self._last += 1
                number = numbers[address] = self._last
                tell = partial(self._tell, channel, number, address)
                credit = self._by_number[number] = quota.open(0, tell, link=True)
                credit.extend(credit.until)
        elif address in numbers:
            self._close(address, numbers.pop(address))
            self._tell(channel, 0, address, 0)

    def came(self, number: int, messages: int) -> None:
        """Count messages that have come with the number of a credit, stored before or not."""
        credit = self._by_number.get(number)
        if credit is not None:
            credit.sent(credit.count + messages)

    def kept(self, number: int, until: int) -> None:
        """Note that a link sends ``until`` messages in all with the number of a credit, some of which was asked back.

        Raises:
            RemoteProtocolError: it was not asked.
        """
        credit = self._by_number.get(number)
        if credit is not None:
            credit.kept(until)

    def close(self, channel: int) -> None:
        """Give the credit of a link back: it is read in another session, or is over."""
        for address, number in self._channels.pop(channel, {}).items():
            self._close(address, number)

    def end(self) -> None:
        """Give all credit back: the session is over."""
        for channel in list(self._channels):
            self.close(channel)

    def _close(self, address: str, number: int) -> None:
        self._by_number.pop(number).close()
        self._router.forget_quota(address)
