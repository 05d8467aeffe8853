"""Seeded bugs of full addresses in a cluster, for the simulation of a mesh."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

LIMIT_BUGS: Final = (
    Bug(
        name="send what a full address at another node has given no credit for",
        function="meshq.broker:ForwardBranches._serve",
        old="        if not left and len(self._branches) < limits.LINK_BRANCHES_MAX:\n",
        new="        if not left and not credit.until:\n",
        checkers=("L6", "Q14"),
        mesh=True,
    ),
    Bug(
        name="give credit once more that was not used",
        function="meshq.broker:AddressQuota._grant",
        old="    credit.extend(credit.count + offer)\n",
        new="    credit.extend(credit.until + offer)\n",
        checkers=("L6",),
        mesh=True,
    ),
    Bug(
        name="keep the credit of a link whose session is over",
        function="meshq.broker:LinkCredits.end",
        old="    for channel in list(self._channels):\n        self.close(channel)\n",
        new="    self._channels.clear()\n",
        checkers=("L6",),
        mesh=True,
    ),
    Bug(
        name="forget the branches of links at restart",
        function="meshq.broker:Recovery._branch_table",
        old="    self._branches = records.decode_branches(payload)\n    if not self._branches.checkpoint:\n",
        new="    if not records.decode_branches(payload).checkpoint:\n",
        checkers=("Q1", "Q4", "Q5", "Q7"),
        mesh=True,
    ),
    Bug(
        name="drop what has no room without counting it",
        function="meshq.broker:ForwardedPlaces.bounded",
        old="        self._drop(quota, dropped)\n",
        new="        pass\n",
        checkers=("Q1", "Q14"),
        mesh=True,
    ),
)
