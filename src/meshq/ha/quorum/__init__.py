"""Quorums: votes of other nodes, and providers that decide which node serves for a node id."""

from meshq.ha.quorum._claim import carry_out, claim
from meshq.ha.quorum._claim_plan import Claim, NoClaim, decide_claim, node_id_of, with_replica, without_replica
from meshq.ha.quorum._held_lock import RENEWALS, HeldLock
from meshq.ha.quorum._majority_vote import MajorityVote
from meshq.ha.quorum._safe_session import SafeSession, typed_errors
from meshq.ha.quorum._session_block import RunningSession, SessionBlock
from meshq.ha.quorum._vote_machine import Vote, VoteSchedule

__all__ = [
    "RENEWALS",
    "Claim",
    "HeldLock",
    "MajorityVote",
    "NoClaim",
    "RunningSession",
    "SafeSession",
    "SessionBlock",
    "Vote",
    "VoteSchedule",
    "carry_out",
    "claim",
    "decide_claim",
    "node_id_of",
    "typed_errors",
    "with_replica",
    "without_replica",
]
