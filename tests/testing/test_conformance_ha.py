"""A role in memory keeps the promises of a policy for high availability."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from meshq.abc import Activation, ActiveTerm, HAPolicy, NodeControl, StepBack
from meshq.env import real_env
from meshq.testing import HA_POLICY_CHECKS, MakePolicies, MemoryRole, NonconformanceError, check_ha_policy
from meshq.testing._ha import MemoryActivation

ID = bytes(16)


def control(name: str) -> NodeControl:
    return NodeControl(name=name, node_id=ID, instance=ID, store=ID, connectors={}, env=real_env())


def competitors(number: int) -> list[tuple[HAPolicy, NodeControl]]:
    role = MemoryRole()
    return [(role.policy(), control(f"n{index}")) for index in range(number)]


@pytest.mark.parametrize("check", HA_POLICY_CHECKS)
async def test_a_role_in_memory_conforms(check: Callable[[MakePolicies], Awaitable[None]]) -> None:
    await check(competitors)


async def test_nodes_that_are_all_active_do_not_conform() -> None:
    def alone(number: int) -> list[tuple[HAPolicy, NodeControl]]:
        return [one for _ in range(number) for one in competitors(1)]

    with pytest.raises(NonconformanceError, match="a node waits while another node is active"):
        await check_ha_policy(alone)


class Stuck(HAPolicy):
    """A policy that does not give up the role when its block is left."""

    wait_for_activation = True

    def __init__(self, role: MemoryRole) -> None:
        self._role = role

    @asynccontextmanager
    async def activation(self, control: NodeControl) -> AsyncIterator[Activation]:  # type: ignore[override]
        yield MemoryActivation(self._role, control.name)


async def test_a_policy_that_keeps_the_role_of_a_node_that_is_gone_does_not_conform() -> None:
    def stuck(number: int) -> list[tuple[HAPolicy, NodeControl]]:
        role = MemoryRole()
        return [(Stuck(role), control(f"n{index}")) for index in range(number)]

    with pytest.raises(NonconformanceError, match="the role of a node whose block was left is free"):
        await check_ha_policy(stuck)


class Faulty(HAPolicy):
    """A policy in memory whose activations are of another class."""

    wait_for_activation = True

    def __init__(self, role: MemoryRole, kind: type[MemoryActivation]) -> None:
        self._role = role
        self._kind = kind

    @asynccontextmanager
    async def activation(self, control: NodeControl) -> AsyncIterator[Activation]:  # type: ignore[override]
        activation = self._kind(self._role, control.name)
        try:
            yield activation
        finally:
            activation.leave()


class KeepsAfterCancelledWait(MemoryActivation):
    async def wait(self) -> ActiveTerm:
        term = await super().wait()
        await trio.sleep(1)
        return term


class KeepsAfterCancelledRelease(MemoryActivation):
    async def release(self, *, failover: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.leave()


class NoCheckpointInRelease(MemoryActivation):
    async def release(self, *, failover: bool) -> None:
        self.leave()


class GivesUpAfterCancelledLost(MemoryActivation):
    async def lost(self) -> StepBack:
        try:
            return await super().lost()
        finally:
            self.leave()


class ShieldedWait(MemoryActivation):
    async def wait(self) -> ActiveTerm:
        with trio.CancelScope(shield=True):
            term = await super().wait()
        await trio.lowlevel.checkpoint()
        return term


class NumberAsDirectory(MemoryActivation):
    async def wait(self) -> ActiveTerm:
        await super().wait()
        return ActiveTerm(data_dir=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (KeepsAfterCancelledWait, "a node whose wait was cancelled at any checkpoint has no role"),
        (KeepsAfterCancelledRelease, "the role is given up also by a release that is cancelled"),
        (NoCheckpointInRelease, "release is a checkpoint"),
        (GivesUpAfterCancelledLost, "a node whose lost was cancelled keeps the role"),
        (ShieldedWait, "a wait that is cancelled ends"),
        (NumberAsDirectory, "data_dir of a term is a str or None"),
    ],
)
async def test_an_activation_with_a_fault_does_not_conform(kind: type[MemoryActivation], promise: str) -> None:
    def faulty(number: int) -> list[tuple[HAPolicy, NodeControl]]:
        role = MemoryRole()
        return [(Faulty(role, kind), control(f"n{index}")) for index in range(number)]

    with pytest.raises(NonconformanceError, match=promise):
        await check_ha_policy(faulty)


async def test_a_policy_without_its_setting_does_not_conform() -> None:
    class NoSetting(Faulty):
        @property
        def wait_for_activation(self) -> bool:  # type: ignore[override]
            raise AttributeError("wait_for_activation")

    def without_setting(number: int) -> list[tuple[HAPolicy, NodeControl]]:
        role = MemoryRole()
        return [(NoSetting(role, MemoryActivation), control(f"n{index}")) for index in range(number)]

    with pytest.raises(NonconformanceError, match="wait_for_activation is True or False"):
        await check_ha_policy(without_setting)
