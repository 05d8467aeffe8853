"""The channels of a session: numbers that rise, each used once, by a producer, a consumer, a link or a large body."""

from __future__ import annotations

from meshq import limits
from meshq.broker.queue._queue_machine import QueueConsumer
from meshq.broker.session._producer_state import ProducerState
from meshq.wire import Frame, decline, violation


class SessionChannels:
    """The channels of one session."""

    __slots__ = ("_last", "consumers", "producers")

    def __init__(self) -> None:
        #: The open producers and consumers, by channel.
        self.producers: dict[int, ProducerState] = {}
        self.consumers: dict[int, QueueConsumer] = {}
        self._last = 0

    def open(self, frame: Frame) -> None:
        """Take note of the channel of a frame, which is used once.

        Raises:
            RemoteProtocolError: the channel was used before.
        """
        if frame.channel <= self._last:
            raise violation("bad_channel", f"channel {frame.channel} is not above {self._last}")
        self._last = frame.channel

    def check_free(self) -> None:
        """Check that a further producer or consumer is allowed.

        Raises:
            RefusedError: the session has the maximum.
        """
        if len(self.producers) + len(self.consumers) >= limits.CHANNELS_MAX:
            raise decline("too_many", f"a session has at most {limits.CHANNELS_MAX} producers and consumers")
