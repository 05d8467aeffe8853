"""A discovery group: listens to announcements, and knows which nodes are there."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, get_args

import attrs
import trio

from meshq.abc import BroadcastChannel, BroadcastEndpoint, Env, LocalBroker, NodeControl, Service
from meshq.concurrency import ChangeSignal
from meshq.discovery._datagram_format import RefusalReason, RefusedDatagram, decode_announcement
from meshq.discovery._known_nodes_machine import DiscoveredNode, KnownNodes, NodeChange
from meshq.discovery._settings import PERIODS_PER_REFRESH, DiscoverySettings, key_of
from meshq.errors import CallTimeoutError, MeshqError, NotActiveError, SettingsError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.settings import Secret

MS_PER_S: Final = 1_000
#: Seconds until an endpoint that can't be used is tried again.
RETRY_S: Final = 1.0
#: Refusals that an operator can do nothing about: other programs, damage, and what networks do by themselves.
_ONLY_COUNTED: Final = frozenset({"foreign", "malformed", "oversized", "replayed"})


@attrs.frozen(kw_only=True)
class DiscoveryStatistics:
    """The counters of a discovery group since its broker is active.

    ``nodes``: the nodes that are known now.  ``datagrams``: the datagrams that were received.  ``refused``: by reason,
    the datagrams that did not count.
    """

    nodes: int
    datagrams: int
    refused: Mapping[str, int]


class DiscoveryListener:
    """A listener at one endpoint, with the nodes that it knows."""

    def __init__(
        self, settings: DiscoverySettings, env: Env, own: bytes, warnings: Warnings, changed: ChangeSignal
    ) -> None:
        self._settings = settings
        self._env = env
        self._warnings = warnings
        self._key = key_of(settings.secret)
        self._known = KnownNodes(settings.refresh_timeout, own=own, signed=self._key is not None)
        self._datagrams = 0
        self._refused: Counter[str] = Counter()
        self._changed = changed
        #: Why the endpoint can't be used now; empty while it can.
        self.trouble: str = ""

    async def run(self) -> None:
        """Listen until cancelled.

        Checkpoint: always.
        Cancellation: the channel is closed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire)
            while True:
                try:
                    channel = await self._settings.endpoint.open(self._env)
                    self.trouble = ""
                    try:
                        await self._listen(channel)
                    finally:
                        channel.close()
                except (MeshqError, OSError) as error:
                    text = f"the discovery group {self._settings.name} can't listen: {error}"
                    self._warnings.say("cannot_listen", text)
                    self.trouble = str(error)
                    await trio.sleep(RETRY_S)

    def nodes(self) -> tuple[DiscoveredNode, ...]:
        """Return the known nodes in the order of their ids."""
        return self._known.nodes()

    def statistics(self) -> DiscoveryStatistics:
        """Return the counters."""
        refused = {reason: self._refused[reason] for reason in get_args(RefusalReason)}
        return DiscoveryStatistics(nodes=len(self._known), datagrams=self._datagrams, refused=refused)

    async def _listen(self, channel: BroadcastChannel) -> None:
        while True:
            datagram = await channel.receive()
            self._datagrams += 1
            found = decode_announcement(datagram, self._key)
            if isinstance(found, RefusedDatagram):
                self._refuse(found)
                continue
            heard = self._known.hear(found, trio.current_time())
            self._took(heard.changes)
            if heard.refused is not None:
                self._refuse(heard.refused)
            elif self._settings.refresh_timeout < PERIODS_PER_REFRESH * found.period_ms / MS_PER_S:
                text = (
                    f"the discovery group {self._settings.name} drops nodes after {self._settings.refresh_timeout:g} s,"
                    f" and {found.name} announces itself each {found.period_ms / MS_PER_S:g} s: it will come and go"
                )
                self._warnings.say("refresh_timeout_too_short", text, found.node_id.hex())

    async def _expire(self) -> None:
        while True:
            with trio.move_on_at(self._known.next_expiry()):
                await self._changed.wait()
            self._took(self._known.expire(trio.current_time()))

    def _took(self, changes: Sequence[NodeChange]) -> None:
        for change in changes:
            node = change.node
            at = ", ".join(node.places)
            text = f"the node {node.name} at {at}: {change.reason}"
            # Anybody who can send datagrams can make up nodes, and have a known one be somewhere else each time.
            cause = f"{node.node_id.hex()} {at}"
            self._warnings.say(f"discovered_node_{change.reason}", text, cause, level=logging.INFO)
        if changes:
            self._changed.tell()

    def _refuse(self, refused: RefusedDatagram) -> None:
        self._refused[refused.reason] += 1
        if refused.reason not in _ONLY_COUNTED:
            text = f"the discovery group {self._settings.name} refuses a datagram ({refused.reason}): {refused.text}"
            self._warnings.say("datagram_refused", text, refused.reason)


class DiscoveryGroup(Service):
    """A service that listens to the announcements of nodes at one endpoint.

    A node that is silent for ``refresh_timeout`` seconds is dropped.  ``initial_wait_timeout``: the seconds that
    ``wait_for`` waits unless told otherwise.  ``secret``: announcements that are not signed with it are refused.
    A broker has any number of discovery groups, with different names.

    While the endpoint can't be used, the broker goes on serving; a warning says so, and each second it is tried again.
    An endpoint says so by an error of meshq or of the system (``MeshqError``, ``OSError``); any other exception is a
    bug of the endpoint, and ends the broker.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "discovery_group"

    def __init__(
        self,
        name: str,
        endpoint: BroadcastEndpoint,
        *,
        refresh_timeout: float = 10.0,
        initial_wait_timeout: float = 10.0,
        secret: str | Secret | None = None,
    ) -> None:
        self.settings: DiscoverySettings = DiscoverySettings(
            name=name,
            endpoint=endpoint,
            refresh_timeout=refresh_timeout,
            initial_wait_timeout=initial_wait_timeout,
            secret=secret,
        )
        self.name = name
        self._listener: DiscoveryListener | None = None
        # Told when the known nodes change, and when the group begins and ends to listen.
        self._changed = ChangeSignal()
        self._warnings = Warnings("discovery", trio.current_time)

    def __repr__(self) -> str:
        known = "not served" if self._listener is None else f"nodes={len(self._listener.nodes())}"
        return f"<DiscoveryGroup {self.name!r} {self.settings.endpoint} {known}>"

    def announce(self, control: NodeControl) -> None:
        """Do nothing: a group listens only while its broker is active."""

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled.

        Checkpoint: always.
        Cancellation: no node is known any more.
        """
        check_in_trio("Broker")
        control = broker.control
        self._listener = DiscoveryListener(
            self.settings, control.env, bytes(control.node_id), self._warnings, self._changed
        )
        self._changed.tell()
        task_status.started()
        try:
            await self._listener.run()
        finally:
            self._listener = None
            self._changed.tell()

    def nodes(self) -> tuple[DiscoveredNode, ...]:
        """Return the nodes that announce themselves, in the order of their ids, without the own node.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._served().nodes()

    @property
    def known(self) -> tuple[DiscoveredNode, ...]:
        """The nodes that announce themselves, as in ``nodes()``; none while the broker isn't active."""
        return () if self._listener is None else self._listener.nodes()

    async def change(self) -> None:
        """Wait until the known nodes change.  Checkpoint: always.  Cancellation: nothing has changed."""
        check_in_trio("Broker")
        await self._changed.wait()

    def statistics(self) -> DiscoveryStatistics:
        """Return the counters of the group.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._served().statistics()

    async def wait_for(self, nodes: int = 1, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Return when so many other nodes are known; ``timeout``: None is ``initial_wait_timeout``.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed.
            CallTimeoutError: the time is up; the error says how many nodes are known.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("Broker")
        if type(nodes) is not int or nodes < 0:
            raise SettingsError("nodes", nodes, "a whole number, 0 or more")
        limit = self.settings.initial_wait_timeout if timeout is None else timeout
        if type(limit) not in (int, float) or not 0 <= limit <= math.inf:
            raise SettingsError("timeout", timeout, "a number of seconds, 0 or more, or None")
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(limit):
            while len(self._served().nodes()) < nodes:
                await self._changed.wait()
        # The node that was waited for may have come at the very end of the time.
        known = len(self._served().nodes())
        if known < nodes:
            text = f"{known} of {nodes} nodes after {limit:g} s"
            raise CallTimeoutError(text, outcome="not_done") from TimeoutError(f"waited {limit:g} s for a change")

    def _served(self) -> DiscoveryListener:
        if self._listener is None:
            raise NotActiveError(f"the discovery group {self.name!r} is not served")
        return self._listener
