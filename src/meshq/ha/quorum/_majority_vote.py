"""The settings of the classic vote, in which other nodes that serve are asked."""

from __future__ import annotations

import math
from typing import Any, Final

import attrs

from meshq.errors import SettingsError
from meshq.ha.quorum._vote_machine import Vote, VoteSchedule
from meshq.settings import in_range

#: More nodes than any cluster has.
SIZE_MAX: Final = 1_000
WAIT_S: Final = (0.001, 86_400.0)
#: Below, a round trip ends the lease; above, a takeover waits for an hour.
LEASE_S: Final = (0.05, 3_600.0)


def _size(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= SIZE_MAX):
        raise SettingsError(attribute.name, value, f"a whole number from 1 to {SIZE_MAX}, or left out (None)")


@attrs.frozen(kw_only=True)
class MajorityVote:
    """The classic vote: a node that has lost its partner asks the other nodes of the cluster that serve.

    ``size``: None: more than half of the others that are known have to say yes, and nobody when there are no others.
    A number: the size of the cluster, the pair counted once; more than half of it have to say yes (one for 1 and 2,
    which ask nobody where nobody is known), if that is more than half of the others.  ``vote_retries``: so many votes
    follow a first one that was lost; ``inf``: until one is won.
    ``vote_retry_wait``: seconds between two votes.  ``quorum_vote_wait``: seconds after which a vote is cut.
    ``lease``: seconds for which a node acts after other nodes have agreed to it.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    size: int | None = attrs.field(default=None, validator=_size)
    vote_retries: float = attrs.field(default=12, validator=in_range(0, math.inf, whole=True))
    vote_retry_wait: float = attrs.field(default=5.0, validator=in_range(*WAIT_S))
    quorum_vote_wait: float = attrs.field(default=30.0, validator=in_range(*WAIT_S))
    lease: float = attrs.field(default=0.5, validator=in_range(*LEASE_S))

    def vote(self, *, others: int) -> Vote:
        """Begin a vote of ``others`` nodes.

        Raises:
            SettingsError: ``others`` isn't a number of nodes.
        """
        if type(others) is not int or not 0 <= others <= SIZE_MAX:
            raise SettingsError("others", others, f"a whole number from 0 to {SIZE_MAX}")
        return Vote(self._needed(others), others)

    def schedule(self, *, now: float) -> VoteSchedule:
        """The times of the votes about a loss that was noticed at ``now``: the first one is due at once."""
        return VoteSchedule(self.vote_retries, self.vote_retry_wait, self.quorum_vote_wait, now)

    def _needed(self, others: int) -> int:
        if self.size is None:
            return others // 2 + 1 if others else 0
        return self.size // 2 + (0 if self.size <= 2 else 1)
