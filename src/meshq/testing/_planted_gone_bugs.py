"""Bugs that are planted in what becomes of nodes that are gone, to see whether the simulation of a mesh finds them."""

from __future__ import annotations

from typing import Final

from meshq.testing._planted_bug import Bug

GONE_BUGS: Final = (
    Bug(
        name="deal to a node that is gone as if it were there",
        file="broker/placing/_distribution_plan.py",
        old="    if member.gone or not member.consumers",
        new="    if not member.consumers",
        checkers=("M1",),
        mesh=True,
    ),
)
