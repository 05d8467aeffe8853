"""The block in which a node takes part in replication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from meshq.abc import Activation, NodeControl, QuorumProvider
from meshq.errors import MeshqError
from meshq.ha.replication._pair_activation import ReplicationActivation
from meshq.ha.replication._quorum_activation import QuorumActivation
from meshq.ha.replication._reach import Reach
from meshq.ha.replication._replication_rules import ReplicationRules


@asynccontextmanager
async def joined(rules: ReplicationRules, control: NodeControl, root: str) -> AsyncIterator[Activation]:
    """Take part, with the tasks of a node that follows and of one that is followed."""
    reach = Reach.of(control, rules.cluster_name, rules.hosted)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        activation: ReplicationActivation | QuorumActivation = (
            QuorumActivation(rules, control, reach, root, nursery)
            if isinstance(rules.quorum, QuorumProvider)
            else ReplicationActivation(rules, control, reach, root, nursery)
        )
        try:
            await activation.enter()
            yield activation
        except (MeshqError, OSError) as error:
            # It leaves the block as it was raised, in no group.
            failure = error
        finally:
            nursery.cancel_scope.cancel()
            activation.leave()
    if failure is not None:
        raise failure
