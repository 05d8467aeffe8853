"""Seeded bugs of high availability, for the simulations of pairs: with one store, by replication, with votes, with a
quorum, and colocated."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

#: What pairs of every kind promise of messages, of roles, and that somebody serves.
_MESSAGES: Final = ("H1", "H2")
_ROLES: Final = ("H1", "H2", "H3")
_ALL: Final = ("H1", "H2", "H3", "H4", "H6")

#: Two or three nodes with one store.
STORE_BUGS: Final = (
    Bug(
        name="act after the lease",
        function="meshq.ha:StoreTerm.may_act",
        old="self.lease.holds(trio.current_time()) and",
        new="",
        checkers=_ROLES,
        stage="ha",
    ),
    Bug(
        name="sync in whatever epoch it is",
        function="meshq.ha:FencedFile.sync",
        old="    self._fence.check()\n",
        new="",
        checkers=_ROLES,
        stage="ha",
    ),
    Bug(
        name="unlink under a successor, in the directory of the epoch before",
        function="meshq.ha:SharedDirectory.begin",
        old="    if plan.rename:\n",
        new="    if plan.rename:\n        return Epoch(number=plan.rename, directory=f'{root}/epoch-{plan.rename}')\n",
        checkers=_ROLES,
        stage="ha",
    ),
)

#: A node and its replica.
REPLICA_BUGS: Final = (
    Bug(
        name="confirm before the replica",
        function="meshq.ha.replication:Replicator.durable",
        old="reached = max(self._floor, self._has) if self.waits else self.placed",
        new="reached = self.placed",
        checkers=_MESSAGES,
        stage="pair",
    ),
    Bug(
        name="drop the tail of the catch-up",
        function="meshq.ha.replication:Feeder._catch_up",
        old="within(await source.read(segment.number), upto)",
        new="within(await source.read(segment.number), upto)[:-1]",
        checkers=_ALL,
        stage="pair",
    ),
    Bug(
        name="apply a record twice",
        function="meshq.ha.replication:Follower._take_batch",
        old="        self._journal.log.follow(followed(batch))\n",
        new="        self._journal.log.follow(followed(batch))\n        self._journal.log.follow(followed(batch))\n",
        checkers=_ALL,
        stage="pair",
    ),
)

#: A pair, and nodes that vote about it.
VOTE_BUGS: Final = (
    Bug(
        name="confirm alone before others let this node",
        function="meshq.ha.replication:ActingSide._over",
        old="settle = self._note_left if known else self._settle_by_votes",
        new="settle = self._note_left",
        checkers=_ALL,
        stage="voted",
    ),
)

ROLE_BUGS: Final = (*STORE_BUGS, *REPLICA_BUGS, *VOTE_BUGS)
