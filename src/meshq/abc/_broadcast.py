"""Broadcast endpoints: the datagrams by which nodes find each other."""

from __future__ import annotations

from abc import ABC, abstractmethod

from meshq.abc._env import Env


class BroadcastSender(ABC):
    """The sending half of one participant's end of a broadcast endpoint.

    A datagram arrives whole or not at all; it may be lost, come twice, or overtake others.
    """

    @abstractmethod
    async def broadcast(self, datagram: bytes) -> None:
        """Send a datagram to every channel that is open.

        Checkpoint: always.
        Cancellation: the datagram was sent or not.
        Raises:
            UsageError: the datagram is empty, or larger than 8 KiB (``meshq.limits.DATAGRAM_BYTES_MAX``); nothing
                was sent.
            ClosedError: the channel is closed.
            BrokenError: the endpoint can't send now; a later call may succeed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the channel.  Closing twice is silent."""


class BroadcastChannel(BroadcastSender):
    """A participant's end of a broadcast endpoint that is open.

    A channel may hear its own datagrams, and those of strangers.
    """

    @abstractmethod
    async def receive(self) -> bytes:
        """Receive the next datagram.

        Checkpoint: always.
        Cancellation: no datagram that has arrived is lost.
        Raises:
            ClosedError: the channel is closed, before or while it waits.
            BrokenError: the endpoint can't receive now; a later call may succeed.
        """


class BroadcastEndpoint(ABC):
    """A place where datagrams are broadcast: settings without state, which several brokers and groups may share."""

    @abstractmethod
    async def open(self, env: Env) -> BroadcastChannel:
        """Open a channel, which hears every datagram from now on.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: the place can't be used now: a port that is taken, a directory that is gone.
        """

    async def open_sender(self, env: Env) -> BroadcastSender:
        """Open a channel that is only sent to.  An endpoint whose channels need a place of their own, such as a port,
        overrides this method; otherwise the sender is a whole channel.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: the endpoint can't be used now.
        """
        return await self.open(env)
