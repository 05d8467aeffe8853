"""The conformance suite for ``abc.HAPolicy``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
import trio.testing

from meshq.abc import Activation, ActiveTerm, HAPolicy, NodeControl
from meshq.testing.conformance._assertions import expect
from meshq.testing.conformance._cancelling import CHECKPOINTS_MAX, is_cancelled

MakePolicies = Callable[[int], list[tuple[HAPolicy, NodeControl]]]

#: Seconds within which a role that is free is taken, and after which a role that is not free was not taken.
PATIENCE_S: Final = 60.0


async def check_ha_policy(make_policies: MakePolicies) -> None:
    """Check that policies of nodes that compete for one role keep the contract of ``meshq.abc.HAPolicy``.

    ``make_policies`` is called once for each check of ``HA_POLICY_CHECKS``, with a number of nodes; each node may be
    active when no other node is.

    The suite notices a ``wait`` that ignores its cancellation until the node is active.  Any other call that ignores
    its cancellation and does not end can't be stopped, so the suite does not end either: give its run a time limit.

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
            await activation.wait()
            await activation.release(failover=False)
    return not scope.cancelled_caught


async def _gets_the_role(activation: Activation) -> bool:
    with trio.move_on_after(PATIENCE_S) as scope:
        await activation.wait()
    return not scope.cancelled_caught


async def _a_policy_has_its_setting_and_a_term_its_directory(make_policies: MakePolicies) -> None:
    [(policy, control)] = make_policies(1)
    setting = getattr(policy, "wait_for_activation", None)
    expect(isinstance(setting, bool), "wait_for_activation is True or False")
    async with policy.activation(control) as activation:
        term: object = await activation.wait()
        expect(isinstance(term, ActiveTerm), "wait returns the term")
        directory = getattr(term, "data_dir", None)
        expect(directory is None or isinstance(directory, str), "data_dir of a term is a str or None")
        await activation.release(failover=False)


async def _a_node_that_is_alone_becomes_active_again_and_again(make_policies: MakePolicies) -> None:
    [(policy, control)] = make_policies(1)
    with trio.move_on_after(PATIENCE_S) as scope:
        async with policy.activation(control) as activation:
            for _ in range(3):
                await activation.wait()
                await activation.release(failover=False)
    expect(not scope.cancelled_caught, "a node without competitors becomes active, also after it was active")


async def _a_cancelled_wait_ends(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    scope, ended = trio.CancelScope(), trio.Event()

    async def wait(activation: Activation) -> None:
        with scope:
            await activation.wait()
        ended.set()

    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        await holder.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, other)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            with trio.move_on_after(PATIENCE_S):
                await ended.wait()
            in_time = ended.is_set()
            # A wait that is shielded from the cancellation ends when the role is free.
            await holder.release(failover=False)
        expect(in_time, "a wait that is cancelled ends")


async def _no_two_nodes_are_active(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        await holder.wait()
        expect(not await _gets_the_role(other), "a node waits while another node is active")
        await holder.release(failover=True)
        expect(await _gets_the_role(other), "a node becomes active when the other one has released the role")


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
        expect(await _gets_the_role(other), "a node whose wait was cancelled does not have the role")
        expect(not await _gets_the_role(holder), "a wait may be cancelled while another node is active")
        await other.release(failover=False)
        expect(await _gets_the_role(holder), "a node whose wait was cancelled may wait again")


async def _a_wait_that_is_cancelled_later_has_no_role(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        for checkpoint in range(1, CHECKPOINTS_MAX):
            if not await is_cancelled(holder.wait, checkpoint=checkpoint):
                return
            expect(await _gets_the_role(other), "a node whose wait was cancelled at any checkpoint has no role")
            await other.release(failover=False)


async def _a_cancelled_release_gives_the_role_up(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        for checkpoint in range(CHECKPOINTS_MAX):
            await holder.wait()
            cancelled = await is_cancelled(partial(holder.release, failover=False), checkpoint=checkpoint)
            expect(await _gets_the_role(other), "the role is given up also by a release that is cancelled")
            await other.release(failover=False)
            expect(cancelled or checkpoint, "release is a checkpoint")
            if not cancelled:
                return


async def _a_cancelled_lost_keeps_the_role(make_policies: MakePolicies) -> None:
    (first, at_first), (second, at_second) = make_policies(2)
    async with first.activation(at_first) as holder, second.activation(at_second) as other:
        await holder.wait()
        for checkpoint in range(3):
            with trio.move_on_after(PATIENCE_S):
                await is_cancelled(holder.lost, checkpoint=checkpoint)
        expect(not await _gets_the_role(other), "a node whose lost was cancelled keeps the role")


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
    _a_policy_has_its_setting_and_a_term_its_directory,
    _a_node_that_is_alone_becomes_active_again_and_again,
    _a_cancelled_wait_ends,
    _no_two_nodes_are_active,
    _leaving_the_block_gives_the_role_up,
    _a_cancelled_wait_has_no_role,
    _a_wait_that_is_cancelled_later_has_no_role,
    _a_cancelled_release_gives_the_role_up,
    _a_cancelled_lost_keeps_the_role,
    _a_role_is_kept_until_there_is_a_reason,
)
