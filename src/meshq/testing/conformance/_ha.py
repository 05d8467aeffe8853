"""The conformance suite for ``abc.HAPolicy``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from meshq.abc import ActiveTerm, HAPolicy, NodeControl
from meshq.testing.conformance._assertions import expect

MakePolicies = Callable[[int], list[tuple[HAPolicy, NodeControl]]]

#: Seconds within which a role that is free is taken, and after which a role that is not free was not taken.
PATIENCE_S: Final = 60.0


async def check_ha_policy(make_policies: MakePolicies) -> None:
    """Check that policies of nodes that compete for one role keep the contract of ``meshq.abc.HAPolicy``.

    ``make_policies`` is called once for each check of ``HA_POLICY_CHECKS``, with a number of nodes; each node may be
    active when no other node is.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: the policies break a promise.
    """
    for check in HA_POLICY_CHECKS:
        await check(make_policies)


async def _becomes_active(policy: HAPolicy, control: NodeControl) -> bool:
    with trio.move_on_after(PATIENCE_S) as scope:
        async with policy.activation(control) as activation:
            expect(isinstance(await activation.wait(), ActiveTerm), "wait returns the term")
            await activation.release(failover=False)
    return not scope.cancelled_caught


async def _a_node_that_is_alone_becomes_active_again_and_again(make_policies: MakePolicies) -> None:
    [(policy, control)] = make_policies(1)
    with trio.move_on_after(PATIENCE_S) as scope:
        async with policy.activation(control) as activation:
            for _ in range(3):
                await activation.wait()
                await activation.release(failover=False)
    expect(not scope.cancelled_caught, "a node without competitors becomes active, also after it was active")


async def _no_two_nodes_are_active(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        await holder.wait()
        with trio.move_on_after(PATIENCE_S) as scope:
            await other.wait()
        expect(scope.cancelled_caught, "a node waits while another node is active")
        await holder.release(failover=True)
        with trio.move_on_after(PATIENCE_S) as scope:
            await other.wait()
        expect(not scope.cancelled_caught, "a node becomes active when the other one has released the role")


async def _leaving_the_block_gives_the_role_up(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder:
        await holder.wait()
    expect(await _becomes_active(second, at_second), "the role of a node whose block was left is free")


async def _a_cancelled_wait_has_no_role(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        with trio.CancelScope() as scope:
            scope.cancel()
            await holder.wait()
        expect(scope.cancelled_caught, "wait is a checkpoint")
        with trio.move_on_after(PATIENCE_S) as scope:
            await other.wait()
        expect(not scope.cancelled_caught, "a node whose wait was cancelled does not have the role")
        with trio.move_on_after(PATIENCE_S) as scope:
            await holder.wait()
        expect(scope.cancelled_caught, "a wait may be cancelled while another node is active")
        await other.release(failover=False)
        with trio.move_on_after(PATIENCE_S) as scope:
            await holder.wait()
        expect(not scope.cancelled_caught, "a node whose wait was cancelled may wait again")


async def _a_role_is_kept_until_there_is_a_reason(make_policies: MakePolicies) -> None:
    [(policy, control)] = make_policies(1)
    async with policy.activation(control) as activation:
        await activation.wait()
        for _ in range(2):
            with trio.move_on_after(PATIENCE_S) as scope:
                await activation.lost()
            expect(scope.cancelled_caught, "a node whose role nobody wants keeps it; a cancelled lost may be repeated")


#: Every check of the suite, each of which makes policies of its own.
HA_POLICY_CHECKS: Final[tuple[Callable[[MakePolicies], Awaitable[None]], ...]] = (
    _a_node_that_is_alone_becomes_active_again_and_again,
    _no_two_nodes_are_active,
    _leaving_the_block_gives_the_role_up,
    _a_cancelled_wait_has_no_role,
    _a_role_is_kept_until_there_is_a_reason,
)
