"""A client of the simulated balancers, which wants to have a broker at all times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from meshq.client import Client, ConnectionEvent, EventStream, Redirected, connect
from meshq.errors import MeshqError
from meshq.testing import SimNode
from qa.balanced.shape import CLIENT_PORT

SETTINGS: Final[dict[str, Any]] = {
    "insecure": True,
    "use_topology": False,
    "initial_connect_attempts": float("inf"),
    "connection_ttl": 3.0,
    "check_period": 0.5,
    "call_timeout": 3.0,
    "call_failover_timeout": 3.0,
    "retry_interval": 0.05,
    "max_retry_interval": 0.5,
}
#: Seconds after which a client has a broker, if one that fits has been there for as long: it notices the loss, tries
#: the lost one once more, is sent to one that hangs until that is known, and waits for a quorum, each within 3 s; a
#: list of five may have four that hang.
BOUND_S: Final = 30.0


class Device:
    """A client with a key of its own, over all its connections."""

    def __init__(self, node: SimNode, key: str, fronts: tuple[str, ...], wrong: Callable[[str, str], None]) -> None:
        self.key = key
        self.node = node
        self._urls = f"({','.join(f'tcp://{name}:{CLIENT_PORT}' for name in fronts)})"
        self._wrong = wrong
        #: Where it was served last, and when; since when a broker that fits has been there.
        self.at = ""
        self.served_at = 0.0
        self.fits_since: float | None = None
        self.served = 0
        self.moved = 0
        self._late = False

    def dial(self, url: str = "", **settings: Any) -> Client:
        """A connection by the key."""
        return connect(url or self._urls, env=self.node.env, client_id=self.key, **{**SETTINGS, **settings})

    async def run(self, closing: Callable[[], bool]) -> None:
        """Have a broker, and do something there from time to time."""
        try:
            async with self.dial() as client:
                while not closing():
                    await self._work(client)
                    await trio.sleep(0.5)
        except MeshqError as error:
            self._wrong("P2", f"the client {self.key} gave up: {error!r}")

    async def _work(self, client: Client) -> None:
        try:
            await client.queues()
        except MeshqError:
            # Cut by a failover: the client comes back by itself.
            return
        at = client.statistics().node_name
        self.served_at = trio.current_time()
        self.served += 1
        self.moved += bool(self.at) and at != self.at
        self.at = at

    def look(self, *, fits: bool) -> None:
        """See whether it has been without a broker for too long.  ``fits``: one for it is there now."""
        now = trio.current_time()
        self.fits_since = (now if self.fits_since is None else self.fits_since) if fits else None
        if self.fits_since is None or self._late:
            return
        without = now - max(self.served_at, self.fits_since)
        if without > BOUND_S:
            self._late = True
            self._wrong(
                "P1", f"the client {self.key} has been without a broker for {without:.0f} s, which was at {self.at}"
            )

    async def place(self, url: str = "") -> tuple[str, int]:
        """Connect anew, and return where that is, and how often it was sent on."""
        client = self.dial(url, initial_connect_attempts=20)
        events: EventStream[ConnectionEvent] = client.events()
        async with client:
            await client.queues()
            at = client.statistics().node_name
        hops = 0
        with trio.move_on_after(0.01):
            async for event in events:
                hops += isinstance(event, Redirected)
        return at, hops
