"""Administration: queues and addresses, by calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from meshq import limits
from meshq.address import Routing, check_name, check_place, check_routing, parse_place, parse_target
from meshq.client.admin import _message_routes as routes
from meshq.client.admin._cluster_queues import ClusterQueue, cluster_queue
from meshq.client.admin._message_hops import check_everywhere, message_hops, node_routes
from meshq.client.admin._message_routes import MessageLocation, MessageRoute, MessageTrace, query
from meshq.client.admin._queue_names import names_behind
from meshq.client.admin._statistics import Divert, QueueStatistics
from meshq.client.session._client_context import ClientContext
from meshq.errors import SettingsError
from meshq.ids import IDENTITY_BYTES, MessageId, NodeId
from meshq.message import PropertyValue
from meshq.selector import parse_filter
from meshq.settings import AddressSettings, check_address_settings, check_pattern, check_user, kept_address_settings_of
from meshq.statistics import BridgeStatistics, BrokerStatistics, StuckMessages
from meshq.wire import COUNTER_MAX, violation


class Administration:
    """The calls of a client that create, delete and inspect queues and the like.

    Each is sent once.  ``CallTimeoutError``, ``UnblockedError`` and ``ConnectionBrokenError`` say in ``outcome``
    whether it may have been carried out; repeating it does no harm.
    """

    _context: ClientContext

    async def create_address(self, name: str, routing: Routing = "anycast") -> None:
        """Create an address, or do nothing if the address exists.

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            UsageError: it exists with the other routing type.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask(
            "create_address", name=check_place("name", name), routing=check_routing("routing", routing)
        )

    async def create_queue(
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

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            SettingsError: a setting is not allowed.
            FilterError: the filter is no condition; says where.
            UsageError: it exists otherwise, or its address has the other routing type.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_place("name", name)
        if address is not None:
            check_place("address", address)
        if type(durable) is not bool:
            raise SettingsError("durable", durable, "True or False")
        text = None if filter is None else parse_filter(filter).text
        routing = check_routing("routing", routing)
        more = {} if text is None else {"filter": text}
        await self._context.ask("create_queue", name=name, address=address, routing=routing, durable=durable, **more)

    async def create_temporary_queue(self) -> str:
        """Create a queue that ends with this session, on an address of the same name; return that name.

        Anybody may send to it, only this client may consume from it.  Nothing of it is on disk.

        Checkpoint: always.  Cancellation: it may exist afterwards or not, until the client is closed.
        Raises:
            UsageError: the session has too many of them.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return str((await self._context.ask("create_temporary_queue"))["name"])

    async def unsubscribe(self, address: str, name: str) -> int:
        """Delete a named subscription with the messages in its queue; return their number.

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such subscription.
            RefusedError: it has a consumer.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names = {"address": check_name("address", address), "name": check_name("name", name)}
        return int((await self._context.ask("unsubscribe", **names)).get("removed", 0))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it; its consumers end with ``NotFoundError``.

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such queue.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("delete_queue", name=_check_queue(name))

    async def purge_queue(self, name: str) -> int:
        """Remove every waiting message of a queue; return their number.

        Checkpoint: always.  Cancellation: they may be gone or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("purge_queue", name=_check_queue(name))
        return int(values.get("removed", 0))

    async def set_address_settings(self, pattern: str, settings: AddressSettings) -> None:
        """Set how the addresses that match a pattern behave, from now on and after a restart of the broker.

        It takes the place of all that the pattern said before, in the broker's own settings too; other patterns hold as
        they did.  When each setting takes effect is said with ``AddressSettings``.

        Checkpoint: always.  Cancellation: it may hold afterwards or not.
        Raises:
            SettingsError: it is no pattern, or these are no settings.
            UsageError: the broker has as many patterns that were set while it ran as it can have, or a producer that is
                open has a larger window than duplicate ids would be remembered.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        checked = check_address_settings({check_pattern(pattern): settings})[pattern]
        fields = {name: getattr(checked, name) for name in checked.given}
        await self._context.ask("set_address_settings", pattern=pattern, **fields)

    async def remove_address_settings(self, pattern: str) -> None:
        """Remove the settings of a pattern that were set at run time; the settings given at the start apply again.

        Checkpoint: always.  Cancellation: it may hold afterwards or not.
        Raises:
            NotFoundError: nothing was set for it.
            UsageError: a producer that is open has a larger window than duplicate ids would be remembered.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("remove_address_settings", pattern=check_pattern(pattern))

    async def address_settings(self, address: str) -> AddressSettings:
        """Return the settings in force for an address, merged from all patterns.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("address_settings", address=check_name("address", address))
        known = {field.name for field in attrs.fields(AddressSettings)}
        return kept_address_settings_of({name: value for name, value in values.items() if name in known})

    async def move_messages(
        self, name: str, address: str, *, filter: str | None = None, limit: int | None = None
    ) -> int:
        """Move the messages that wait in a queue to an address, the ones that ``filter`` accepts and at most ``limit``;
        returns how many.

        What arrives meanwhile stays.  Each message is, whatever happens, in one of the two places; ``delivery.origin``
        says where it was.  The address comes into being if need be.

        Checkpoint: always.  Cancellation: it goes on; how many were moved is unknown.
        Raises:
            SettingsError: the filter, the limit or a name is not valid.
            NotFoundError: there is no such queue.
            AddressFullError: the disk, or the address, is full; some were moved if ``outcome`` is unknown.
            UsageError: no queue, or no subscriber of a topic, takes some, which stay; all others were moved, if
                ``outcome`` is unknown.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_place("address", address)
        arguments = {"name": _check_queue(name), "address": address, **_some(filter, limit)}
        return int((await self._context.ask("move_messages", **arguments)).get("moved", 0))

    async def redrive(self, name: str, *, filter: str | None = None, limit: int | None = None) -> int:
        """Send dead letters or expired messages back to the queues from which they were moved here, or to their
        addresses where these queues are gone.  Returns how many.

        They begin anew: their deliveries are counted from 0.  Messages that were sent to this queue stay.  So
        do those that one may not send where they were: all others are sent back, and a ``SecurityError`` says so then.

        Checkpoint: always.  Cancellation: it goes on; how many were sent back is unknown.
        Raises:
            SettingsError: the filter or the limit is not valid.
            NotFoundError: there is no such queue.
            AddressFullError: the disk, or the address, is full; some were sent back if ``outcome`` is unknown.
            UsageError: no queue, or no subscriber of a topic, takes some, which stay; all others were sent back, if
                ``outcome`` is unknown.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("redrive", name=_check_queue(name), **_some(filter, limit))
        return int(values.get("moved", 0))

    async def give_back(self, node_id: str | NodeId, force: bool = False) -> int:
        """Route the messages again that wait for a node that does not come back; return their number.

        Each goes where it would go if that node had no queues, in its order, with its id; what no other queue may have
        stays: a subscription that only that node has.  The node itself gets the rest if it comes back meanwhile.
        ``node_id``: as ``ClusterConnection.peers()`` says it.  ``force``: also while the node is only away: what it had
        stored before the link was lost, and could not confirm, it has then, too.

        Checkpoint: always.  Cancellation: it goes on; how many were given back is unknown.
        Raises:
            SettingsError: it is no id of a node.
            NotFoundError: nothing was ever kept here for that node.
            UsageError: the node is linked, or is away and ``force`` is False.
            AddressFullError: the disk, or the address, is full; some were given back if ``outcome`` is unknown.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        text = str(node_id)
        if len(text) != 2 * IDENTITY_BYTES or {*text} - {*"0123456789abcdef"}:
            raise SettingsError("node_id", node_id, "32 hexadecimal digits, in lower case")
        if type(force) is not bool:
            raise SettingsError("force", force, "True or False")
        return int((await self._context.ask("give_back", node_id=text, force=force)).get("moved", 0))

    async def pause_queue(self, name: str) -> None:
        """Pause a queue: it stores messages and delivers none until ``resume_queue``; a durable queue also after a
        restart.

        What is delivered already can be settled; what comes back waits.

        Checkpoint: always.  Cancellation: it may be paused or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("pause_queue", name=_check_queue(name))

    async def resume_queue(self, name: str) -> None:
        """Resume a paused queue: it delivers again from where it stopped.  Nothing happens if the queue is not paused.

        Checkpoint: always.  Cancellation: it may deliver or not.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("resume_queue", name=_check_queue(name))

    async def queue(self, name: str) -> QueueStatistics:
        """Return the message counts and state of a queue.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("queue", name=_check_queue(name))
        return QueueStatistics.of({"name": name, **values})

    async def queues(self) -> list[str]:
        """List the names of all queues, in alphabetical order.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names: list[str] = []
        more = True
        while more:
            found, more = await names_behind(self._context.ask, names[-1] if names else "")
            names += found
        return names

    async def create_divert(
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

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            SettingsError: a setting is not allowed.
            FilterError: the filter is no condition; says where.
            UsageError: it exists otherwise, or would close a loop.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names = {
            "name": check_name("name", name),
            "address": check_place("address", address),
            "forwarding_address": check_place("forwarding_address", forwarding_address),
        }
        if type(exclusive) is not bool:
            raise SettingsError("exclusive", exclusive, "True or False")
        text = None if filter is None else parse_filter(filter).text
        await self._context.ask("create_divert", **names, filter=text, exclusive=exclusive)

    async def delete_divert(self, name: str) -> None:
        """Delete a divert; the messages that were diverted stay where they are.

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such divert.
            BusyError: a prepared transaction still needs it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("delete_divert", name=check_name("name", name))

    async def diverts(self) -> list[Divert]:
        """List all diverts, by name in alphabetical order.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        found: list[Divert] = []
        more = True
        while more:
            values = await self._context.ask("diverts", after=found[-1].name if found else "")
            part = [Divert.of(values, index) for index in range(len(values)) if f"name{index}" in values]
            found += part
            more = bool(values.get("more")) and bool(part)
        return found

    async def bridges(self) -> list[BridgeStatistics]:
        """Return the statistics of the broker's bridges, by name; as ``Bridge.statistics()`` in process.

        The links of its cluster connections are among them, ``NAME to URL`` or to the node's name, and connectors of
        other brokers that are linked to this one, ``incoming``.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        found: list[BridgeStatistics] = []
        more = True
        while more:
            values = await self._context.ask("bridges", after=len(found))
            part = [BridgeStatistics.of(values, index) for index in range(len(values)) if f"name{index}" in values]
            found += part
            more = bool(values.get("more")) and bool(part)
        return found

    async def pause_bridge(self, name: str) -> None:
        """Pause a bridge until ``resume_bridge``, or until its broker starts again.

        What is being sent is finished first.

        Checkpoint: always.  Cancellation: it may be paused afterwards or not.
        Raises:
            NotFoundError: the broker has no such bridge.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("pause_bridge", name=check_name("name", name))

    async def resume_bridge(self, name: str) -> None:
        """Resume a paused bridge.

        Checkpoint: always.  Cancellation: it may be paused afterwards or not.
        Raises:
            NotFoundError: the broker has no such bridge.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("resume_bridge", name=check_name("name", name))

    async def broker(self) -> BrokerStatistics:
        """Return the state and counters of the broker; as ``Broker.statistics()`` in process.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("broker")
        try:
            return BrokerStatistics.of(values)
        except KeyError as error:
            raise violation("bad_header", f"the statistics of a broker lack {error}") from error

    async def explain_route(
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

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: a part of the message is not allowed.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        parse_place(address)
        if user is not None:
            check_user("user", user)
        texts = {"correlation_id": correlation_id, "group": group, "content_type": content_type}
        about = {"address": address, "user": user, **query(properties, texts, durable=durable, priority=priority)}
        values, steps = await self._context.pages("explain_route", routes.STEP_KEYS, **about)
        route = MessageRoute.of(values, steps)
        if check_everywhere(everywhere):
            message = {name: value for name, value in about.items() if name not in ("address", "user")}
            route = attrs.evolve(route, nodes=await node_routes(self._context.ask, route.steps, message))
        return route

    async def trace(self, message_id: MessageId, *, everywhere: bool = False) -> MessageTrace:
        """Find a message on this node: its queues, its state there, and its consumers.

        ``everywhere``: ask the other nodes of the cluster, too, and say from which node to which the message went.  A
        node remembers its last 4,096 runs that went to another node or came from there, until it is started again.

        Every run that the node holds is asked, in steps between which others have their turn.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: it is no message id.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        if type(message_id) is not MessageId:
            allowed = "a MessageId, such as delivery.message_id or MessageId.parse(text)"
            raise SettingsError("message_id", message_id, allowed)
        values, rows = await self._context.pages("trace", routes.LOCATION_KEYS, message_id=str(message_id))
        found = tuple(map(MessageLocation.of, rows))
        hops = await message_hops(self._context.ask, message_id) if check_everywhere(everywhere) else ()
        return MessageTrace(message_id=message_id, accepted=bool(values.get("accepted")), locations=found, hops=hops)

    async def cluster_queue(self, name: str) -> ClusterQueue:
        """Return the queue of a name on all nodes of the broker's clusters; each is asked, for a few seconds at most.

        A node that does not answer is listed, too, with what it has described before and how long ago it was heard.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: no queue can have that name.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return await cluster_queue(self._context.ask, name)

    async def stuck(self) -> list[StuckMessages]:
        """Return the messages on this node that do not move although a consumer wants them, with the cause of each.

        The broker's cluster connections look for them; ``stuck_timeout`` there says what counts as not moving.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return [StuckMessages.of(row) for row in (await self._context.pages("stuck", StuckMessages.keys()))[1]]

    async def flush(self) -> None:
        """Return when everything that this session has sent and acknowledged is stored.

        What a producer still gathers goes out first, and its confirms are waited for.

        Checkpoint: always.  Cancellation: it goes on its way.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: unknown.
        """
        context = self._context
        context.check()
        context.flusher.flush_now()
        await context.session.send_queue.drain()
        await context.ask("flush")


def _check_queue(name: str) -> str:
    parse_target(name, "name")
    return name


def _some(filter: str | None, limit: int | None) -> dict[str, Any]:
    """The arguments that select some of a queue's messages."""
    if filter is not None:
        parse_filter(filter)
    if limit is not None and (type(limit) is not int or not 0 < limit <= COUNTER_MAX):
        raise SettingsError("limit", limit, f"a whole number from 1 to {COUNTER_MAX}, or None")
    return {"filter": filter, "limit": limit or 0}
