"""The table of promises: a row for each policy and each failure, with the duties of an operator."""

from __future__ import annotations

from typing import Final

import attrs

from qa.ha import pair
from qa.ha.pair import Policies
from qa.promises import failures
from qa.promises.failures import Failure

NOTHING: Final = "nothing"
START: Final = "start the node again"


@attrs.frozen(kw_only=True)
class PromiseRow:
    """The outcome of a failure that a policy promises.

    ``serving``: the nodes that serve by themselves in the end.  ``within_s``: no time without service is longer, until
    then; None: there is no service before the operator has done something.  ``kept``: whether everything that was
    confirmed is there.  ``repair``: the nodes that are started by the operator, one after the other.
    ``holds`` and ``operator``: the same in words.
    """

    failure: Failure
    serving: tuple[str, ...]
    within_s: float | None
    holds: str
    kept: bool = True
    repair: tuple[str, ...] = ()
    operator: str = NOTHING


@attrs.frozen(kw_only=True)
class Section:
    """The rows of a policy.  ``name``: in the page and in tests."""

    name: str
    policies: Policies
    about: str
    rows: tuple[PromiseRow, ...]


NAMES: Final[dict[Failure, str]] = {
    failures.crash: "its process crashes",
    failures.power_loss_of_one: "its machine loses its power",
    failures.power_loss_of_all: "all machines lose their power, and have it again",
    failures.disk_error: "a sync of its disk fails",
    failures.full_disk: "its disk is full for 10 s",
    failures.stop_of_30_s: "its process stands still for 30 s (`SIGSTOP`, a machine that sleeps)",
    failures.full_partition: "it reaches nobody for 30 s",
    failures.partial_partition: "the two nodes do not reach each other for 30 s, and clients reach both",
    failures.one_way_partition: "nothing goes from it to the other node for 30 s",
    failures.flapping_partition: "the way between the nodes comes and goes, 1.5 s each, ten times",
    failures.clock_jump: "the times of day jump, one a day ahead and one a day back",
    failures.witnesses_lost: "two of three witnesses, or voters, are lost for 30 s",
    failures.both_lost: "it crashes, and then the node that took over",
    failures.both_lost_backup_first: "the other node crashes, and then it",
}

_ALONE: Final = Section(
    name="one node",
    policies=pair.alone,
    about="`LiveOnly()`, or no `ha` at all. What was confirmed is on its disk.",
    rows=(
        PromiseRow(
            failure=failures.crash, serving=(), within_s=None, holds="no service", repair=("a",), operator=START
        ),
        PromiseRow(
            failure=failures.power_loss_of_one,
            serving=(),
            within_s=None,
            holds="no service",
            repair=("a",),
            operator=START,
        ),
        PromiseRow(
            failure=failures.power_loss_of_all, serving=("a",), within_s=3.0, holds="it serves once it is started"
        ),
        PromiseRow(
            failure=failures.disk_error,
            serving=(),
            within_s=None,
            holds="no service: a node whose disk has failed confirms nothing more",
            repair=("a",),
            operator="mend the disk, and start the node again",
        ),
        PromiseRow(
            failure=failures.full_disk,
            serving=("a",),
            within_s=15.0,
            holds="sends wait or are refused until there is room, consumers go on",
            operator="make room",
        ),
        PromiseRow(
            failure=failures.stop_of_30_s,
            serving=("a",),
            within_s=32.0,
            holds="no service for so long, then it goes on",
        ),
        PromiseRow(
            failure=failures.full_partition,
            serving=("a",),
            within_s=34.0,
            holds="no service for so long, then it goes on",
        ),
        PromiseRow(failure=failures.clock_jump, serving=("a",), within_s=1.0, holds="it goes on"),
    ),
)

_SHARED: Final = Section(
    name="shared store",
    policies=pair.shared_store,
    about="`SharedStorePrimary` and `SharedStoreBackup`. There is one copy, on a disk that both reach; "
    "a lock and the epochs of the store see to it that one of them serves.",
    rows=(
        PromiseRow(failure=failures.crash, serving=("b",), within_s=1.0, holds="the other one serves at once"),
        PromiseRow(
            failure=failures.power_loss_of_one,
            serving=(),
            within_s=None,
            holds="no service as long as whoever keeps the lock of the store, such as a file server, "
            "does not know that the machine is gone",
            repair=("a",),
            operator="have the lock freed (`fence_command`, the lease of the file server), or start the machine again",
        ),
        PromiseRow(
            failure=failures.power_loss_of_all,
            serving=("a",),
            within_s=3.0,
            holds="the first one serves once both are started",
        ),
        PromiseRow(
            failure=failures.disk_error,
            serving=("b",),
            within_s=1.0,
            holds="the other one takes over; what the disk has lost is lost for both",
            operator="look at the disk",
        ),
        PromiseRow(
            failure=failures.full_disk,
            serving=("a",),
            within_s=25.0,
            holds="no service: the disk is full for both",
            operator="make room",
        ),
        PromiseRow(
            failure=failures.stop_of_30_s,
            serving=("a",),
            within_s=32.0,
            holds="no service: it still has the lock; when it goes on its lease is over, and it begins anew",
            operator="kill the node sooner, or give a `fence_command`",
        ),
        PromiseRow(
            failure=failures.full_partition,
            serving=("a",),
            within_s=34.0,
            holds="no service for so long: it has the lock, and clients do not reach it",
            operator="give `check_hosts`, so that it steps back by itself",
        ),
        PromiseRow(failure=failures.partial_partition, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(failure=failures.one_way_partition, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(failure=failures.flapping_partition, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(failure=failures.clock_jump, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(
            failure=failures.both_lost,
            serving=(),
            within_s=None,
            holds="no service",
            repair=("a",),
            operator="start any of them",
        ),
        PromiseRow(
            failure=failures.both_lost_backup_first,
            serving=(),
            within_s=None,
            holds="no service",
            repair=("b",),
            operator="start any of them",
        ),
    ),
)

_REPLICATION: Final = Section(
    name="replication, a pair alone",
    policies=pair.replication,
    about="`ReplicationPrimary(check_for_live_server=True)` and `ReplicationBackup`, which ask nobody else. "
    "What is confirmed is on both disks as long as the other node is in sync.",
    rows=(
        PromiseRow(failure=failures.crash, serving=("b",), within_s=1.0, holds="the other one serves at once"),
        PromiseRow(
            failure=failures.power_loss_of_one,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`",
        ),
        PromiseRow(
            failure=failures.power_loss_of_all,
            serving=("a",),
            within_s=4.0,
            holds="the one that served serves once both are started",
        ),
        PromiseRow(failure=failures.disk_error, serving=("b",), within_s=1.0, holds="the other one takes over"),
        PromiseRow(
            failure=failures.full_disk,
            serving=("a",),
            within_s=15.0,
            holds="sends wait or are refused until there is room",
            operator="make room",
        ),
        PromiseRow(
            failure=failures.stop_of_30_s,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`; when it goes on it finds that, and follows",
        ),
        PromiseRow(
            failure=failures.full_partition,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`; when they meet again it follows",
        ),
        PromiseRow(
            failure=failures.partial_partition,
            serving=("b",),
            within_s=8.0,
            kept=False,
            holds="**both serve** until they meet again; what the older one confirmed meanwhile is set aside "
            "with its store, as `oldreplica.N`",
            operator="give the pair a third party to ask, or look into the store that was set aside",
        ),
        PromiseRow(
            failure=failures.one_way_partition,
            serving=("b",),
            within_s=8.0,
            kept=False,
            holds="as above: **both serve**",
            operator="as above",
        ),
        PromiseRow(
            failure=failures.flapping_partition,
            serving=("a",),
            within_s=8.0,
            holds="it goes on: no silence is as long as `connection_ttl`, and the other one is in sync again "
            "in the end",
        ),
        PromiseRow(failure=failures.clock_jump, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(
            failure=failures.both_lost,
            serving=(),
            within_s=None,
            holds="no service; started alone, the node that was lost **first** would serve an old copy",
            repair=("b", "a"),
            operator="start the node that served last, and then the other one",
        ),
        PromiseRow(
            failure=failures.both_lost_backup_first,
            serving=(),
            within_s=None,
            holds="no service",
            repair=("a", "b"),
            operator="start the node that served last, and then the other one",
        ),
    ),
)

_QUORUM: Final = Section(
    name="replication with a quorum",
    policies=pair.quorum,
    about="`ReplicationPrimary(quorum=...)` and `ReplicationBackup(quorum=...)`, here with a `MeshQuorum` of three "
    "witnesses. Nobody serves without the lock of the quorum, and nobody with a copy that is not the newest one.",
    rows=(
        PromiseRow(
            failure=failures.crash, serving=("b",), within_s=6.0, holds="the other one serves when the session is over"
        ),
        PromiseRow(
            failure=failures.power_loss_of_one,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`, when the session is over",
        ),
        PromiseRow(
            failure=failures.power_loss_of_all,
            serving=("b",),
            within_s=8.0,
            holds="one that has the newest copy serves once it is started, and the other one follows",
        ),
        PromiseRow(
            failure=failures.disk_error,
            serving=("b",),
            within_s=1.0,
            holds="the other one takes over at once: it gives the lock back",
        ),
        PromiseRow(
            failure=failures.full_disk,
            serving=("a",),
            within_s=15.0,
            holds="sends wait or are refused until there is room",
            operator="make room",
        ),
        PromiseRow(
            failure=failures.stop_of_30_s,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves when the session is over; when it goes on it finds that, and follows",
        ),
        PromiseRow(
            failure=failures.full_partition,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves when the session is over; it has stopped before, and follows later",
        ),
        PromiseRow(
            failure=failures.partial_partition,
            serving=("a",),
            within_s=4.0,
            holds="it goes on alone once the quorum knows that the other one is left out",
        ),
        PromiseRow(failure=failures.one_way_partition, serving=("a",), within_s=4.0, holds="as above"),
        PromiseRow(
            failure=failures.flapping_partition,
            serving=("a",),
            within_s=4.0,
            holds="it goes on, and the other one is in sync again in the end",
        ),
        PromiseRow(failure=failures.clock_jump, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(
            failure=failures.witnesses_lost,
            serving=("a",),
            within_s=34.0,
            holds="no service until more than half of the witnesses are there again",
            operator="start the witnesses",
        ),
        PromiseRow(
            failure=failures.both_lost,
            serving=(),
            within_s=None,
            holds="no service; the node that was lost first waits for the newer one, whichever is started first",
            repair=("a", "b"),
            operator="start both, in any order",
        ),
        PromiseRow(
            failure=failures.both_lost_backup_first,
            serving=(),
            within_s=None,
            holds="as above",
            repair=("b", "a"),
            operator="start both, in any order",
        ),
    ),
)

_VOTED: Final = Section(
    name="replication in a cluster that votes",
    policies=pair.voted,
    about="`ReplicationPrimary()` and `ReplicationBackup()` in a cluster with three other nodes that serve, which vote "
    "(`MajorityVote`). Nobody takes over, or goes on alone, unless more than half of them have said so, and they say "
    "so to one of the two. Until the pair has found them, which takes a few seconds, it decides alone, as above.",
    rows=(
        PromiseRow(failure=failures.crash, serving=("b",), within_s=1.0, holds="the other one serves at once"),
        PromiseRow(
            failure=failures.power_loss_of_one,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`",
        ),
        PromiseRow(
            failure=failures.power_loss_of_all,
            serving=("a",),
            within_s=4.0,
            holds="the one that served serves once both are started",
        ),
        PromiseRow(failure=failures.disk_error, serving=("b",), within_s=1.0, holds="the other one takes over"),
        PromiseRow(
            failure=failures.full_disk,
            serving=("a",),
            within_s=15.0,
            holds="sends wait or are refused until there is room",
            operator="make room",
        ),
        PromiseRow(
            failure=failures.stop_of_30_s,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`; when it goes on it finds that, and follows",
        ),
        PromiseRow(
            failure=failures.full_partition,
            serving=("b",),
            within_s=8.0,
            holds="the other one serves after `connection_ttl`; when they meet again it follows",
        ),
        PromiseRow(
            failure=failures.partial_partition,
            serving=("a",),
            within_s=8.0,
            holds="one of the two serves, whichever has asked first: it, where it has something to confirm",
        ),
        PromiseRow(failure=failures.one_way_partition, serving=("a",), within_s=8.0, holds="as above"),
        PromiseRow(
            failure=failures.flapping_partition,
            serving=("a",),
            within_s=4.0,
            holds="it goes on, and the other one is in sync again in the end",
        ),
        PromiseRow(failure=failures.clock_jump, serving=("a",), within_s=1.0, holds="it goes on"),
        PromiseRow(
            failure=failures.witnesses_lost,
            serving=("a",),
            within_s=1.0,
            holds="it goes on: nobody is asked while both nodes of the pair are there",
        ),
        PromiseRow(
            failure=failures.both_lost,
            serving=(),
            within_s=None,
            holds="no service; the node that was lost first waits for the newer one, whichever is started first",
            repair=("a", "b"),
            operator="start both, in any order",
        ),
        PromiseRow(
            failure=failures.both_lost_backup_first,
            serving=(),
            within_s=None,
            holds="as above",
            repair=("b", "a"),
            operator="start both, in any order",
        ),
    ),
)
SECTIONS: Final = (_ALONE, _SHARED, _REPLICATION, _VOTED, _QUORUM)
