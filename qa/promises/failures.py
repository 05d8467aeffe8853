"""The failures of a pair whose first node serves."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from qa.promises.pair import CLIENT, PromisePair

Failure = Callable[[PromisePair], Awaitable[None]]

#: A node stands still, or is cut off, for so long.
LONG_S: Final = 30.0
#: Within these seconds whoever takes over has done so.
SOON_S: Final = 12.0


async def crash(pair: PromisePair) -> None:
    """The process of the node that serves dies."""
    pair.a.kill()


async def power_loss_of_one(pair: PromisePair) -> None:
    """The machine of the node that serves loses its power."""
    pair.a.machine.power_off()


async def power_loss_of_all(pair: PromisePair) -> None:
    """All machines lose their power, and have it again."""
    for node in pair.nodes.values():
        node.machine.power_off()
    if pair.disk is not None:
        pair.disk.power_loss(pair.simulation.swarm.rng("power"))
    await trio.sleep(1)
    for node in pair.nodes.values():
        node.start()


async def disk_error(pair: PromisePair) -> None:
    """A sync of the disk fails at the node that serves."""
    pair.a.machine.disk.faults.inject("sync")


async def full_disk(pair: PromisePair) -> None:
    """The disk of the node that serves is full for a while."""
    pair.a.machine.disk.capacity_bytes = pair.a.machine.disk.used_bytes()
    await trio.sleep(LONG_S / 3)
    pair.a.machine.disk.capacity_bytes = math.inf


async def stop_of_30_s(pair: PromisePair) -> None:
    """The process of the node that serves is stopped, and goes on."""
    pair.a.machine.pause()
    await trio.sleep(LONG_S)
    pair.a.machine.resume()


async def full_partition(pair: PromisePair) -> None:
    """The node that serves is cut off from all other machines for a while."""
    for other in (CLIENT, "b", *pair.witnesses):
        pair.cut("a", other)
    await trio.sleep(LONG_S)
    pair.fabric.heal()


async def partial_partition(pair: PromisePair) -> None:
    """The two nodes do not reach each other, for a while, and clients reach both."""
    pair.cut("a", "b")
    await trio.sleep(LONG_S)
    pair.fabric.heal()


async def one_way_partition(pair: PromisePair) -> None:
    """Nothing goes from the node that serves to the other one, for a while."""
    pair.cut("a", "b", one_way=True)
    await trio.sleep(LONG_S)
    pair.fabric.heal()


async def flapping_partition(pair: PromisePair) -> None:
    """The two nodes reach each other now and then, for a while."""
    for _ in range(10):
        pair.cut("a", "b")
        await trio.sleep(1.5)
        pair.fabric.heal()
        await trio.sleep(1.5)


async def clock_jump(pair: PromisePair) -> None:
    """The time of day jumps, forth at one node and back at the other one."""
    for sign, node in zip((1, -1), pair.nodes.values(), strict=False):
        node.machine.wall.offset_s += sign * 86_400


async def witnesses_lost(pair: PromisePair) -> None:
    """Two of three witnesses are lost, and come back."""
    lost = list(pair.witnesses)[:2]
    for name in lost:
        pair.witnesses[name].kill()
    await trio.sleep(LONG_S)
    for name in lost:
        pair.start_witness(name)


async def both_lost(pair: PromisePair) -> None:
    """The node that serves is lost, and later the one that has taken over."""
    pair.a.kill()
    await trio.sleep(SOON_S)
    if pair.b is not None:
        pair.b.kill()


async def both_lost_backup_first(pair: PromisePair) -> None:
    """The other node is lost, and later the one that serves."""
    if pair.b is not None:
        pair.b.kill()
    await trio.sleep(SOON_S)
    pair.a.kill()
