"""One user takes all sessions: a user with a password opens sessions until the broker says no, and leaves them behind.

Others come in all the same, the store has its descriptors, and what is left behind is kept for as long as the broker
allows, whatever its client has asked for.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from meshq import Client, NotActiveError, connect
from meshq.errors import MeshqError
from meshq.limits import KIB
from tests.attacks.kit import Report, Server, main, serving

DESCRIPTORS: Final = 1_024
#: 75 % of the connections, which are three quarters of the descriptors.
PER_USER: Final = 576
#: Seconds that the broker keeps a session for, and that the greedy ask for.
KEPT_S: Final = 5.0
ASKED_S: Final = 3_600.0
SETTINGS: Final = f"max_session_ttl = {KEPT_S}\n[journal]\nsegment_bytes = 65536"
BODIES: Final = 100


class Greedy:
    """A user who opens sessions, and keeps them."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._url = url
        self._settings = settings
        self.clients: list[Client] = []
        self.refused: MeshqError | None = None

    async def take(self, nursery: trio.Nursery, most: int) -> None:
        """Open sessions until there is no room for another one."""
        while self.refused is None and len(self.clients) < most:
            await nursery.start(self._one)

    async def _one(self, *, task_status: trio.TaskStatus[None]) -> None:
        there = False
        try:
            async with connect(self._url, **self._settings, connection_ttl=ASKED_S, reconnect_attempts=0) as client:
                self.clients.append(client)
                there = True
                task_status.started()
                await trio.sleep_forever()
        except MeshqError as error:
            if not there:
                self.refused = error
                task_status.started()

    def leave_behind(self) -> None:
        """Cut every connection without a good-bye."""
        for client in self.clients:
            link = client._connection._link
            if link is not None:
                link.close()


async def attack(folder: Path) -> Report:
    """A user who takes whatever there is, beside one who works."""
    server = Server(folder, descriptors=DESCRIPTORS, users={"greedy": "secret", "app": "secret"}, settings=SETTINGS)
    report = Report(f"one user takes all sessions at {DESCRIPTORS} descriptors")
    async with serving(server) as sampler, trio.open_nursery() as nursery:
        mine = {"user": "greedy", "password": "secret"}
        greedy = Greedy(server.url, **mine)
        await greedy.take(nursery, most=DESCRIPTORS)
        report.exactly("sessions of one user", len(greedy.clients), PER_USER)
        cause = greedy.refused.__cause__ if greedy.refused is not None else None
        report.exactly("the refusal is typed and names the user", _says_why(cause), True)
        report.exactly("confirmed sends of another user", await _work(server), BODIES)
        greedy.leave_behind()
        left_at = trio.current_time()
        report.exactly("confirmed sends while the sessions wait", await _work(server), BODIES)
        with trio.move_on_after(KEPT_S * 4):
            async with connect(server.url, **mine, initial_connect_attempts=1_000, max_retry_interval=0.2):
                pass
        report.at_most("seconds until the user has room again", trio.current_time() - left_at, KEPT_S * 3)
        report.exactly("the broker lives", server.running, True)
        nursery.cancel_scope.cancel()
    report.at_most("descriptors of the broker", sampler.descriptors, DESCRIPTORS * 3 // 4 + 64)
    report.at_most("MiB of the broker", sampler.rss_bytes >> 20, 256)
    return report


def _says_why(cause: BaseException | None) -> bool:
    return isinstance(cause, NotActiveError) and f"the user 'greedy' has {PER_USER}" in str(cause)


async def _work(server: Server) -> int:
    """Somebody else comes in and sends; how many sends were confirmed."""
    confirmed = 0
    with suppress(MeshqError):
        async with connect(server.url, user="app", password="secret", initial_connect_attempts=20) as client:
            for _ in range(BODIES):
                await client.send("q", bytes(16 * KIB))
                confirmed += 1
    return confirmed


if __name__ == "__main__":
    main(attack)
