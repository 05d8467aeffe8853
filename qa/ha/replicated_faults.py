"""The faults of a simulated pair by replication: drawn one after the other, each of one node."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from meshq import Broker, MeshqError
from meshq.testing import SimNode
from meshq.testing._threads import SimThreads

if TYPE_CHECKING:
    from qa.ha.replicated import ReplicaMember, ReplicatedStage

#: Silence after which a link is given up, and the time of a slow replica.
TTL_S: Final = 3.0
SLOW_S: Final = 1.5
#: The longest time for which a call of a disk that hangs takes, each way.
HANG_S: Final = 6.0
#: The faults, by the weights with which they are drawn.
FAULTS: Final = {
    "kill": 5,
    "power": 3,
    "pause": 3,
    "stall": 3,
    "slow_replica": 3,
    "fail_over": 3,
    "stop": 2,
    "disk": 4,
    "hang": 2,
    "full": 1,
    "cut": 2,
    "clock": 2,
}
#: Of these a node may die.
DEADLY: Final = ("kill", "power", "stop", "disk", "full")
DISK_CALLS: Final = ("open", "write", "sync", "replace", "move_directory", "sync_directory", "read")
DISK_ERRORS_MAX: Final = 3
CLIENTS: Final = ("client-0", "client-1", "client-2", "client-3", "client-4", "loose")

Stage = TypeVar("Stage", bound="ReplicatedStage")
Fault = Callable[[Stage, "ReplicaMember"], Awaitable[None]]


async def draw_faults(stage: Stage, pause_s: tuple[float, float], own: Mapping[str, Fault[Stage]]) -> None:
    """Make one fault after the other, until cancelled, with a pause before each.

    ``own``: how the faults are made that are not those of one node.
    """
    rng, kinds = stage.rng, list(stage.faults)
    while True:
        await trio.sleep(rng.uniform(*pause_s))
        for member in stage.members:
            if member.down and rng.random() < 0.6:
                member.start()
            stage.look_at(member)
        active = [one for one in stage.members if one.active]
        member = rng.choice(active if active and rng.random() < 0.7 else stage.members)
        (kind,) = rng.choices(kinds, list(stage.faults.values()))
        if not stage.allows(member, kind):
            continue
        stage.simulation.swarm.count(f"fault.{kind}")
        stage.notes.note(f"{kind} of {member.name}")
        make = own.get(kind)
        await (carry_out_fault(stage, member, kind) if make is None else make(stage, member))


async def both_down(stage: ReplicatedStage, member: ReplicaMember, apart_s: tuple[float, float]) -> None:
    """Kill both, the one a little after the other, and start them in any order.

    ``apart_s``: at most so far apart they are killed, and started.
    """
    rng = stage.rng
    for one in (member, stage.other(member)):
        one.machine.power_off() if rng.random() < 0.4 else one.machine.kill()
        one.down = True
        await trio.sleep(rng.choice((0.0, rng.uniform(0.0, apart_s[0]))))
    for one in rng.sample(stage.members, 2):
        one.start()
        await trio.sleep(rng.choice((0.0, rng.uniform(0.0, apart_s[1]))))


async def carry_out_fault(stage: ReplicatedStage, member: ReplicaMember, kind: str) -> None:
    """Make one fault, and wait until it is over."""
    rng, machine, broker = stage.rng, member.machine, member.broker
    if kind in ("kill", "power"):
        machine.kill() if kind == "kill" else machine.power_off()
        member.down = True
        await trio.sleep(rng.uniform(0.0, 5.0))
        member.start()
    elif kind == "pause":
        # Shorter than the silence after which the other one takes over: nobody else could be asked.
        machine.pause()
        await trio.sleep(rng.uniform(0.05, TTL_S / 3))
        machine.resume()
    elif kind == "stall":
        # Longer than that silence: it goes on as if nothing had been, and the other one may serve.
        machine.pause()
        await trio.sleep(TTL_S + rng.uniform(0.6, 3.0))
        machine.resume()
    elif kind == "slow_replica":
        replica = next((one for one in stage.members if one.up and not one.active), None)
        if replica is not None and stage.other(replica).active:
            replica.machine.pause()
            await trio.sleep(rng.uniform(SLOW_S / 2, 2 * TTL_S))
            replica.machine.resume()
    elif kind == "disk":
        machine.disk.faults.inject(rng.choice(DISK_CALLS), times=rng.randint(1, DISK_ERRORS_MAX))
    elif kind == "hang":
        await _hang(stage, machine)
    elif kind == "full":
        machine.disk.capacity_bytes = 0
        await trio.sleep(rng.uniform(0.5, 2.0))
        machine.disk.capacity_bytes = math.inf
    elif kind == "cut":
        client = rng.choice(CLIENTS)
        stage.cut(member.name, client)
        await trio.sleep(rng.uniform(0.2, 3.0))
        stage.heal()
    elif kind == "clock":
        machine.wall.offset_s += rng.uniform(-3_600, 3_600)
    elif broker is not None and member.active:
        machine.spawn(_operate, stage, broker, kind, rng.random() < 0.3)
        await trio.sleep(rng.uniform(0.0, 2.0))


async def _hang(stage: ReplicatedStage, machine: SimNode) -> None:
    """Let each call that the disk gets for a while take long, or not, and wait until most of them are over."""
    threads, rng = machine.env.threads, stage.rng
    assert isinstance(threads, SimThreads)
    before, threads.wait_s_max = threads.wait_s_max, HANG_S
    try:
        await trio.sleep(rng.uniform(0.1, HANG_S / 2))
    finally:
        threads.wait_s_max = before
    await trio.sleep(rng.uniform(0.0, HANG_S))


async def _operate(stage: ReplicatedStage, broker: Broker, kind: str, force: bool) -> None:
    """Do as an operator does."""
    try:
        if kind == "stop":
            await broker.stop()
        else:
            await broker.ha.fail_over(force=force)
    except MeshqError as error:
        stage.notes.note(f"{kind}: {error}")
