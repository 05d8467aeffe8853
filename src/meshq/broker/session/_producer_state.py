"""A producer of a session, as the broker keeps it while its channel is open."""

from __future__ import annotations

from meshq.address import MANAGEMENT, Target
from meshq.broker.ingress._producer_sequences import UserSequences
from meshq.errors import UsageError
from meshq.settings import AddressSettings


class ProducerState:
    """A producer's channel: whose messages these are, and where they go."""

    __slots__ = ("count", "producer", "requests", "routing", "sequences", "target", "user", "window")

    def __init__(self, producer: bytes, user: str, target: Target, window: int) -> None:
        self.producer = producer
        #: Whose it is: other users' producers of the same id are others.
        self.user = user
        #: What is stored of that user's producers, of this one, too.
        self.sequences: UserSequences
        self.target = target
        #: Messages that it may have unconfirmed; 0: that is not for us to judge.
        self.window = window
        #: Messages that have come on its channel.
        self.count = 0
        #: The routing type of the address; empty: the messages are requests to the broker itself.
        self.routing = ""
        #: They are requests to the broker itself.
        self.requests = target.address == MANAGEMENT


def check_window(producer: ProducerState, settings: AddressSettings) -> None:
    """Whether all that a producer may have to send again elsewhere is known as a repeat where it was stored.

    Raises:
        UsageError: it is not.
    """
    remembered = settings.duplicate_id_cache_size
    if 0 < remembered < producer.window:
        raise UsageError(
            f"window={producer.window}: {producer.target.address!r} remembers the last {remembered} duplicate ids "
            f"(duplicate_id_cache_size), so a producer may have at most that many messages unconfirmed"
        )
