"""Administration from threads: queues and addresses, by calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from meshq import client as trio_client
from meshq import limits
from meshq.address import Routing
from meshq.client import Divert, MessageRoute, MessageTrace, QueueStatistics
from meshq.ids import MessageId, NodeId
from meshq.message import PropertyValue
from meshq.settings import AddressSettings
from meshq.statistics import BridgeStatistics, BrokerStatistics

T = TypeVar("T")


class Administration(ABC):
    """The calls of a client that create, delete and look at things.

    Each is sent once.  ``CallTimeoutError``, ``UnblockedError`` and ``ConnectionBrokenError`` say in ``outcome``
    whether it may have been carried out; repeating it does no harm.
    """

    _inner: trio_client.Client

    @abstractmethod
    def _call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the client's loop."""

    def create_address(self, name: str, routing: Routing = "anycast") -> None:
        """Create an address, or do nothing if the address exists.

        Interrupted: it may exist afterwards or not.
        Raises:
            UsageError: it exists with the other routing type.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.create_address, name, routing)

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
        create = self._inner.create_queue
        self._call(create, name, address=address, routing=routing, durable=durable, filter=filter)

    def create_temporary_queue(self) -> str:
        """Create a queue that ends with this session, on an address of the same name; return that name.

        Anybody may send to it, only this client may consume from it.  Nothing of it is on disk.

        Interrupted: it may exist afterwards or not, until the client is closed.
        Raises:
            UsageError: the session has too many of them.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.create_temporary_queue)

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

    def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it; its consumers end with ``NotFoundError``.

        Interrupted: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such queue.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.delete_queue, name)

    def purge_queue(self, name: str) -> int:
        """Remove every waiting message of a queue; return their number.

        Interrupted: they may be gone or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.purge_queue, name)

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

    def remove_address_settings(self, pattern: str) -> None:
        """Remove the settings of a pattern that were set at run time; the settings given at the start apply again.

        Interrupted: it may hold afterwards or not.
        Raises:
            NotFoundError: nothing was set for it.
            UsageError: a producer that is open has a larger window than duplicate ids would be remembered.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.remove_address_settings, pattern)

    def address_settings(self, address: str) -> AddressSettings:
        """Return the settings in force for an address, merged from all patterns.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.address_settings, address)

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

    def resume_queue(self, name: str) -> None:
        """Resume a paused queue: it delivers again from where it stopped.  Nothing happens if the queue is not paused.

        Interrupted: it may deliver or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.resume_queue, name)

    def queue(self, name: str) -> QueueStatistics:
        """Return the message counts and state of a queue.

        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.queue, name)

    def queues(self) -> list[str]:
        """List the names of all queues, in alphabetical order.

        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.queues)

    def create_divert(
        self,
        name: str,
        *,
        address: str,
        forwarding_address: str,
        filter: str | None = None,
        exclusive: bool = False,
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
        about = {"address": address, "forwarding_address": forwarding_address}
        self._call(self._inner.create_divert, name, **about, filter=filter, exclusive=exclusive)

    def delete_divert(self, name: str) -> None:
        """Delete a divert; the messages that were diverted stay where they are.

        Interrupted: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such divert.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.delete_divert, name)

    def bridges(self) -> list[BridgeStatistics]:
        """Return the statistics of the broker's bridges, by name in alphabetical order; as ``Bridge.statistics()`` in
        process.

        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.bridges)

    def pause_bridge(self, name: str) -> None:
        """Pause a bridge until ``resume_bridge``, or until its broker starts again.

        What is being sent is finished first.

        Interrupted: it may be paused afterwards or not.
        Raises:
            NotFoundError: the broker has no such bridge.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.pause_bridge, name)

    def resume_bridge(self, name: str) -> None:
        """Resume a paused bridge.

        Interrupted: it may be paused afterwards or not.
        Raises:
            NotFoundError: the broker has no such bridge.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.resume_bridge, name)

    def broker(self) -> BrokerStatistics:
        """Return the state and counters of the broker; as ``Broker.statistics()`` in process.

        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.broker)

    def diverts(self) -> list[Divert]:
        """List all diverts, by name in alphabetical order.

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
    ) -> MessageRoute:
        """Explain where a message to ``address`` would go on this node, and why; nothing is sent.

        Without ``properties`` and the other parts of a message it is asked of any message: filters then may or may
        not accept it.  ``user``: who would send it; None: this client.

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
        )

    def trace(self, message_id: MessageId) -> MessageTrace:
        """Find a message on this node: its queues, its state there, and its consumers.

        Every run that the node holds is asked, in steps between which others have their turn.

        Raises:
            SettingsError: it is no message id.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.trace, message_id)

    def flush(self) -> None:
        """Return when everything that this session has sent and acknowledged is stored.

        What a producer still gathers goes out first, and its confirms are waited for.

        Interrupted: it goes on its way.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: unknown.
        """
        self._call(self._flush)

    @abstractmethod
    async def _flush(self) -> None:
        """Flush as the trio client does, including messages gathered by threads."""
