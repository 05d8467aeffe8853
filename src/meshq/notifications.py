"""Notifications of a broker: one frozen record for each kind of event.

``Broker.events()`` gives the records themselves; at the address ``activemq.notifications`` each of them is a message,
whose property ``notification`` is the kind and whose other properties are the fields.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from meshq.message import PropertyValue


@attrs.frozen(kw_only=True)
class Notification:
    """An event in a broker.  ``timestamp``: when, in seconds since 1970, by the broker's clock."""

    kind: ClassVar[str] = ""
    timestamp: float

    def properties(self) -> dict[str, PropertyValue]:
        """Return the properties of the notification's message."""
        return {"notification": self.kind, **attrs.asdict(self)}


@attrs.frozen(kw_only=True)
class _OfQueue(Notification):
    address: str
    queue: str


@attrs.frozen(kw_only=True)
class _OfNode(Notification):
    node_id: str
    node_name: str


@attrs.frozen(kw_only=True)
class BrokerStateChanged(Notification):
    """The broker has changed its state; only ``Broker.events()`` reports it."""

    kind = "broker_state_changed"
    state: str


@attrs.frozen(kw_only=True)
class QueueCreated(_OfQueue):
    """A queue was created."""

    kind = "queue_created"
    routing: str
    durable: bool
    #: Whether the queue ends with the session that created it.
    temporary: bool


@attrs.frozen(kw_only=True)
class QueueDeleted(_OfQueue):
    """A queue was deleted with its messages."""

    kind = "queue_deleted"


@attrs.frozen(kw_only=True)
class ConsumerCreated(_OfQueue):
    """A consumer or a browser of a queue was created."""

    kind = "consumer_created"
    session: int
    user: str
    #: A condition of its own; empty if it takes all.
    filter: str
    browse: bool
    #: Consumers of the queue now; those who only look don't count.
    consumers: int


@attrs.frozen(kw_only=True)
class ConsumerClosed(_OfQueue):
    """A consumer was closed, and its unacked messages are back in the queue."""

    kind = "consumer_closed"
    session: int
    user: str
    browse: bool
    consumers: int


@attrs.frozen(kw_only=True)
class SessionCreated(Notification):
    """A client or a node has opened a session.  Its user is empty if the broker asked for none.

    ``label`` is its ``client_id``, ``server_name`` the host name that it asked for under TLS; empty if there is none.
    """

    kind = "session_created"
    session: int
    role: str
    user: str
    label: str
    peer: str
    server_name: str


@attrs.frozen(kw_only=True)
class SessionClosed(Notification):
    """A session has ended: closed by its client, or expired."""

    kind = "session_closed"
    session: int
    role: str
    user: str
    label: str


@attrs.frozen(kw_only=True)
class LoginRefused(Notification):
    """A login was refused: name, password or certificate were wrong."""

    kind = "login_refused"
    role: str
    peer: str


@attrs.frozen(kw_only=True)
class SecurityRefused(Notification):
    """A request was refused because its user lacks the permission."""

    kind = "security_refused"
    user: str
    permission: str
    address: str
    peer: str


@attrs.frozen(kw_only=True)
class MessageDeadLettered(_OfQueue):
    """Messages were dead-lettered together: rejected, delivered too often, or forwarded for a queue that is gone.

    ``target``: the address to which they went; empty: they are gone.  ``reason``: ``rejected``, ``attempts`` or
    ``unrouted``; with the last one ``queue`` is the address, too.
    """

    kind = "message_dead_lettered"
    target: str
    reason: str
    messages: int


@attrs.frozen(kw_only=True)
class MessageExpired(_OfQueue):
    """Messages have expired together; ``target`` as for dead letters."""

    kind = "message_expired"
    target: str
    messages: int


@attrs.frozen(kw_only=True)
class MessagesRedistributed(_OfQueue):
    """Messages of a queue without a consumer on this node were moved together to nodes of its cluster that have one."""

    kind = "messages_redistributed"
    messages: int


@attrs.frozen(kw_only=True)
class MessagesStuck(_OfQueue):
    """Messages of a queue have not moved for the ``stuck_timeout`` of a cluster connection, although a consumer
    wants them; told again each minute while that lasts.  ``cause``: its name, and ``why`` the same as a sentence."""

    kind = "messages_stuck"
    cause: str
    why: str
    messages: int


@attrs.frozen(kw_only=True)
class TransactionPrepared(Notification):
    """A transaction was prepared and waits for its decision; ``sent`` and ``acked`` count its messages."""

    kind = "transaction_prepared"
    xid: bytes
    user: str
    sent: int
    acked: int


@attrs.frozen(kw_only=True)
class TransactionDecided(Notification):
    """A prepared transaction was ``committed``, or rolled back."""

    kind = "transaction_decided"
    xid: bytes
    user: str
    committed: bool


@attrs.frozen(kw_only=True)
class CursorLagging(_OfQueue):
    """A cursor has nearly as many messages before it as it may have; told again after it has caught up."""

    kind = "cursor_lagging"
    name: str
    #: Messages that the cursor has not acknowledged, and how many these may be.
    lag: int
    max_lag: int


@attrs.frozen(kw_only=True)
class CursorReleased(_OfQueue):
    """A cursor is gone, and its queue is for consumers again: ``deleted``, or given up beyond its ``max_lag``."""

    kind = "cursor_released"
    name: str
    reason: str


@attrs.frozen(kw_only=True)
class BatchCommitted(Notification):
    """A batch of a sink was committed: the messages of so many stages go to their addresses."""

    kind = "batch_committed"
    sink: str
    batch: int
    stages: int
    messages: int


@attrs.frozen(kw_only=True)
class StageExpired(Notification):
    """A stage was dropped: its batch was not decided in time."""

    kind = "stage_expired"
    sink: str
    batch: int
    partition: int
    attempt: int
    messages: int


@attrs.frozen(kw_only=True)
class AddressFull(Notification):
    """An address has reached a limit of its settings; ``policy`` is what happens to further messages.

    ``page``: it goes to the disk only; ``block``: producers wait; ``drop`` and ``fail``: it is dropped or refused.
    """

    kind = "address_full"
    address: str
    policy: str


@attrs.frozen(kw_only=True)
class MemoryFull(Notification):
    """The node's memory is so full that addresses with this full policy are limited.

    ``page``, from half of it on: what is not needed next goes to the disk only; ``drop`` and ``fail``, when a quarter
    is left: it is dropped or refused; ``block``, when nothing is left: whoever sends waits.  There is room again when
    less than a quarter is used.  ``used`` and ``limit`` are bytes.
    """

    kind = "memory_full"
    policy: str
    used: int
    limit: int


@attrs.frozen(kw_only=True)
class StoreDamaged(Notification):
    """The store is damaged in a part that its index vouched for at the start; the next start refuses the store."""

    kind = "store_damaged"
    file: str
    offset: int
    expected: str
    found: str


@attrs.frozen(kw_only=True)
class NodeJoined(_OfNode):
    """Another node of a cluster is linked, for the first time or again; ``node_id`` is hexadecimal."""

    kind = "node_joined"


@attrs.frozen(kw_only=True)
class NodeLeft(_OfNode):
    """Another node of a cluster is gone; ``reason``: ``left`` (said goodbye), ``away`` (does not answer), ``down``
    (all attempts failed) or ``scaled_down`` (said goodbye, and has handed all over).

    ``successor``: the node that has taken over what it had; empty if there is none.
    """

    kind = "node_left"
    reason: str
    successor: str


@attrs.frozen(kw_only=True)
class BackupChanged(_OfNode):
    """A node of a cluster has another backup than before, or none any more; the broker's own node counts.

    ``node_id`` is hexadecimal.  ``backup``: where it is reached; empty: there is none.  ``cluster``: whose topology
    tells it.
    """

    kind = "backup_changed"
    cluster: str
    backup: str


@attrs.frozen(kw_only=True)
class BindingAdded(_OfNode):
    """A queue of another node of a cluster is known here: messages can be forwarded to it.
    ``node_id`` is hexadecimal; ``distance``: the number of links to that node."""

    kind = "binding_added"
    address: str
    queue: str
    routing: str
    distance: int


@attrs.frozen(kw_only=True)
class BindingRemoved(_OfNode):
    """A queue of another node of a cluster that was known here is deleted there, or its node is not reached any more.
    ``node_id`` is hexadecimal."""

    kind = "binding_removed"
    address: str
    queue: str


@attrs.frozen(kw_only=True)
class RoleChanged(Notification):
    """The node has another role among the nodes of its pair; ``role``, ``previous``: ``live_only``, ``primary`` or
    ``backup``.

    ``epoch``: of the node that serves.  ``reason``: ``started``, ``crash``, ``stopped``, ``forced``, ``failback``,
    ``superseded``, ``lease_lost``, ``vote_lost`` or ``isolated``.  ``without_service``: the seconds from the last
    moment in which another node was known to serve.
    """

    kind = "role_changed"
    role: str
    previous: str
    epoch: int
    reason: str
    without_service: float


@attrs.frozen(kw_only=True)
class InSyncChanged(Notification):
    """Other nodes of a pair by replication than before have all that was confirmed; ``members``: their names.
    ``unprotected``: the node goes on without a replica."""

    kind = "in_sync_changed"
    members: tuple[str, ...]
    epoch: int
    unprotected: bool

    def properties(self) -> dict[str, PropertyValue]:
        """Return the properties of the notification's message; the names are one text, with commas between them."""
        return {**super().properties(), "members": ",".join(self.members)}


@attrs.frozen(kw_only=True)
class VoteHeld(Notification):
    """A node that has lost the other one of its pair has asked other nodes of the cluster.

    ``question``: ``failed``, of a replica: may it take over?  ``stay``, of a node that serves, or did: may it go on
    alone?  ``asked``: so many nodes; ``needed``: so many have to say yes; ``yes``: so many did.  ``granted``: it may.
    """

    kind = "vote_held"
    question: str
    asked: int
    needed: int
    yes: int
    granted: bool


@attrs.frozen(kw_only=True)
class SyncBegun(Notification):
    """A replica has come, and gets a copy of the store first; ``records``, ``bytes``: how many there are."""

    kind = "sync_begun"
    replica: str
    records: int
    bytes: int


@attrs.frozen(kw_only=True)
class SyncProgress(Notification):
    """A copy for a replica goes on, once a second at most; so many records and bytes of the journal are left."""

    kind = "sync_progress"
    replica: str
    records_left: int
    bytes_left: int


@attrs.frozen(kw_only=True)
class SyncDone(Notification):
    """A replica has all messages that were confirmed, ``seconds`` after it came."""

    kind = "sync_done"
    replica: str
    seconds: float


@attrs.frozen(kw_only=True)
class SyncFailed(Notification):
    """A replica did not come to be in sync; ``reason`` as of ``ReplicaDropped``."""

    kind = "sync_failed"
    replica: str
    reason: str


@attrs.frozen(kw_only=True)
class ReplicaDropped(Notification):
    """A node is not waited for any more; ``reason``: ``link``, ``slow``, ``disk``, ``full_disk``, ``sync_timeout``,
    ``encryption_key``, ``node_id``, ``group`` or ``left``."""

    kind = "replica_dropped"
    replica: str
    reason: str


@attrs.frozen(kw_only=True)
class ColocatedBackupStarted(Notification):
    """The broker runs the backup of another node now; ``name``: of the backup, ``requester``: of that node."""

    kind = "colocated_backup_started"
    name: str
    requester: str


@attrs.frozen(kw_only=True)
class BalancerTargetReady(Notification):
    """A target of a balancer's pool is ready for clients."""

    kind = "balancer_target_ready"
    balancer: str
    url: str
    node_id: str


@attrs.frozen(kw_only=True)
class BalancerTargetLost(Notification):
    """A target of a balancer's pool is not ready any more, or not in the pool."""

    kind = "balancer_target_lost"
    balancer: str
    url: str
    node_id: str
    reason: str


@attrs.frozen(kw_only=True)
class BalancerQuorumReached(Notification):
    """As many targets of a balancer's pool are ready as the quorum wants."""

    kind = "balancer_quorum_reached"
    balancer: str
    ready: int
    needed: int


@attrs.frozen(kw_only=True)
class BalancerQuorumLost(Notification):
    """Fewer targets of a balancer's pool are ready than the quorum wants: clients without a target get none."""

    kind = "balancer_quorum_lost"
    balancer: str
    ready: int
    needed: int


#: Every kind, in the order in which they are shown.
KINDS: tuple[type[Notification], ...] = (
    BrokerStateChanged,
    *(QueueCreated, QueueDeleted, ConsumerCreated, ConsumerClosed, SessionCreated, SessionClosed),
    *(LoginRefused, SecurityRefused),
    *(MessageDeadLettered, MessageExpired, MessagesRedistributed, MessagesStuck),
    *(TransactionPrepared, TransactionDecided, CursorLagging, CursorReleased, BatchCommitted, StageExpired),
    *(AddressFull, MemoryFull, StoreDamaged),
    *(NodeJoined, NodeLeft, BackupChanged, BindingAdded, BindingRemoved),
    *(BalancerTargetReady, BalancerTargetLost, BalancerQuorumReached, BalancerQuorumLost),
    *(RoleChanged, InSyncChanged, VoteHeld),
    *(SyncBegun, SyncProgress, SyncDone, SyncFailed, ReplicaDropped, ColocatedBackupStarted),
)
