"""The description of a seeded bug."""

from __future__ import annotations

from typing import Final

import attrs

#: The simulations of pairs.
ROLE_STAGES: Final = ("ha", "pair", "voted", "provided", "colocated")


@attrs.frozen(kw_only=True)
class Bug:
    """A change of one function for the worse, and the checkers that must find the change."""

    name: str
    #: A package and the qualified name of a function in it, as in ``meshq.broker:Session.close``.
    function: str
    #: A part of the function's source, moved to the left margin.
    old: str
    new: str
    checkers: tuple[str, ...]
    required: bool = False
    #: The bug is hunted with the mesh, not with a single broker.
    mesh: bool = False
    #: The simulation with which it is hunted, if it is neither of these.
    stage: str = ""
    #: A simulation of which the first seeds find it, where it takes the other one dozens; empty: there is none.
    soon: str = ""
    #: The seed of that simulation that found it last.
    soon_seed: int = 0

    @property
    def of_roles(self) -> bool:
        """Whether the bug is one of high availability, hunted with a simulation of pairs."""
        return self.stage in ROLE_STAGES
