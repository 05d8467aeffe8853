"""A laboratory: machines, each in a network namespace of its own, on one switch, whose cables can be pulled.

``unshare -Urn python -m tests.real.laboratory DIRECTORY`` plays the scenario and prints what came of it; no packet
leaves the namespace in which it is started.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PORT = "9876"


def ip(command: str) -> None:
    """Run a command of ``ip``."""
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


class Machine:
    """A machine and its cable."""

    def __init__(self, number: int, name: str, directory: str) -> None:
        self._cable = f"cable{number}"
        arguments = [name, f"10.7.7.{number}", PORT, directory]
        self._process = subprocess.Popen(
            ["unshare", "-n", sys.executable, "-m", "tests.real.machine", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        ip(f"link add {self._cable} type veth peer name lan netns {self._process.pid}")
        ip(f"link set {self._cable} master switch up")
        self._say("begin")

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the machine of {self._cable} has ended"
        (value,) = json.loads(line).values()
        return value

    def serves(self) -> None:
        """Wait until the broker serves."""
        self._answer()

    def do(self, command: str) -> Any:
        """Have a command done, and return its answer."""
        self._say(command)
        return self._answer()

    def pull(self) -> None:
        """Pull the cable."""
        ip(f"link set {self._cable} down")

    def plug(self) -> None:
        """Plug it in again."""
        ip(f"link set {self._cable} up")

    def end(self) -> None:
        """End it in peace."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def kill(self) -> None:
        """Let nothing of it stay."""
        self._process.kill()
        self._process.wait()


def main(directory: str) -> None:
    """Three machines find each other; one is cut off while messages go to it; one leaves."""
    ip("link set lo up")
    ip("link add switch type bridge mcast_snooping 0")
    ip("link set switch up")
    machines: list[Machine] = []
    try:
        for number, name in enumerate("abc", 1):
            machines.append(Machine(number, name, directory))
        print(json.dumps(_play(*machines)))
    finally:
        for machine in machines:
            machine.kill()


def _play(a: Machine, b: Machine, c: Machine) -> dict[str, Any]:
    for machine in (a, b, c):
        machine.serves()
    for machine in (a, b, c):
        machine.do("wait 3")
    c.do("consume")
    a.do("wait 3 1")
    a.do("send 0 50")
    before = sorted(c.do("got 50"))
    c.pull()
    a.do("send 50 100")
    # It is known to be away by and by; until then what is for it waits.
    while "away" not in a.do("states"):
        pass
    c.plug()
    a.do("wait 3 1")
    after = sorted(c.do("got 100"))
    c.end()
    a.do("send 100 130")
    moved = a.do("leave")
    a.end()
    b.do("consume")
    left = sorted(b.do("got 30"))
    b.end()
    return {"before": before, "after": after, "moved": moved, "left": left}


if __name__ == "__main__":
    main(*sys.argv[1:])
