"""The demo of balancers: a front that only redirects, four targets as processes, and devices that find their broker."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from meshq.client import connect
from meshq.demo._parent import Parent
from meshq.demo._process import Child, DemoError
from meshq.demo._report_format import Ready, Report
from meshq.errors import SettingsError
from meshq.lb.balancer import BrokerBalancer, StaticPool
from meshq.node import Broker

TARGETS: Final = 4
#: The target that is killed.
KILLED: Final = "target-2"
DEVICES: Final = 2_000
DEVICES_MAX: Final = 100_000
#: Devices that connect at once.
AT_ONCE: Final = 50
#: Seconds in which processes start, and in which a balancer notices that one is gone.
PATIENCE_S: Final = 30.0
CHECK_S: Final = 0.5

Homes = dict[str, str]


async def run_target(parent: Parent, name: str) -> None:
    """Run a target until the parent says nothing more."""
    async with Broker(name, data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        await parent.say(Ready(url=broker.urls[0]))
        while await parent.hear() is not None:
            pass


@attrs.frozen(kw_only=True)
class Spread:
    """Where the devices were before a target was killed, and after that."""

    before: Homes
    after: Homes

    @property
    def moved(self) -> list[str]:
        """The devices that have another broker than before."""
        return [device for device, home in self.before.items() if self.after[device] != home]

    @property
    def differences(self) -> list[str]:
        """Sentences about devices that moved without need, or are at the broker that is gone; none if all is well."""
        theirs = {device for device, home in self.before.items() if home == KILLED}
        found = []
        if set(self.moved) != theirs:
            found.append(f"{len(set(self.moved) ^ theirs)} devices moved without need, or did not and had to")
        if KILLED in self.after.values():
            found.append(f"devices are at {KILLED}, which is gone")
        return found


class BalancedDemo:
    """The processes of the demo, and the broker in front of them."""

    def __init__(self, devices: int, nursery: trio.Nursery) -> None:
        self._devices = [f"device-{number}" for number in range(devices)]
        self._nursery = nursery
        self._urls: dict[str, str] = {}
        self.children: list[Child] = []

    async def run(self) -> Spread:
        """Carry the demo through.

        Checkpoint: always.  Cancellation: the processes are killed.
        Raises:
            DemoError: a process has ended, or is not ready in time.
        """
        for number in range(TARGETS):
            child = Child(f"target-{number + 1}", "target", f"target-{number + 1}")
            self.children.append(child)
            self._nursery.start_soon(child.attend, self._heard)
        await self._until("all targets have started", lambda: len(self._urls) == TARGETS)
        pool = StaticPool(list(self._urls.values()), check_period=CHECK_S, quorum_size=TARGETS - 1)
        balancer = BrokerBalancer("by-device", target_key="client_id", policy="consistent_hash", pool=pool)
        acceptors = ["tcp://127.0.0.1:0?redirect_to=by-device"]
        async with Broker("front", data_dir=None, acceptors=acceptors, services=[balancer]) as front:
            await self._until("all targets are ready", lambda: balancer.statistics().ready == TARGETS)
            before = await self._arrive(front.urls[0])
            next(child for child in self.children if child.name == KILLED).kill()
            await self._until("the balancer has noticed it", lambda: balancer.statistics().ready == TARGETS - 1)
            after = await self._arrive(front.urls[0])
        return Spread(before=before, after=after)

    def _heard(self, child: Child, report: Report) -> None:
        if isinstance(report, Ready):
            self._urls[child.name] = report.url

    async def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        with trio.move_on_after(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.05)
            return
        raise DemoError(f"it took more than {PATIENCE_S:g} s until {what}")

    async def _arrive(self, url: str) -> Homes:
        """Have all devices connect at the front, each for a message to a queue of its own."""
        homes: Homes = {}
        waiting = iter(self._devices)

        async def arrive() -> None:
            for device in waiting:
                async with connect(url, client_id=device, use_topology=False) as client:
                    await client.send(f"queue.{device}", b"42 umbrellas")
                    homes[device] = client.statistics().node_name

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(arrive)
        return homes


def table(spread: Spread) -> str:
    """Return the spread as a table."""
    before, after = Counter(spread.before.values()), Counter(spread.after.values())
    rows = [f"{'target':<10} {'devices':>8} {'after the kill':>15}"]
    for name in (f"target-{number}" for number in range(1, TARGETS + 1)):
        gone = "killed" if name == KILLED else f"{after[name]:,}"
        rows.append(f"{name:<10} {before[name]:>8,} {gone:>15}")
    rows.append(
        f"{len(spread.moved):,} of {len(spread.before):,} devices have moved: those of {KILLED}, and no others."
    )
    return "\n".join([*rows[:-1], *(spread.differences or rows[-1:])])


async def run_balanced(devices: int) -> Spread:
    """Run the demo; no process is left.

    Checkpoint: always.  Cancellation: the processes are killed.
    Raises: DemoError: it could not be carried through.
    """
    found: Spread | DemoError
    async with trio.open_nursery() as nursery:
        try:
            found = await BalancedDemo(devices, nursery).run()
        except DemoError as error:
            found = error
        nursery.cancel_scope.cancel()
    if isinstance(found, DemoError):
        raise found
    return found


def parse_devices(arguments: Sequence[str]) -> int:
    """Return how many devices a command line asks for.

    Raises:
        SettingsError: that is not allowed.
    """
    parser = argparse.ArgumentParser(prog="python -m meshq demo", allow_abbrev=False, description=__doc__)
    parser.add_argument("--balancer", action="store_true", required=True, help="show balancers")
    parser.add_argument("--devices", type=int, default=DEVICES, metavar="N", help=f"how many devices ({DEVICES:,})")
    devices: int = parser.parse_args(arguments).devices
    if not 1 <= devices <= DEVICES_MAX:
        raise SettingsError("devices", devices, f"a whole number from 1 to {DEVICES_MAX:,}")
    return devices
