"""Seeded bugs of the handling of nodes that are gone, for the simulation of a mesh."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

GONE_BUGS: Final = (
    Bug(
        name="deal to a node that is gone as if it were there",
        function="meshq.broker:_asks",
        old="    if member.gone or not member.consumers",
        new="    if not member.consumers",
        checkers=("M1",),
        mesh=True,
    ),
    Bug(
        name="look no more for a node that was given up",
        function="meshq.cluster:LinkKeeper._keep",
        old="            await peer.wait_for_call(settings.check_period)\n",
        new="            return\n",
        checkers=("Q14",),
        mesh=True,
    ),
    Bug(
        name="give back what waits for a node and keep it",
        function="meshq.broker:MessageMover._place",
        old="place_anew(moved, (queue, span.view.remote), gone)",
        new="place_anew(moved, (queue, span.view.remote), ())",
        checkers=("Q4", "Q5"),
        mesh=True,
    ),
)
