"""The bugs that are planted to see whether the simulation of a mesh finds them."""

from __future__ import annotations

from typing import Final

from qa.seeded.bridge_bugs import BRIDGE_BUGS
from qa.seeded.broker_bugs import BUGS
from qa.seeded.bug import Bug
from qa.seeded.gone_bugs import GONE_BUGS
from qa.seeded.pair_bugs import MESH_PAIR_BUGS

MESH_BUGS: Final = (
    Bug(
        name="lose a store-and-forward message at reconnect",
        file="node/_local_broker.py",
        old="            self._core.returner.abandon(consumer, None)\n",
        new="            given = [(tag, tag + span.rows - 1) for tag, span in consumer.unsettled()]\n"
        "            self._core.settler.settle(consumer, given)\n",
        checkers=("Q1",),
        mesh=True,
    ),
    Bug(
        name="forget the link's high mark at restart",
        file="broker/_recovery.py",
        old="        marks[link] = max(marks.get(link, 0), number)\n",
        new="        marks[link] = 0\n",
        checkers=("Q4", "Q5"),
        required=True,
        mesh=True,
    ),
    Bug(
        name="keep a stale binding after a snapshot",
        file="broker/ingress/_router.py",
        old="            if number not in fresh:\n",
        new="            if not fresh:\n",
        checkers=("Q1", "Q7"),
        mesh=True,
    ),
    Bug(
        name="accept what an old epoch confirms",
        file="cluster/_peer.py",
        old="        self._under_way.clear()\n",
        new="",
        checkers=("Q1", "RemoteProtocolError"),
        mesh=True,
    ),
    Bug(
        name="balance twice",
        file="broker/ingress/_ingress.py",
        old="        shares = [share for queue in targets for share in "
        "deal(run, [queue], rows, anycast=True, turn=0)]\n",
        new="        shares = shared(run, self._definitions.router.addresses[run.address], None, rows)\n",
        checkers=("Q4", "Q5", "Q7"),
        required=True,
        mesh=True,
    ),
    Bug(
        name="let a message overtake on the way to a peer's second queue",
        file="broker/ingress/_distribution_plan.py",
        old="        if index < 0 or any(newest[number] != index for number in remote):\n",
        new="        if index < 0:\n",
        checkers=("Q7",),
        mesh=True,
    ),
    Bug(
        name="let expire what another node may have",
        file="broker/settlement/_expiry.py",
        old="        return [row for row in rows if not _in_doubt(queue, view, row)]\n",
        new="        return rows\n",
        checkers=("Q14",),
        mesh=True,
    ),
    Bug(
        name="let a settled share stop behind its run",
        file="broker/settlement/_message_mover.py",
        old="taken.start, taken[-1] + 1, taken.step",
        new="taken.start, taken.stop, taken.step",
        checkers=("Q1",),
        mesh=True,
    ),
    *BRIDGE_BUGS,
    *GONE_BUGS,
    *MESH_PAIR_BUGS,
)
ALL_BUGS: Final = (*BUGS, *MESH_BUGS)
