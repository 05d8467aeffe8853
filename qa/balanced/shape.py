"""The balancers of a seed: who has one, and how it chooses."""

from __future__ import annotations

from typing import Any, Final

from meshq.testing import Simulation

KINDS: Final = ("kill", "kill", "pause", "isolated", "apart", "reset", "stop", "front", "few")
#: What the seeds have to have met, each in at least one of them.
BALANCED_SIGHTS: Final = (
    "front",
    "symmetric",
    "consistent_hash",
    "round_robin",
    "least_connections",
    "first_element",
    "no_cache",
    "kept_local",
    "redirected",
    "moved",
    "quorum_lost",
    "quorum_regained",
)
TARGETS: Final = tuple(f"n{number}" for number in range(5))
FRONT: Final = "front"
POLICIES: Final = ("consistent_hash", "round_robin", "least_connections", "first_element")
#: Keys of which the clients stay at the front, or go to any broker where all balance each other.
LOCAL: Final = "^ops.*"
CHECK_S: Final = 1.0
QUORUM_S: Final = 1.0
#: Where clients come, and where brokers are probed.
CLIENT_PORT: Final = 5_001
PORT: Final = 5_000


class BalancedShape:
    """The settings of a seed."""

    def __init__(self, simulation: Simulation) -> None:
        seed, count = simulation.swarm.seed, simulation.swarm.count
        # Not drawn: so a few seeds in a row have all of them, each with each.
        self.symmetric: bool = seed % 5 > 2
        self.policy: str = POLICIES[seed % len(POLICIES)]
        self.cached: bool = seed // len(POLICIES) % 2 == 1
        self.quorum: int = 1 + seed % 3
        self.names: tuple[str, ...] = TARGETS if self.symmetric else (*TARGETS, FRONT)
        #: The brokers that have a balancer, to which clients come first.
        self.fronts: tuple[str, ...] = TARGETS if self.symmetric else (FRONT,)
        for sight in BALANCED_SIGHTS:
            count(f"seen.{sight}", 0)
        for kind in KINDS:
            count(f"fault.{kind}", 0)
        count("seen.symmetric" if self.symmetric else "seen.front")
        count(f"seen.{self.policy}")
        count("seen.no_cache", int(not self.cached))

    @property
    def sticks(self) -> bool:
        """Whether a key has one target while all brokers are there, wherever it is asked for."""
        if self.cached:
            # Each balancer keeps what it chose while others were gone.
            return not self.symmetric
        return self.policy in ("consistent_hash", "first_element")

    def balancer(self) -> dict[str, Any]:
        """The settings of each balancer, but for its pool."""
        local = None if self.symmetric else LOCAL
        timeout = float("inf") if self.cached else 0.0
        return {
            "target_key": "client_id",
            "local_target_filter": local,
            "cache_timeout": timeout,
            "policy": self.policy,
        }
