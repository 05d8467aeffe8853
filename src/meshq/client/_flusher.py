"""The task that sends what has gathered at the end of a loop turn: runs, acknowledgements, frames in line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from meshq.client._completion import Wakeup

if TYPE_CHECKING:
    from meshq.client._session import ClientSession


class Flushable(Protocol):
    """Something that gathers and wants a look at the end of each loop turn."""

    def turn(self) -> bool:
        """Look; returns whether to look again in the next turn."""

    def gather(self) -> None:
        """Send the gathered messages now."""


class Flusher:
    """One for each client.  It sleeps while nothing gathers."""

    __slots__ = ("_armed", "_session", "_wakeup")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._armed: dict[Flushable, None] = {}
        self._wakeup = Wakeup()
        session.wake = self.wake

    def wake(self) -> None:
        """There is something to send."""
        self._wakeup.wake()

    def arm(self, gathers: Flushable) -> None:
        """Look at this one from the next turn on."""
        self._armed[gathers] = None
        self._wakeup.wake()

    def gather(self) -> None:
        """Have everything sent that gathers now."""
        for gathers in list(self._armed):
            gathers.gather()

    async def run(self) -> None:
        """Send at the end of each turn in which something gathered.

        Checkpoint: always.  Cancellation: what gathered stays.
        """
        session = self._session
        while True:
            await self._wakeup.wait()
            if self._armed:
                armed, self._armed = self._armed, {}
                for gathers in armed:
                    if gathers.turn():
                        self._armed[gathers] = None
                if self._armed:
                    self._wakeup.wake()
            session.pump()
            session.send_settles()
            session.flush()
