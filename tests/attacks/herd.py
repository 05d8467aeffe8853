"""A herd: clients of one host, over TLS, whose broker is killed and restarted, all come back within their attempts.

``python -m tests.attacks.herd`` does it with 1,000 of them and writes the figures to ``docs/results/herd.json``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import trio

from meshq import Client, connect
from meshq.errors import MeshqError
from tests.attacks.kit import Report, Server, main, serving

#: Rounds of dialling that each client has, at the start and after a loss.
ATTEMPTS: Final = 60
#: Clients that connect at a time before the kill; the herd comes after it.
AT_A_TIME: Final = 32
DESCRIPTORS: Final = 4_096


class Herd:
    """Clients of one host, and what became of them."""

    def __init__(self, server: Server, size: int) -> None:
        self.back = 0
        self.dead: list[str] = []
        self._server = server
        self._size = size
        self._restarted = trio.Event()
        self._here = 0
        self._all_here = trio.Event()
        self._entrance = trio.CapacityLimiter(AT_A_TIME)

    async def run(self) -> None:
        """Connect them all, kill the broker, restart it, and wait for each."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._size):
                nursery.start_soon(self._one)
            await self._all_here.wait()
            self._server.kill()
            await trio.to_thread.run_sync(self._server.start)
            self._restarted.set()

    async def _one(self) -> None:
        client = connect(
            self._server.url,
            user="app",
            password="secret",
            tls=self._server.client_tls,
            initial_connect_attempts=ATTEMPTS,
            reconnect_attempts=ATTEMPTS,
            max_retry_interval=1.0,
            call_failover_timeout=120,
        )
        try:
            async with self._entrance:
                await client.__aenter__()
            await self._stay(client)
            self.back += 1
        except (MeshqError, ExceptionGroup) as error:
            self.dead.append(repr(error))
            self._all_here.set()

    async def _stay(self, client: Client) -> None:
        try:
            self._here += 1
            if self._here == self._size:
                self._all_here.set()
            await self._restarted.wait()
            await client.send("herd", b"back")
        finally:
            await client.__aexit__(None, None, None)


async def attack(folder: Path, size: int = 1_000, descriptors: int = DESCRIPTORS) -> Report:
    """A herd of ``size`` clients."""
    server = Server(folder, descriptors=descriptors, users={"app": "secret"}, tls=True)
    report = Report(f"a herd of {size} clients of one host over TLS, after a SIGKILL")
    async with serving(server) as sampler:
        herd = Herd(server, size)
        began = trio.current_time()
        await herd.run()
        report.at_least("times that there was no room for a connection", server.said().count("turned away"), 1)
        report.exactly("clients that are dead for good", len(herd.dead), 0)
        report.exactly("clients that came back and sent", herd.back, size)
        report.at_most("seconds", round(trio.current_time() - began, 1), 180)
        report.at_most("descriptors of the broker", sampler.descriptors, descriptors * 3 // 4 + 64)
        report.at_most("MiB of the broker", sampler.rss_bytes >> 20, 512)
    for reason in herd.dead[:3]:
        print(reason)
    return report


if __name__ == "__main__":
    main(partial(attack, size=1_000), kind="herd")
