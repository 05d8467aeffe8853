"""The flusher: a task that sends gathered runs, acknowledgements and frames at the end of each loop turn."""

from __future__ import annotations

from typing import Protocol

from meshq.client.session._session import ClientSession


class Flushable(Protocol):
    """A gatherer of messages that the flusher calls at the end of each loop turn."""

    def flush_idle(self) -> bool:
        """Send gathered messages that no longer grow; return whether to call again in the next turn."""

    def flush_now(self) -> None:
        """Send the gathered messages now."""


class Flusher:
    """The flusher of one client, which sleeps while nothing gathers."""

    __slots__ = ("_armed", "_session", "_wakeup")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._armed: dict[Flushable, None] = {}
        self._wakeup = session.wakeup

    def arm(self, source: Flushable) -> None:
        """Call ``flush_idle`` of ``source`` at the end of each loop turn, starting with the next one."""
        self._armed[source] = None
        self._wakeup.wake()

    def flush_now(self) -> None:
        """Send all gathered messages now."""
        for source in list(self._armed):
            source.flush_now()

    async def run(self) -> None:
        """Send at the end of each turn in which something gathered.

        Checkpoint: always.  Cancellation: what gathered stays.
        """
        session, stream, wakeup = self._session, self._session.stream, self._wakeup
        while True:
            await wakeup.wait()
            wakeup.clear()
            if self._armed:
                armed, self._armed = self._armed, {}
                for source in armed:
                    if source.flush_idle():
                        self._armed[source] = None
                if self._armed:
                    wakeup.wake()
            session.pump()
            stream.send_settles()
            stream.flush()
