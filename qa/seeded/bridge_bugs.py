"""Seeded bugs of bridges, for the simulation of a mesh."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

BRIDGE_BUGS: Final = (
    Bug(
        name="count what a bridge's target refuses as delivered",
        function="meshq.broker:SessionConsumers.settle",
        old="counted=not frame.flags & FLAG_UNCOUNTED",
        new="counted=True",
        checkers=("B1",),
        mesh=True,
    ),
    Bug(
        name="let a bridge's target judge the sender's duplicate id",
        function="meshq.client:OnwardRuns._rows",
        old="(found[0], ids[row], found[2], found[3])",
        new="(found[0], view.duplicate_id(at) or ids[row], found[2], found[3])",
        checkers=("Q1",),
        mesh=True,
    ),
    Bug(
        name="carry what is sent again under another id",
        function="meshq.bridge:Forwarder._ids",
        old="identify.among(span.run.header, span.start, span.rows)",
        new="[one + b'%d' % span.run.first for one in identify.among(span.run.header, span.start, span.rows)]",
        checkers=("Q4", "Q5"),
        mesh=True,
    ),
    Bug(
        name="acknowledge what a bridge's target has refused",
        function="meshq.bridge:Forwarder._refusals",
        old="    indexes = [index for index, error in enumerate(results) if error is not None]\n",
        new="    self._done += piece.places\n    indexes: list[int] = []\n",
        checkers=("Q1",),
        mesh=True,
    ),
    Bug(
        name="lose the sender's duplicate id on a bridge",
        function="meshq.bridge:message_of",
        old="        duplicate_id=delivery.duplicate_id,\n",
        new="",
        checkers=("B2",),
        mesh=True,
    ),
)
