"""Bridges: consume from a local queue, send to another broker, and acknowledge the messages that the other broker has
confirmed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

import attrs
import trio

from meshq.abc import Controllable, Env, LocalBroker, NodeControl, Service
from meshq.bridge._bridge_life import new_life
from meshq.bridge._forwarder import BridgeCounts, Forwarder
from meshq.bridge._forwarding_plan import DeliveryIds
from meshq.bridge._settings import BridgeOptions, BridgeSettings
from meshq.client import Client, ClientFactory, factory_of, on_failed_attempts
from meshq.errors import MeshqError, SettingsError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.settings import TLS, Secret, SSLContext, takes_settings
from meshq.statistics import BridgeStatistics


class Bridge(Service, Controllable):
    """A bridge, one of a broker's ``services``: forwards the messages of a local queue to another broker.

    ``target``: a URL, or the name of one of the broker's connectors.  Messages go to ``forwarding_address``, or to the
    address that they were sent to.  ``filter``: which ones; ``transformer``: a function from a ``Message`` to another
    one, or to None, which ends the message here; with what it fails comes again after ``retry_interval``, until it was
    delivered ``max_delivery_attempts`` times.  What the target refuses goes back as never delivered, and is tried again
    after ``retry_interval``.  ``use_duplicate_detection``: each message goes with an id of the bridge's, so that what
    is sent again after a crash is stored once; a message's own duplicate id goes along, and is not judged again.
    ``window``: messages under way; no more of them than the target remembers ids.  Other consumers of the queue take
    their share.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "bridge"

    @takes_settings(BridgeSettings)
    def __init__(
        self,
        name: str,
        *,
        queue: str,
        target: str,
        user: str | None = None,
        password: str | Secret | None = None,
        tls: TLS | SSLContext | None = None,
        **settings: Unpack[BridgeOptions],
    ) -> None:
        known = [field.name for field in attrs.fields(BridgeSettings)]
        for key in settings:
            if key not in known:
                raise SettingsError(key, "***", f"one of {', '.join(known)}, user, password, tls")
        self.settings: BridgeSettings = BridgeSettings(name=name, queue=queue, target=target, **settings)
        self.name = name
        self._warnings = Warnings("bridge", trio.current_time)
        secret = Secret(password) if password is not None else None
        #: The keywords ``user``, ``password`` and ``tls``, as they were given.
        self.login: dict[str, Any] = {"user": user, "password": secret, "tls": tls}
        self._life = new_life()
        self._counts = BridgeCounts()
        self._paused = False
        # The client of the target, while there is one.
        self._there: Client | None = None
        # Between its cancel scope and what must not be torn: a batch is being sent.
        self._scope = trio.CancelScope()
        self._sending = False
        self._resumed = trio.Event()

    def __repr__(self) -> str:
        return f"<Bridge {self.name!r} {self.settings.queue!r} to {self.settings.target!r} {self._shown_state()}>"

    def statistics(self) -> BridgeStatistics:
        """Return the counters of the bridge as a frozen record."""
        counts, settings = self._counts, self.settings
        return BridgeStatistics(
            name=self.name,
            queue=settings.queue,
            # What stands behind it is how it is dialed.
            target=settings.target.partition("?")[0],
            forwarding_address=settings.forwarding_address,
            state=self._shown_state(),
            carried=counts.carried,
            refused=counts.refused,
            failed=counts.failed,
            ended=counts.ended,
            rejected=counts.rejected,
            last_error=counts.last_error,
        )

    def _shown_state(self) -> str:
        """The state that statistics show."""
        state = self._life.state
        if state in ("new", "stopped"):
            return state
        # A batch that the target blocks may take long: the order to pause holds already.
        if self._paused:
            return "paused"
        lost = self._there is not None and self._there.statistics().state == "reconnecting"
        return "connecting" if state == "carrying" and lost else state

    def pause(self) -> None:
        """Pause the bridge until ``resume``, and leave the queue to its other consumers; twice is silent.

        The state is ``paused`` from now on; what is being sent is finished first.  It holds for this life of the
        broker.
        """
        self._paused = True
        if not self._sending:
            self._scope.cancel()
            if self._life.state not in ("new", "stopped"):
                self._life.on("pause")

    def resume(self) -> None:
        """Resume the bridge; twice is silent."""
        if self._paused:
            self._paused = False
            self._resumed.set()
            self._resumed = trio.Event()

    # -- as a service

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """The target, if it is neither a URL nor the name of a connector, or can't be dialed."""
        target = self.settings.target
        if "://" not in target and target not in connectors:
            known = ", ".join(sorted(connectors)) or "none"
            return [SettingsError("target", target, f"a URL, or one of the broker's connectors: {known}")]
        try:
            self._factory(connectors, env)
        except SettingsError as error:
            return [error]
        return []

    def announce(self, control: NodeControl) -> None:
        """Find the other broker's URL.

        Raises:
            SettingsError: it is the name of no connector, or can't be dialed.
        """
        for error in self.wrong_connectors(control.connectors, control.env):
            raise error

    def _factory(self, connectors: Mapping[str, str], env: Env) -> ClientFactory:
        target = self.settings.target
        named = "://" not in target
        url, setting = (connectors[target], f"connectors[{target!r}]") if named else (target, "target")
        given = {name: value for name, value in self.login.items() if value is not None}
        return factory_of(url, setting, env=env, client_id=self.name, **given, **self.settings.client())

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Carry messages, until cancelled.

        Checkpoint: always.
        Cancellation: what was received and is not confirmed by the other broker goes back to the queue.
        """
        check_in_trio("Broker")
        task_status.started()
        try:
            while True:
                while self._paused:
                    self._life.on("pause")
                    await self._resumed.wait()
                self._life.on("connect")
                try:
                    with trio.CancelScope() as self._scope:
                        await self._carry(broker)
                except MeshqError as error:
                    # Whatever went wrong, the messages are back in the queue, and go out again under the same ids.
                    self._counts.last_error = str(error)
                    self._warn("bridge_broken", f"the bridge {self.name} begins again: {error}", "")
                await self._rest("connect")
        finally:
            self._life.on("stop")

    async def _rest(self, event: str) -> None:
        """Wait until the next attempt, or until the bridge was paused and goes on."""
        if not self._paused:
            self._life.on(event)
            with trio.move_on_after(self.settings.retry_interval):
                await self._resumed.wait()

    def _warn(self, event: str, text: str, cause: str) -> None:
        self._warnings.say(event, text, cause)

    async def _carry(self, broker: LocalBroker) -> None:
        settings, control = self.settings, broker.control
        here = Client.over(partial(broker.acceptor.connect_local, "a service"), env=control.env, reconnect_attempts=0)
        self._there = there = self._factory(control.connectors, control.env).connect()
        # The block below is not entered before the target answers, which may be never.
        on_failed_attempts(there, self._not_reached)
        async with there, here:
            while not self._paused:
                async with here.consumer(settings.queue, filter=settings.filter, window=settings.window) as consumer:
                    queue = await here.queue(consumer.queue.rpartition("::")[2])
                    identify = DeliveryIds(control.store, queue.number)
                    forwarder = Forwarder(
                        settings=settings,
                        there=there,
                        consumer=consumer,
                        identify=identify if settings.use_duplicate_detection else None,
                        wall=control.env.wall,
                        address=queue.address,
                        counts=self._counts,
                        warn=self._warn,
                        paused=lambda: self._paused,
                    )
                    # Paused in this moment, the next checkpoint ends the block.
                    if not self._paused:
                        self._life.on("carry")
                    async with forwarder:
                        while await self._carry_some(forwarder) and not self._paused:
                            pass
                # The target takes nothing: meanwhile others may have what is in the queue, which stays in its order.
                await self._rest("rest")

    def _not_reached(self, error: MeshqError) -> None:
        self._counts.last_error = str(error)

    async def _carry_some(self, forwarder: Forwarder) -> bool:
        await forwarder.receive()
        self._sending = True
        try:
            return await forwarder.send()
        finally:
            self._sending = forwarder.is_sending
