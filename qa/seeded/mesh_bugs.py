"""Seeded bugs of a mesh, and the list of all seeded bugs."""

from __future__ import annotations

from typing import Final

from qa.seeded.balancer_bugs import BALANCER_BUGS
from qa.seeded.bridge_bugs import BRIDGE_BUGS
from qa.seeded.broker_bugs import BUGS
from qa.seeded.bug import Bug
from qa.seeded.fanout_bugs import FANOUT_BUGS
from qa.seeded.gone_bugs import GONE_BUGS
from qa.seeded.grouping_bugs import GROUPING_BUGS
from qa.seeded.limit_bugs import LIMIT_BUGS
from qa.seeded.meeting_bugs import MEETING_BUGS
from qa.seeded.network_bugs import NETWORK_BUGS
from qa.seeded.pair_bugs import MESH_PAIR_BUGS
from qa.seeded.role_bugs import ROLE_BUGS
from qa.seeded.stage_bugs import STAGE_BUGS
from qa.seeded.topology_bugs import TOPOLOGY_BUGS

MESH_BUGS: Final = (
    Bug(
        name="lose a store-and-forward message at reconnect",
        function="meshq.node:ForwardQueue.detach",
        old="        self._core.redelivery.abandon(consumer, None)\n",
        new="        given = [(tag, tag + span.rows - 1) for tag, span in consumer.unsettled()]\n"
        "        self._core.acknowledger.settle(consumer, given)\n",
        checkers=("Q1",),
        mesh=True,
    ),
    Bug(
        name="forget the cluster link's high watermark at restart",
        function="meshq.broker:Recovery._raise_link",
        old="    marks[link] = max(marks.get(link, 0), number)\n",
        new="    marks[link] = 0\n",
        checkers=("Q4", "Q5"),
        required=True,
        mesh=True,
    ),
    Bug(
        name="keep a stale binding after a snapshot",
        function="meshq.broker:Router.replace",
        old="if number not in fresh and (gone",
        new="if not fresh and (gone",
        checkers=("Q1", "Q7"),
        mesh=True,
    ),
    Bug(
        name="accept what an old epoch confirms",
        function="meshq.cluster:Peer._let_go",
        old="    self._under_way.clear()\n",
        new="",
        checkers=("Q1", "RemoteProtocolError"),
        mesh=True,
    ),
    Bug(
        name="balance twice",
        function="meshq.broker:ForwardedPlaces.shares",
        old="found = [share for queue in targets for share in deal(run, [queue], rows, anycast=True, next_index=0)]\n",
        new="found = shared(run, self._router.addresses[run.address], None, rows)\n",
        checkers=("Q4", "Q5", "Q7"),
        required=True,
        mesh=True,
    ),
    Bug(
        name="let a message overtake on the way to a peer's second queue",
        function="meshq.broker:_shares_of_queue",
        old="        if index < 0 or any(newest[number] != index for number in remote):\n",
        new="        if index < 0:\n",
        checkers=("Q7",),
        mesh=True,
    ),
    Bug(
        name="let expire what another node may have",
        function="meshq.broker:Expiry._alone",
        old="    return [row for row in rows if not _in_doubt(queue, view, row)]\n",
        new="    return rows\n",
        checkers=("Q14",),
        mesh=True,
    ),
    Bug(
        name="let a settled share stop behind its run",
        function="meshq.broker:settled_row",
        old="taken.start, taken[-1] + 1, taken.step",
        new="taken.start, taken.stop, taken.step",
        checkers=("Q1",),
        mesh=True,
    ),
    *BALANCER_BUGS,
    *BRIDGE_BUGS,
    *GONE_BUGS,
    *GROUPING_BUGS,
    *LIMIT_BUGS,
    *NETWORK_BUGS,
    *FANOUT_BUGS,
    *TOPOLOGY_BUGS,
    *MESH_PAIR_BUGS,
    *STAGE_BUGS,
    *MEETING_BUGS,
)
ALL_BUGS: Final = (*BUGS, *MESH_BUGS, *ROLE_BUGS)
