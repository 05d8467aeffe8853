"""Half-open connections: strangers who connect and say nothing, at the usual limit of descriptors.

The broker lives, its store finds descriptors for each new segment, and whoever has a password gets in.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from meshq import connect
from meshq.limits import KIB
from tests.attacks.kit import Report, Server, main, serving

CONNECTIONS: Final = 2_000
DESCRIPTORS: Final = 1_024
#: Sources of the connections; the whole of 127/8 is this host.
SOURCES: Final = 100
#: Small, so that the store needs many files while the strangers are there.
SETTINGS: Final = "[journal]\nsegment_bytes = 65536"
#: Of the strangers, that many at least are connected at a time, beyond what the broker lets in: the others wait, or
#: were just thrown out.
STANDING: Final = 0.5
#: Seconds between two rounds in which whoever was thrown out comes again.
PAUSE_S: Final = 2.0
BODIES: Final = 200
BODY_BYTES: Final = 16 * KIB


class Strangers:
    """Connections of several addresses that say nothing; whoever is thrown out comes again."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._sockets: list[socket.socket | None] = [None] * number
        #: Connections that were made, and the most that were there at a time, by this side's count.
        self.made = 0
        self.most = 0
        #: The most of them that were really connected at a time.
        self.connected = 0

    async def stay(self) -> None:
        """Keep all of them connected, until cancelled."""
        try:
            while True:
                for index in range(len(self._sockets)):
                    self._keep(index)
                    if index % 100 == 0:
                        await trio.sleep(0.005)
                self.most = max(self.most, sum(1 for _ in self._living()))
                self.connected = max(self.connected, sum(map(_connected, self._living())))
                await trio.sleep(PAUSE_S)
        finally:
            for one in self._living():
                one.close()

    def _living(self) -> Iterator[socket.socket]:
        yield from (one for one in self._sockets if one is not None)

    def _keep(self, index: int) -> None:
        there = self._sockets[index]
        if there is not None:
            try:
                if there.recv(4_096):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            there.close()
        self._sockets[index] = made = socket.socket()
        made.setblocking(False)
        made.bind((f"127.0.1.{1 + index % SOURCES}", 0))
        made.connect_ex(("127.0.0.1", self._port))
        self.made += 1


def _connected(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


async def attack(folder: Path, number: int = CONNECTIONS) -> Report:
    """So many half-open connections while somebody works."""
    server = Server(folder, descriptors=DESCRIPTORS, users={"app": "secret"}, settings=SETTINGS)
    report = Report(f"{number} half-open connections at {DESCRIPTORS} descriptors")
    confirmed = logins = 0
    async with serving(server) as sampler, trio.open_nursery() as nursery:
        who = {"user": "app", "password": "secret"}
        async with connect(server.url, **who, reconnect_attempts=0, call_timeout=30) as client:
            strangers = Strangers(server.port, number)
            nursery.start_soon(strangers.stay)
            await trio.sleep(2)
            for _ in range(BODIES):
                await client.send("q", bytes(BODY_BYTES))
                confirmed += 1
            for _ in range(5):
                async with connect(server.url, **who, initial_connect_attempts=20) as other:
                    await other.send("q", b"x")
                    logins += 1
        lives = server.running
        nursery.cancel_scope.cancel()
    report.at_least("connections made", strangers.made, number)
    report.at_least("of them connected at a time", strangers.connected, int(number * STANDING))
    report.exactly("the broker lives", lives, True)
    report.exactly("confirmed sends", confirmed, BODIES)
    report.exactly("logins meanwhile", logins, 5)
    report.at_most("descriptors of the broker", sampler.descriptors, DESCRIPTORS * 3 // 4 + 64)
    report.at_most("MiB of the broker", sampler.rss_bytes >> 20, 256)
    return report


if __name__ == "__main__":
    main(attack)
