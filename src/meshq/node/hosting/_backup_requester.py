"""A node that asks other nodes of its cluster to run its backup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import trio

from meshq.abc import LocalBroker, NodeControl, NodeQuestions, RoleBoard, Service
from meshq.address import is_name
from meshq.errors import MeshqError, NotActiveError
from meshq.ha.colocated import (
    Colocated,
    HostOffer,
    OwnBackups,
    RequestTries,
    best_host,
    encode_epoch,
    host_to_clear,
    own_backups,
    own_replicas,
)
from meshq.logs import Warnings, logger
from meshq.node._settings import BrokerSettings
from meshq.node.hosting._hosted_settings import backup_request

if TYPE_CHECKING:
    from meshq.cluster import ClusterConnection

NAME: Final = "backup requester"
#: Characters that are logged of a reason which another node has told.
WHY_CHARACTERS_MAX: Final = 1_000
#: What a node is told that runs a backup which another one runs, too.
_ENDS: Final = {"request": b"", "ends": True, "clears": False}
_log = logger("node")


class BackupRequester(Service):
    """The service of a node that asks other nodes of its cluster for a backup, while the node serves.

    What the nodes answer decides, not what they have answered before: a node that was started anew, and runs no backup
    any more, is found out at the next look.
    """

    kind: ClassVar[str] = "backup_requester"

    def __init__(self, settings: BrokerSettings, policy: Colocated) -> None:
        self.name = NAME
        self._settings = settings
        self._policy = policy
        self._warnings = Warnings("node", trio.current_time)
        # The nodes that have refused since all were asked.
        self._refused: set[str] = set()
        self._packed = b""
        self._digest = ""
        self._own = ""

    def announce(self, control: NodeControl) -> None:
        """Make the request.

        Raises:
            SettingsError: it would be too large.
        """
        self._own = control.node_id.hex()
        url = self._cluster.settings.own_url(control)
        request = backup_request(self._settings, self._policy, control.node_id, url)
        self._packed, self._digest = request.encode(), request.digest

    @property
    def _cluster(self) -> ClusterConnection:
        named = getattr(self._policy.primary, "cluster_name", None)
        found = (one for one in self._settings.services if one.kind == "cluster_connection")
        return cast("ClusterConnection", next(one for one in found if named in (None, one.name)))

    async def serve(self, broker: LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Look from time to time whether there is a backup, and ask for one if there is none, until cancelled."""
        # The acceptors listen now, so that ports which the system has chosen are known.
        self.announce(broker.control)
        task_status.started()
        policy, cluster = self._policy, self._cluster
        tries = RequestTries(policy.backup_request_retries, policy.backup_request_retry_interval)
        while True:
            try:
                # Without another node there is nobody to ask.
                await cluster.wait_for(nodes=2)
                questions = broker.answers.of(cluster.name)
            except NotActiveError:
                # The node stops, and its cluster connection has ended first.
                return
            now = trio.current_time()
            offers = await self._offers(questions)
            mine = self._own_backups(offers, broker.control.board)
            ends = {**_ENDS, "request": encode_epoch(broker.control.board.report.epoch)} if policy.replicates else _ENDS
            for surplus in mine.surplus:
                await self._ask(questions, surplus.node_id, "host_backup", ends)
            if mine.kept is not None and mine.stale and not tries.over:
                await self._send(questions, mine.kept.node_id, clears=False)
                due = tries.tried(now)
            elif mine.kept is not None or mine.surplus or self._in_sync(broker.control.board):
                if mine.kept is not None and mine.kept.ready:
                    tries.backed()
                due = tries.looked(now)
            elif tries.over:
                break
            else:
                await self._request(questions, offers, await self._has_room(broker))
                # Only the next look shows whether the backup could begin.
                due = tries.tried(now)
            await trio.sleep_until(due)
        text = f"no node runs a backup of {self._settings.name!r}: it asks no more"
        self._warnings.say("backup_not_hosted", text)

    def _own_backups(self, offers: list[HostOffer], board: RoleBoard) -> OwnBackups:
        """Find the backups of this node at other ones."""
        if not self._policy.replicates:
            return own_backups(offers, self._digest)
        return own_replicas(offers, self._digest, self._in_sync(board))

    def _in_sync(self, board: RoleBoard) -> str:
        """Return the life of the replica that has everything; empty: there is none, or all share one store.

        Its host may be out of reach, because the host's own node waits.
        """
        return next((one.instance.hex() for one in board.report.replicas if one.in_sync), "")

    async def _has_room(self, broker: LocalBroker) -> bool:
        """Whether this node runs fewer backups than it may."""
        try:
            told = await broker.answers.ask("hosted_backups")
        except MeshqError:
            # The node stops.
            return False
        return bool(told["backups"] < told["max_backups"])

    async def _request(self, questions: NodeQuestions, offers: list[HostOffer], own_room: bool) -> None:
        """Ask a node to run the backup."""
        offer, clears = self._host_for(offers, own_room)
        if offer is None and self._refused:
            # All have refused: they are asked again, in the same order.
            self._refused.clear()
            offer, clears = self._host_for(offers, own_room)
        if offer is None:
            self._warnings.say("backup_refused", f"no node has room for the backup of {self._settings.name!r}")
            return
        await self._send(questions, offer.node_id, clears=clears)

    def _host_for(self, offers: list[HostOffer], own_room: bool) -> tuple[HostOffer | None, bool]:
        """Return the node to ask, and whether a backup there is to make room."""
        offer = best_host(self._own, offers, self._refused)
        if offer is None and not self._policy.replicates:
            # By replication no backup makes room: its store may be the only whole one.
            return host_to_clear(self._own, own_room, offers, self._refused), True
        return offer, False

    async def _send(self, questions: NodeQuestions, node_id: str, *, clears: bool) -> None:
        """Send the request to a node."""
        asked = {"request": self._packed, "ends": False, "clears": clears}
        answer = await self._ask(questions, node_id, "host_backup", asked)
        if is_name(answer.get("name")):
            self._refused.clear()
            about = (answer["name"], self._settings.name, node_id)
            _log.info("%s is the backup of %s, at the node %s", *about, extra={"event": "backup_requested"})
            return
        self._refused.add(node_id)
        text = f"the node {node_id} does not run the backup of {self._settings.name!r}: {_line(answer.get('why'))}"
        self._warnings.say("backup_refused", text, node_id)

    async def _offers(self, questions: NodeQuestions) -> list[HostOffer]:
        """Return the answers of all linked nodes about their backups."""
        found: list[HostOffer] = []

        async def ask(node_id: str) -> None:
            told = await self._ask(questions, node_id, "hosted_backups", {"node_id": self._own})
            offer = HostOffer.of(node_id, told)
            if offer is not None:
                found.append(offer)
                # A node of an older version does not tell it.
                self._tell(offer, told.get("mine_error", ""))

        async with trio.open_nursery() as nursery:
            for member in questions.members():
                if member.state == "linked":
                    nursery.start_soon(ask, member.node_id.hex())
        return found

    def _tell(self, offer: HostOffer, problem: object) -> None:
        """Warn that a backup of this node does not listen; ``problem``: what its host says; empty: nothing."""
        if offer.mine and not offer.ready and problem:
            whose = f"{offer.mine}, the backup of {self._settings.name!r} at the node {offer.node_id},"
            self._warnings.say("backup_not_ready", f"{whose} {_line(problem)}", offer.node_id)

    async def _ask(
        self, questions: NodeQuestions, node_id: str, operation: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Ask a node; return its answer, or why there is none."""
        answer: dict[str, Any] = {}
        answered = trio.Event()

        def failed(error: MeshqError) -> None:
            answer["why"] = str(error)
            answered.set()

        def done(values: Mapping[str, Any]) -> None:
            answer.update(values)
            answered.set()

        questions.ask(bytes.fromhex(node_id), operation, arguments, done, failed)
        await answered.wait()
        return answer


def _line(told: object) -> str:
    """Return the words of another node as one line of a log."""
    return "".join(one if one.isprintable() else " " for one in str(told)[:WHY_CHARACTERS_MAX])
