"""A bridge: consumes from a queue of its own broker, sends to another one, and acknowledges what that has confirmed."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

import attrs
import trio

from meshq import limits
from meshq.abc import LocalBroker, NodeControl, Service, WallClock
from meshq.bridge._carrying_plan import bridged_id, carried, time_left
from meshq.bridge._settings import BridgeSettings
from meshq.client import Client, ClientFactory, Consumer, Delivery
from meshq.errors import MeshqError, SettingsError
from meshq.logs import Warnings
from meshq.settings import Secret, takes_settings

#: Messages that are sent before an answer is waited for.
BATCH = 1_000


@attrs.frozen(kw_only=True)
class BridgeStatistics:
    """A bridge now."""

    name: str
    #: ``new``, ``connecting``, ``carrying`` or ``stopped``.
    state: str
    #: Messages that the other broker has confirmed, in this life.
    carried: int


class Bridge(Service):
    """Carries messages from a queue here to another broker, one of a broker's ``services``.

    ``target``: a URL, or the name of one of the broker's connectors.  Messages go to ``forwarding_address``, or to the
    address that they were sent to.  ``filter``: which ones; ``transformer``: a function from a ``Message`` to another
    one, or to None, which ends the message here; with what it fails comes again after ``retry_interval``, until it was
    delivered ``max_delivery_attempts`` times.  ``use_duplicate_detection``: a message without a duplicate id gets
    one, so that what is sent again after a crash is stored once; a message's own is kept.  Other consumers of the
    queue take their share.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    @takes_settings(BridgeSettings)
    def __init__(
        self,
        name: str,
        *,
        queue: str,
        target: str,
        user: str | None = None,
        password: str | Secret | None = None,
        tls: Any = None,
        **settings: Any,
    ) -> None:
        known = [field.name for field in attrs.fields(BridgeSettings)]
        for key in settings:
            if key not in known:
                raise SettingsError(key, "***", f"one of {', '.join(known)}, user, password, tls")
        self.settings = BridgeSettings(name=name, queue=queue, target=target, **settings)
        self.name = name
        self._warnings = Warnings("bridge", trio.current_time)
        self._login = {"user": user, "password": Secret(password) if password is not None else None, "tls": tls}
        self._url = ""
        self._state = "new"
        self._carried = 0

    def __repr__(self) -> str:
        return f"<Bridge {self.name!r} {self.settings.queue!r} to {self.settings.target!r} {self._state}>"

    def statistics(self) -> BridgeStatistics:
        """What it has done."""
        return BridgeStatistics(name=self.name, state=self._state, carried=self._carried)

    def announce(self, control: NodeControl) -> None:
        """Find the other broker's URL.

        Raises:
            SettingsError: it is the name of no connector, or can't be dialed.
        """
        target = self.settings.target
        url = target if "://" in target else control.connectors.get(target)
        if url is None:
            known = ", ".join(sorted(control.connectors)) or "none"
            raise SettingsError("target", target, f"a URL, or one of the broker's connectors: {known}")
        self._url = url
        self._factory(control)

    def _factory(self, control: NodeControl) -> ClientFactory:
        given = {name: value for name, value in self._login.items() if value is not None}
        return ClientFactory(self._url, env=control.env, client_id=self.name, **given, **self.settings.client())

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry messages, until cancelled.

        Checkpoint: always.
        Cancellation: what was received and is not confirmed by the other broker goes back to the queue.
        """
        task_status.started()
        while True:
            self._state = "connecting"
            try:
                await self._carry(broker)
            except MeshqError as error:
                # Whatever went wrong, the messages are back in the queue, and go out again under the same ids.
                self._warnings.say("bridge_broken", f"the bridge {self.name} begins again: {error}")
            finally:
                self._state = "stopped"
            await trio.sleep(self.settings.retry_interval)

    async def _carry(self, broker: LocalBroker) -> None:
        settings, control = self.settings, broker.control
        here = Client.over(broker.open_link, env=control.env, reconnect_attempts=0)
        there = self._factory(control).connect()
        async with (
            there,
            here,
            here.consumer(settings.queue, filter=settings.filter, window=settings.window) as consumer,
        ):
            self._state = "carrying"
            number = (await here.queue(consumer.queue.rpartition("::")[2])).number
            identify = partial(bridged_id, control.node_id, number) if settings.use_duplicate_detection else None
            while True:
                await self._carry_some(there, consumer, identify, control.env.wall)

    async def _carry_some(self, there: Client, consumer: Consumer, identify: Any, wall: WallClock) -> None:
        settings = self.settings
        batch = await consumer.receive_many(min(BATCH, settings.window))
        now = wall.now_ms() / 1000
        for large, part in groupby(batch, key=_is_large):
            deliveries = list(part)
            if large:
                for delivery in deliveries:
                    await self._carry_large(there, delivery, identify, now)
                continue
            parts, failed = carried(
                deliveries,
                address=settings.forwarding_address,
                transformer=settings.transformer,
                identify=identify,
                now=now,
            )
            for address, messages in parts:
                await there.send_many(address, messages)
            await consumer.ack(*[delivery for place, delivery in enumerate(deliveries) if place not in failed])
            self._carried += len(deliveries) - len(failed)
            if failed:
                # They don't hold up the others, and come again, as often as the settings of their address have it.
                text = f"the bridge {self.name} gives messages back: its transformer {next(iter(failed.values()))}"
                self._warnings.say("bridge_returned", text)
                await consumer.nack(*[deliveries[place] for place in failed], delay=settings.retry_interval)

    async def _carry_large(self, there: Client, delivery: Delivery, identify: Any, now: float) -> None:
        """Carry a message that is no ``Message``: its body is read while it is sent."""
        settings = self.settings
        if settings.transformer is not None:
            size = delivery.size
            text = f"the bridge {self.name} rejects a message of {size} bytes, which its transformer can't be given"
            self._warnings.say("bridge_rejected", text)
            await delivery.reject()
            return
        duplicate_id = delivery.duplicate_id
        if duplicate_id is None and identify is not None:
            duplicate_id = identify(delivery.sequence)
        async with delivery.open() as stream:
            await there.send(
                settings.forwarding_address or delivery.address,
                stream,
                properties=delivery.properties or None,
                durable=delivery.durable,
                priority=delivery.priority,
                ttl=time_left(delivery.expiration, now),
                group=delivery.group,
                duplicate_id=duplicate_id,
                correlation_id=delivery.correlation_id,
                reply_to=delivery.reply_to,
                content_type=delivery.content_type,
            )
        await delivery.ack()
        self._carried += 1


def _is_large(delivery: Delivery) -> bool:
    """Whether a message is larger than what an ordinary one may be."""
    return delivery.size > limits.MESSAGE_BYTES_MAX
