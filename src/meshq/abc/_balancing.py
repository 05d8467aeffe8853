"""The choice of one of several targets: of a node for a client's connection, or of a broker to redirect a client to."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence

import attrs

from meshq.errors import SettingsError


@attrs.frozen(kw_only=True)
class BalancerTarget:
    """A broker that a policy may choose.

    ``url``: where it is reached, without options.  ``node_id``: its id, hexadecimal; empty: it is not known yet.
    ``local``: it is the broker that asks; never so for a client.  ``connections``: of clients, those under way to it
    included, as far as a balancer knows; 0 for a client.  Targets that differ in nothing else are equal.
    """

    url: str
    node_id: str = ""
    local: bool = False
    connections: int = attrs.field(default=0, eq=False)


class BalancerPolicy(ABC):
    """The choice of one of several targets.

    A policy may remember what it has chosen: each client factory and each balancer has a copy of its own.  The clients
    of a factory for threads may ask at the same time.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return one of the targets; None: none of them, and a client tries again later as its settings say.

        Asked at each connection, and when a connection is lost: the targets come and go.  They have the same order for
        all who know the same targets.  Without a wait: all other connections stand still meanwhile.

        ``targets``: each once.  ``key``: what is known of the client; of a factory, its ``client_id``, or nothing.
        """

    def begin(self, chance: int) -> BalancerPolicy:
        """Return a copy with a state of its own, for one factory or balancer.

        ``chance``: 64 bits by chance, for policies that choose by chance; the same bits lead to the same choices.

        Raises:
            SettingsError: it holds what can't be copied, a lock for instance, and has no ``begin`` of its own.
        """
        try:
            return copy.deepcopy(self)
        except (TypeError, copy.Error) as error:
            allowed = f"a policy that can be copied, or has a begin() that returns a new one ({error})"
            raise SettingsError("load_balancing", type(self).__name__, allowed) from error
