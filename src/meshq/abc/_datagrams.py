"""Datagrams between hosts: to one port, or to all members of a multicast group."""

from __future__ import annotations

from abc import ABC, abstractmethod


class DatagramSocket(ABC):
    """An open socket for datagrams.  One task receives at a time.

    A datagram arrives whole or not at all; it may be lost, come twice, or overtake others.
    """

    @abstractmethod
    async def send(self, datagram: bytes, host: str, port: int) -> None:
        """Send a datagram to a port of a host, or to a multicast group.

        Checkpoint: always.
        Cancellation: the datagram was sent or not.
        Raises:
            ClosedError: the socket is closed.
            OSError: the datagram can't be sent now.
        """

    @abstractmethod
    async def receive(self) -> bytes:
        """Receive the next datagram.

        Checkpoint: always.
        Cancellation: no datagram that has arrived is lost.
        Raises:
            ClosedError: the socket is closed, before or while the call waits.
            OSError: nothing can be received now.
        """

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that is bound, also where port 0 was asked for."""

    @abstractmethod
    def close(self) -> None:
        """Close the socket.  Closing twice is silent."""


class Datagrams(ABC):
    """Sockets for datagrams, over IPv4.

    ``host`` is the address of one interface of this host, or empty for all of them.  What is sent from a loopback
    address leaves no host, multicast included; other multicast stays in the local network.
    """

    @abstractmethod
    async def bind(self, host: str, port: int, *, shared: bool = False) -> DatagramSocket:
        """Open a socket at an own address; port 0 chooses a free port.

        Multicast leaves by the interface of ``host``, or by one that the system chooses.  ``shared``: other sockets
        that say so may have the same port; which of these sockets receives a datagram is then not defined.

        Checkpoint: always.  Cancellation: nothing is open.  Raises: OSError.
        """

    @abstractmethod
    async def join(self, group: str, port: int, host: str) -> DatagramSocket:
        """Open a socket that receives only the datagrams to this port of a multicast group.

        Only what arrives by the interface of ``host`` counts, or by one that the system chooses.  Any number of sockets
        may join one group; each of these sockets receives each datagram.

        Checkpoint: always.  Cancellation: nothing is open.  Raises: OSError.
        """
