"""The credits of a session's producers at addresses with a quota."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from meshq.broker.catalog._producer_credit import ProducerCredit
from meshq.broker.catalog._router import Router
from meshq.broker.session._producer_state import ProducerState
from meshq.broker.session._session_stream import SessionStream
from meshq.wire import Frame, FrameType


class ProducerCredits:
    """The credits of one session, by channel; empty unless an address that it sends to is bounded."""

    __slots__ = ("_producers", "_router", "_stream", "by_channel")

    def __init__(self, router: Router, stream: SessionStream, producers: Mapping[int, ProducerState]) -> None:
        self._router = router
        self._stream = stream
        # The open producers, by channel.
        self._producers = producers
        #: Producers that may have to wait.
        self.by_channel: dict[int, ProducerCredit] = {}

    def open(self, channel: int) -> dict[str, Any]:
        """Open the credit of a new producer; return the part of the answer that says how far the producer may send."""
        credit = self._open(channel)
        return {"until": credit.until} if credit is not None else {}

    def open_all(self) -> None:
        """Open credits at addresses that have become bounded."""
        for channel in self._producers:
            if channel not in self.by_channel and (credit := self._open(channel)) is not None:
                self._tell(channel, credit.until)

    def _open(self, channel: int) -> ProducerCredit | None:
        producer = self._producers[channel]
        quota = self._router.quotas.get(producer.target.address)
        if quota is None:
            return None
        credit = self.by_channel[channel] = quota.open(producer.count, partial(self._tell, channel))
        return credit

    def _tell(self, channel: int, until: int) -> None:
        """Tell the client how many messages it may send on this channel in all.

        The messages' numbers don't matter: some may be missing, and the first one may be unknown here.
        """
        self._stream.say_later(Frame(FrameType.CREDIT, channel=channel, first=until))

    def sent(self, channel: int, count: int) -> None:
        """Note a run, placed or not; ``count``: the messages that have come on its channel in all."""
        credit = self.by_channel.get(channel)
        if credit is not None:
            credit.sent(count)

    def close(self, channel: int) -> None:
        """Close the credit of a producer."""
        credit = self.by_channel.pop(channel, None)
        if credit is not None:
            credit.close()
            self._router.forget_quota(self._producers[channel].target.address)

    def close_all(self) -> None:
        """Close all credits: the session ends."""
        for channel in list(self.by_channel):
            self.close(channel)
