"""The calls of a client that create, delete and inspect queues and the like, and the calls of transactions.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Client``: change that.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshq import client as trio_client
from meshq import limits
from meshq.address import Routing
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._loop_thread import ThreadCall
from meshq.blocking._transaction import Transaction
from meshq.client import ClusterQueue, Divert, MessageRoute, MessageTrace, PreparedTransaction, QueueStatistics
from meshq.ids import MessageId, NodeId
from meshq.message import PropertyValue
from meshq.settings import AddressSettings
from meshq.statistics import BridgeStatistics, BrokerStatistics, StuckMessages


class AdministrationCalls:
    """The calls of a client that create, delete and inspect queues and the like, and the calls of transactions.

    Each is sent once.  ``CallTimeoutError``, ``UnblockedError`` and ``ConnectionBrokenError`` say in ``outcome``
    whether it may have been carried out; repeating it does no harm.
    """

    _inner: trio_client.Client
    _call: ThreadCall
    _block: ThreadBlockRunner

    def address_settings(self, address: str) -> AddressSettings:
        """Return the settings in force for an address, merged from all patterns.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.address_settings, address)

    def bridges(self) -> list[BridgeStatistics]:
        """Return the statistics of the broker's bridges, by name; as ``Bridge.statistics()`` in process.

        The links of its cluster connections are among them, ``NAME to URL`` or to the node's name, and connectors of
        other brokers that are linked to this one, ``incoming``.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.bridges)

    def broker(self) -> BrokerStatistics:
        """Return the state and counters of the broker; as ``Broker.statistics()`` in process.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.broker)

    def cluster_queue(self, name: str) -> ClusterQueue:
        """Return the queue of a name on all nodes of the broker's clusters; each is asked, for a few seconds at most.

        A node that does not answer is listed, too, with what it has described before and how long ago it was heard.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: no queue can have that name.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.cluster_queue, name)

    def commit(self, xid: bytes) -> None:
        """Commit a prepared transaction; on return it is stored.

        Returns, too, if it was committed before, or if the node does not know it: it is taken for committed, and the
        node tells everybody so from then on.  Repeat it as often as need be.

        Interrupted: it may have been committed or not: commit it again.
        Raises:
            RetryTransactionError: it is prepared still, for what it sends can't be stored now; or the node does not
                know it, and its disk is too full to remember it; or this client has prepared it at another node than
                it is connected to, which does not have it; or the call was cut off (``outcome`` is unknown): commit it
                again.
            TransactionRolledBackError: it was rolled back.
            UsageError: it is open in this client, and not prepared.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._call(self._inner.commit, xid)

    def create_address(self, name: str, routing: Routing = "anycast") -> None:
        """Create an address, or do nothing if the address exists.

        Interrupted: it may exist afterwards or not.
        Raises:
            UsageError: it exists with the other routing type.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.create_address, name, routing)

    def create_divert(
        self, name: str, *, address: str, forwarding_address: str, filter: str | None = None, exclusive: bool = False
    ) -> None:
        """Create a divert: messages to ``address`` go to ``forwarding_address``, too.  Nothing happens if the divert
        exists.

        ``filter``: only messages of which this condition is true.  ``exclusive``: they go there only.  Diverts may
        follow each other; an address gets a message once, however many ways lead there.

        Interrupted: it may exist afterwards or not.
        Raises:
            SettingsError: a setting is not allowed.
            FilterError: the filter is no condition; says where.
            UsageError: it exists otherwise, or would close a loop.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(
            self._inner.create_divert,
            name,
            address=address,
            forwarding_address=forwarding_address,
            filter=filter,
            exclusive=exclusive,
        )

    def create_queue(
        self,
        name: str,
        *,
        address: str | None = None,
        routing: Routing = "anycast",
        durable: bool = True,
        filter: str | None = None,
    ) -> None:
        """Create a queue on ``address`` (the queue's own name unless given), or do nothing if the queue exists.

        ``filter``: a condition on properties and headers; the queue takes only messages of which it is true.  What no
        queue of its address takes is counted as unrouted, and gone.

        Interrupted: it may exist afterwards or not.
        Raises:
            SettingsError: a setting is not allowed.
            FilterError: the filter is no condition; says where.
            UsageError: it exists otherwise, or its address has the other routing type.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.create_queue, name, address=address, routing=routing, durable=durable, filter=filter)

    def create_temporary_queue(self) -> str:
        """Create a queue that ends with this session, on an address of the same name; return that name.

        Anybody may send to it, only this client may consume from it.  Nothing of it is on disk.

        Interrupted: it may exist afterwards or not, until the client is closed.
        Raises:
            UsageError: the session has too many of them.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.create_temporary_queue)

    def delete_divert(self, name: str) -> None:
        """Delete a divert; the messages that were diverted stay where they are.

        Interrupted: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such divert.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.delete_divert, name)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it; its consumers end with ``NotFoundError``.

        Interrupted: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such queue.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.delete_queue, name)

    def diverts(self) -> list[Divert]:
        """List all diverts, by name in alphabetical order.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.diverts)

    def explain_route(
        self,
        address: str,
        properties: Mapping[str, PropertyValue] | None = None,
        *,
        durable: bool = True,
        priority: int = limits.PRIORITY_DEFAULT,
        correlation_id: str | None = None,
        group: str | None = None,
        content_type: str | None = None,
        user: str | None = None,
        everywhere: bool = False,
    ) -> MessageRoute:
        """Explain where a message to ``address`` would go on this node, and why; nothing is sent.

        ``everywhere``: ask the other nodes of the cluster, too, what they would do with it.

        Without ``properties`` and the other parts of a message it is asked of any message: filters then may or may
        not accept it.  ``user``: who would send it; None: this client.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: a part of the message is not allowed.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(
            self._inner.explain_route,
            address,
            properties,
            durable=durable,
            priority=priority,
            correlation_id=correlation_id,
            group=group,
            content_type=content_type,
            user=user,
            everywhere=everywhere,
        )

    def give_back(self, node_id: str | NodeId, force: bool = False) -> int:
        """Route the messages again that wait for a node that does not come back; return their number.

        Each goes where it would go if that node had no queues, in its order, with its id; what no other queue may have
        stays: a subscription that only that node has.  The node itself gets the rest if it comes back meanwhile.
        ``node_id``: as ``ClusterConnection.peers()`` says it.  ``force``: also while the node is only away: what it had
        stored before the link was lost, and could not confirm, it has then, too.

        Interrupted: it goes on; how many were given back is unknown.
        Raises:
            SettingsError: it is no id of a node.
            NotFoundError: nothing was ever kept here for that node.
            UsageError: the node is linked, or is away and ``force`` is False.
            AddressFullError: the disk, or the address, is full; some were given back if ``outcome`` is unknown.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.give_back, node_id, force)

    def move_messages(self, name: str, address: str, *, filter: str | None = None, limit: int | None = None) -> int:
        """Move the messages that wait in a queue to an address, the ones that ``filter`` accepts and at most ``limit``;
        returns how many.

        What arrives meanwhile stays.  Each message is, whatever happens, in one of the two places; ``delivery.origin``
        says where it was.  The address comes into being if need be.

        Interrupted: it goes on; how many were moved is unknown.
        Raises:
            SettingsError: the filter, the limit or a name is not valid.
            NotFoundError: there is no such queue.
            AddressFullError: the disk, or the address, is full; some were moved if ``outcome`` is unknown.
            UsageError: no queue, or no subscriber of a topic, takes some, which stay; all others were moved, if
                ``outcome`` is unknown.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.move_messages, name, address, filter=filter, limit=limit)

    def pause_bridge(self, name: str) -> None:
        """Pause a bridge until ``resume_bridge``, or until its broker starts again.

        What is being sent is finished first.

        Interrupted: it may be paused afterwards or not.
        Raises:
            NotFoundError: the broker has no such bridge.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.pause_bridge, name)

    def pause_queue(self, name: str) -> None:
        """Pause a queue: it stores messages and delivers none until ``resume_queue``; a durable queue also after a
        restart.

        What is delivered already can be settled; what comes back waits.

        Interrupted: it may be paused or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.pause_queue, name)

    def prepared(self) -> list[PreparedTransaction]:
        """List the prepared transactions of all users that wait for a decision, the oldest first: for operators.

        Interrupted: nothing has changed.
        Raises:
            SecurityError: the user may not manage the broker.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.prepared)

    def purge_queue(self, name: str) -> int:
        """Remove every waiting message of a queue; return their number.

        Interrupted: they may be gone or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.purge_queue, name)

    def queue(self, name: str) -> QueueStatistics:
        """Return the message counts and state of a queue.

        Interrupted: nothing has changed.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.queue, name)

    def queues(self) -> list[str]:
        """List the names of all queues, in alphabetical order.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.queues)

    def recover(self) -> list[bytes]:
        """List the xids of all prepared transactions that are not decided, in order.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        return self._call(self._inner.recover)

    def redrive(self, name: str, *, filter: str | None = None, limit: int | None = None) -> int:
        """Send dead letters or expired messages back to the queues from which they were moved here, or to their
        addresses where these queues are gone.  Returns how many.

        They begin anew: their deliveries are counted from 0.  Messages that were sent to this queue stay.  So
        do those that one may not send where they were: all others are sent back, and a ``SecurityError`` says so then.

        Interrupted: it goes on; how many were sent back is unknown.
        Raises:
            SettingsError: the filter or the limit is not valid.
            NotFoundError: there is no such queue.
            AddressFullError: the disk, or the address, is full; some were sent back if ``outcome`` is unknown.
            UsageError: no queue, or no subscriber of a topic, takes some, which stay; all others were sent back, if
                ``outcome`` is unknown.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.redrive, name, filter=filter, limit=limit)

    def remove_address_settings(self, pattern: str) -> None:
        """Remove the settings of a pattern that were set at run time; the settings given at the start apply again.

        Interrupted: it may hold afterwards or not.
        Raises:
            NotFoundError: nothing was set for it.
            UsageError: a producer that is open has a larger window than duplicate ids would be remembered.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.remove_address_settings, pattern)

    def resume_bridge(self, name: str) -> None:
        """Resume a paused bridge.

        Interrupted: it may be paused afterwards or not.
        Raises:
            NotFoundError: the broker has no such bridge.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.resume_bridge, name)

    def resume_queue(self, name: str) -> None:
        """Resume a paused queue: it delivers again from where it stopped.  Nothing happens if the queue is not paused.

        Interrupted: it may deliver or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.resume_queue, name)

    def rollback(self, xid: bytes) -> None:
        """Roll a prepared transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Returns, too, if it was rolled back before, or if the node does not know it: it is taken for rolled back, and
        the node tells everybody so from then on.

        Interrupted: it may have been rolled back or not: roll it back again.
        Raises:
            UsageError: it was committed, or the node has said so; or it is open in this client, and not prepared.
            AddressFullError: the node does not know it, and its disk is too full to remember it.
            RetryTransactionError: this client has prepared it at another node than it is connected to, which does not
                have it.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._call(self._inner.rollback, xid)

    def set_address_settings(self, pattern: str, settings: AddressSettings) -> None:
        """Set how the addresses that match a pattern behave, from now on and after a restart of the broker.

        It takes the place of all that the pattern said before, in the broker's own settings too; other patterns hold as
        they did.  When each setting takes effect is said with ``AddressSettings``.

        Interrupted: it may hold afterwards or not.
        Raises:
            SettingsError: it is no pattern, or these are no settings.
            UsageError: the broker has as many patterns that were set while it ran as it can have, or a producer that is
                open has a larger window than duplicate ids would be remembered.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.set_address_settings, pattern, settings)

    def stuck(self) -> list[StuckMessages]:
        """Return the messages on this node that do not move although a consumer wants them, with the cause of each.

        The broker's cluster connections look for them; ``stuck_timeout`` there says what counts as not moving.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.stuck)

    def trace(self, message_id: MessageId, *, everywhere: bool = False) -> MessageTrace:
        """Find a message on this node: its queues, its state there, and its consumers.

        ``everywhere``: ask the other nodes of the cluster, too, and say from which node to which the message went.  A
        node remembers its last 4,096 runs that went to another node or came from there, until it is started again.

        Every run that the node holds is asked, in steps between which others have their turn.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: it is no message id.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.trace, message_id, everywhere=everywhere)

    def transaction(self, xid: bytes | None = None) -> Transaction:
        """Create a transaction, to be used as ``with``: sends and acknowledgements are applied together or not at
        all.

        ``xid``: 1 to 128 bytes by which it is known once it is prepared.

        Raises:
            SettingsError: the xid is none.
        """
        inner = self._inner.transaction(xid)
        return Transaction(self._block, inner)

    def unsubscribe(self, address: str, name: str) -> int:
        """Delete a named subscription with the messages in its queue; return their number.

        Interrupted: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such subscription.
            RefusedError: it has a consumer.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.unsubscribe, address, name)
