"""A role in memory keeps the promises of a policy for high availability."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from meshq.abc import Activation, HAPolicy, NodeControl
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
