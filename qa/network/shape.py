"""The networks of the seeds: brokers, connectors and faults."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from meshq import NetworkConnector
from meshq.testing import Simulation

#: What happens to links and brokers, and what may happen where messages may come twice, too.
KINDS: Final = ("reset", "cut", "stall")
KILLS: Final = ("kill", "restart", "rewire")
#: What the seeds have to have met, each in at least one of them.
NETWORK_SIGHTS: Final = (
    "chain",
    "star",
    "ring",
    "complete",
    "duplex",
    "pairs",
    "conduit",
    "filters",
    "near_first",
    "suppressed",
    "tight",
    "killed",
    "moved",
    "three_hops",
    "topics",
    "kept",
    "forwarded",
    "owed",
    "rewired",
    "advised",
    "many",
    "replay",
    "replay_of_some",
    "replayed",
    "replayed_in_peace",
    "brought_back",
    "dealt",
)
TOPOLOGIES: Final = ("chain", "star", "ring", "complete")
PORT: Final = 5_000
QUEUES: Final = ("q0", "q1", "q2")
#: Brokers of the largest networks.
MANY: Final = 10
#: The queue of which the messages are counted at the end.
LAST: Final = "last"
#: The queues of messages that nobody accepts, and of those that are left where nobody consumes any more.
REST: Final = "rest"
LEFT: Final = ("left", "left_and_kept")
#: The topic of the whole run, and the one of the end.
TOPIC: Final = "topic"
LAST_TOPIC: Final = "last_topic"
#: The topic with one durable subscription over all faults.
LASTING: Final = "lasting"
#: The name of subscriptions that stay.
KEPT: Final = "kept"


class NetworkShape:
    """The settings of a seed."""

    def __init__(self, simulation: Simulation) -> None:
        seed, count = simulation.swarm.seed, simulation.swarm.count
        # Not drawn: so a few seeds in a row have all of them, each with each.
        self.topology: str = TOPOLOGIES[seed % len(TOPOLOGIES)]
        self.duplex: bool = seed // 2 % 2 == 0
        self.conduit: bool = seed // 4 % 2 == 0
        self.near_first: bool = seed // 3 % 2 == 0
        self.suppress: bool = seed % 3 == 0
        #: Whether brokers are killed; then a message that was sent and not answered may come twice.
        self.kills: bool = seed // 5 % 2 == 1
        # Of 28 seeds in a row three have many, one in each topology but the complete graph: of that there are so many
        # ways that a seed would take a minute and not seconds.
        size = MANY if seed % 7 == 5 and self.topology != "complete" else 3 + seed % 3
        self.names: tuple[str, ...] = tuple(f"n{number}" for number in range(size))
        #: Whether messages may go no further than the shortest way to the broker that is farthest off.
        self.tight: bool = seed // 7 % 2 == 1
        #: Whether there is a cluster behind a broker, beside the network.
        self.deals: bool = seed % 4 == 2
        #: Which connectors have replay: "all", "some" or none.
        self.replay: str = {1: "all", 3: "all", 4: "some"}.get(seed % 5, "")
        for sight in NETWORK_SIGHTS:
            count(f"seen.{sight}", 0)
        for kind in (*KINDS, *KILLS):
            count(f"fault.{kind}", 0)
        count(f"seen.{self.topology}")
        count("seen.duplex" if self.duplex else "seen.pairs")
        count("seen.conduit" if self.conduit else "seen.filters")
        count("seen.near_first", int(self.near_first))
        count("seen.suppressed", int(self.suppress))
        count("seen.tight", int(self.tight))
        count("seen.replay", int(self.replay == "all"))
        count("seen.replay_of_some", int(self.replay == "some"))
        count("seen.many", int(len(self.names) == MANY))

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The pairs of brokers that are linked."""
        names = self.names
        if self.topology == "star":
            return tuple((name, names[0]) for name in names[1:])
        if self.topology == "complete":
            return tuple((one, other) for at, one in enumerate(names) for other in names[at + 1 :])
        chain = tuple(pairwise(names))
        return (*chain, (names[-1], names[0])) if self.topology == "ring" else chain

    @property
    def is_tree(self) -> bool:
        """Whether there is one way from each broker to each."""
        return self.topology in ("chain", "star")

    @property
    def free(self) -> bool:
        """Whether a message may go from wherever it is to each other broker, back or on."""
        return self.is_tree or not self.tight

    @property
    def ttl(self) -> int:
        """Over how many brokers a message may go."""
        last = len(self.names) - 1
        across = {"chain": last, "star": 2, "ring": len(self.names) // 2, "complete": 1}
        return across[self.topology] if self.tight else len(self.names)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The faults of the seed."""
        return (*KINDS, *KILLS) if self.kills else KINDS

    def connectors(self, name: str) -> list[NetworkConnector]:
        """The connectors of a broker, made anew for each of its lives."""
        others = [other for one, other in self.edges if one == name]
        if not self.duplex:
            others += [one for one, other in self.edges if other == name]
        settings: dict[str, Any] = {
            "network_ttl": self.ttl,
            "duplex": self.duplex,
            "conduit_subscriptions": self.conduit,
            "decrease_network_consumer_priority": self.near_first,
            "suppress_duplicate_queue_subscriptions": self.suppress,
            "prefetch": 20,
            "retry_interval": 0.2,
            "connection_ttl": 3,
            "check_period": 1,
        }
        return [
            NetworkConnector(f"to-{other}", f"static:({url(other)})", replay=self._has_replay(name, other), **settings)
            for other in others
        ]

    def _has_replay(self, name: str, other: str) -> bool:
        """Whether messages go back over a connector."""
        return self.replay == "all" or (self.replay == "some" and (name < other or self.duplex) and name != "n1")


def url(name: str) -> str:
    """Where a broker is reached."""
    return f"tcp://{name}:{PORT}?insecure=true"
