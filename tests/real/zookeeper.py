"""An ensemble of three ZooKeeper servers, processes of Debian's package on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import ZooKeeperQuorum

JAR = Path("/usr/share/java/zookeeper.jar")
#: What its servers find beside it.
LOG = Path("/usr/share/java/slf4j-nop.jar")
TICK_S = 0.2
#: The longest session that such servers allow is 20 ticks.
SESSION_S = 3.0


def missing() -> str | None:
    """Why there can be no ensemble here; None: there can."""
    if shutil.which("java") is None:
        return "java is not installed (Debian: openjdk-17-jre-headless)"
    return None if JAR.exists() else "the servers are not installed (Debian: zookeeper)"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Member:
    """One server of the ensemble."""

    def __init__(self, number: int, place: Path, ports: list[tuple[int, int, int]]) -> None:
        self._place = place / f"member-{number}"
        self._place.mkdir()
        self.port = ports[number][0]
        (self._place / "myid").write_text(f"{number + 1}\n")
        servers = [f"server.{one + 1}=127.0.0.1:{quorum}:{election}" for one, (_, quorum, election) in enumerate(ports)]
        lines = [
            f"tickTime={round(TICK_S * 1000)}",
            # Starting takes long on a busy machine.
            "initLimit=100",
            "syncLimit=15",
            f"dataDir={self._place}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "maxClientCnxns=0",
            *servers,
        ]
        (self._place / "zoo.cfg").write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A virtual machine for little work: it starts sooner, and takes less of the processor.
        java = ["java", "-Xmx128m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classes = f"{JAR}:{LOG}"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [*java, "-cp", classes, main, str(self._place / "zoo.cfg")]
        output = (self._place / "output").open("wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        output.close()

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def mode(self) -> str:
        """``leader`` or ``follower``; empty: it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as asked:
                asked.sendall(b"srvr")
                text = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.removeprefix("Mode: ") for line in text.splitlines() if line.startswith("Mode: ")), "")


class ZooKeeperEnsemble:
    """Three servers, and sessions at them."""

    def __init__(self, place: Path) -> None:
        ports = free_ports(9)
        by_member = [(ports[3 * one], ports[3 * one + 1], ports[3 * one + 2]) for one in range(3)]
        self.members = [Member(number, place, by_member) for number in range(3)]

    async def serves(self, members: int = 3) -> None:
        """Wait until so many members serve, one of them as the leader."""
        with trio.fail_after(60.0):
            while True:
                modes = [member.mode() for member in self.members if member.process is not None]
                if "leader" in modes and sum(map(bool, modes)) >= members:
                    return
                await trio.sleep(0.05)

    def leader(self) -> Member:
        return next(member for member in self.members if member.process is not None and member.mode() == "leader")

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{member.port}" for member in self.members)

    def quorum(self, **settings: Any) -> ZooKeeperQuorum:
        given = {"session": SESSION_S, "retry_interval": 0.2, "connection_timeout": 5.0}
        return ZooKeeperQuorum(settings.pop("hosts", self.hosts), **given | settings)


@contextmanager
def zookeeper(place: Path) -> Iterator[ZooKeeperEnsemble]:
    """An ensemble that serves, and is gone after the block; a test is left out where there can be none."""
    if why := missing():
        pytest.skip(f"skipped: {why}")
    ensemble = ZooKeeperEnsemble(place)
    try:
        for member in ensemble.members:
            member.start()
        yield ensemble
    finally:
        for member in ensemble.members:
            member.stop()
