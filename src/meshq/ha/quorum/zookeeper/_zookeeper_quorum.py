"""The provider that asks an ensemble of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, TypeVar

import attrs
import trio
from trio import TaskStatus

from meshq.abc import Env, QuorumProvider, QuorumRecord, QuorumSession, Threads
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, MeshqError, RefusedError, SettingsError
from meshq.ha.quorum._held_lock import HeldLock
from meshq.ha.quorum._session_block import RunningSession, SessionBlock
from meshq.ha.quorum.zookeeper._kazoo import Ensemble, EnsembleSettings, KazooSession, check_installed
from meshq.ha.quorum.zookeeper._lock_node_machine import LockNode, Steps
from meshq.ids import IDENTITY_BYTES
from meshq.settings import TLS, Secret, SSLContext, check_tls, in_range, is_bool

T = TypeVar("T")
SESSION_S: Final = (0.02, 1_200.0)
WAIT_S: Final = (0.001, 86_400.0)
#: Above, a server that dies could take a renewal with it that the others have not heard of.
PERCENT: Final = (1, 33)
RETRIES_MAX: Final = 1_000
HOSTS_MAX: Final = 99
NAMESPACE_CHARACTERS_MAX: Final = 250
ROOT: Final = "/meshq"
_PORT_MAX: Final = 65_535
#: ``ssl.CERT_REQUIRED``: settings don't load ssl.
_REQUIRED: Final = 2
#: A holder renews its lock so often in a lease, with and without an answer.
_TRIES_IN_LEASE: Final = 12


def _place(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    known = host.startswith("[") and host.endswith("]") if ":" in host else bool(host)
    return bool(colon) and known and port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX


def _hosts(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    allowed = f"1 to {HOSTS_MAX} different places with commas between them, each HOST:PORT"
    if type(value) is not str or not value.isprintable() or "/" in value or " " in value:
        raise SettingsError(attribute.name, value, allowed)
    places = value.split(",")
    if len(places) > HOSTS_MAX or len(set(places)) < len(places) or not all(map(_place, places)):
        raise SettingsError(attribute.name, value, allowed)


def _namespace(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    allowed = f"1 to {NAMESPACE_CHARACTERS_MAX} characters without '/', and neither '.' nor '..'"
    if type(value) is not str or not 0 < len(value) <= NAMESPACE_CHARACTERS_MAX or not value.isprintable():
        raise SettingsError(attribute.name, value, allowed)
    if "/" in value or value in (".", ".."):
        raise SettingsError(attribute.name, value, allowed)


def _auth(value: Any) -> tuple[str, Secret] | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2 or type(value[0]) is not str:
        raise SettingsError("auth", "...", "(user, password), or None")
    user, password = value
    if not user or ":" in user:
        raise SettingsError("auth", user, "a user without ':', and a password")
    return user, password if isinstance(password, Secret) else Secret(password)


def _tls(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_tls(attribute.name, value)


@attrs.frozen(kw_only=True)
class ZooKeeperQuorum(QuorumProvider):
    """A quorum that is an ensemble of ZooKeeper, three servers or more.

    ``hosts``: the places of its servers, such as ``"a:2181,b:2181,c:2181"``.  ``session``: seconds after which another
    node may have the lock of a node that is not heard of; 2 to 20 ticks of the servers.  ``session_percent``: the part
    of the session for which a renewal of the lock holds, and after which a node that has lost its connection gives up
    its role.  ``connection_timeout``: seconds for a connection, and for an answer.  ``retries``: so many further tries,
    with ``retry_interval`` seconds before each.  ``namespace``: keeps quorums apart that use the same ensemble; what is
    kept stands below ``/meshq/NAMESPACE``.  ``auth``: a user and a password; only that user may change what is kept.
    ``tls``: ``TLS(...)``, which is TLS 1.3, or an ``ssl.SSLContext``.  ``insecure``: also over plaintext to other
    machines, which may read the password, and with a context that does not check whom it talks to.  Needs the extra
    ``zookeeper``.

    Raises:
        SettingsError: a setting isn't allowed.
        UsageError: the package kazoo is not installed.
    """

    hosts: str = attrs.field(validator=_hosts, kw_only=False)
    session_s: float = attrs.field(default=18.0, alias="session", validator=in_range(*SESSION_S))
    session_percent: float = attrs.field(default=33, validator=in_range(*PERCENT))
    connection_timeout: float = attrs.field(default=8.0, validator=in_range(*WAIT_S))
    retries: int = attrs.field(default=1, validator=in_range(0, RETRIES_MAX, whole=True))
    retry_interval: float = attrs.field(default=1.0, validator=in_range(*WAIT_S))
    namespace: str | None = attrs.field(default=None, validator=_namespace)
    auth: tuple[str, Secret] | None = attrs.field(default=None, converter=_auth)
    tls: TLS | SSLContext | None = attrs.field(default=None, validator=_tls)
    insecure: bool = attrs.field(default=False, validator=is_bool)
    env: Env | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        if not self.insecure:
            self._check_secure()
        check_installed()

    def _check_secure(self) -> None:
        if self.tls is None:
            for place in self.hosts.split(","):
                if not Endpoint("tcp", place.rpartition(":")[0].strip("[]").lower(), 0).loopback:
                    raise SettingsError("hosts", place, "a loopback host, or tls=, or insecure=True")
        elif not isinstance(self.tls, TLS) and not (self.tls.verify_mode == _REQUIRED and self.tls.check_hostname):
            allowed = "an ssl.SSLContext with CERT_REQUIRED and check_hostname, or insecure=True"
            raise SettingsError("tls", self.tls, allowed)

    def session(self, node_id: bytes, instance: bytes) -> AbstractAsyncContextManager[QuorumSession]:
        """The part of a node in the quorum, until the block is left."""
        for name, value in (("node_id", node_id), ("instance", instance)):
            if type(value) is not bytes or len(value) != IDENTITY_BYTES:
                raise SettingsError(name, value, f"{IDENTITY_BYTES} bytes")
        parts = [ROOT, *([self.namespace] if self.namespace else []), node_id.hex()]
        return SessionBlock(ZooKeeperSession(self, "/".join(parts), instance, _env(self.env)))


def _env(given: Env | None) -> Env:
    if given is not None:
        return given
    from meshq.env import default_env

    return default_env()


class ZooKeeperSession(RunningSession):
    """The part of a node in an ensemble of ZooKeeper; ``client`` makes the way to it."""

    def __init__(
        self,
        settings: ZooKeeperQuorum,
        path: str,
        instance: bytes,
        env: Env,
        client: Callable[[EnsembleSettings, Threads, Callable[[], None]], Ensemble] = KazooSession,
    ) -> None:
        self._settings = settings
        self._lease_s = float(settings.session_s) * settings.session_percent / 100
        self._lock = HeldLock()
        self._machine = LockNode(path, instance, secured=settings.auth is not None)
        ensemble = EnsembleSettings(
            hosts=settings.hosts,
            session_s=float(settings.session_s),
            connection_timeout_s=settings.connection_timeout,
            retry_interval_s=settings.retry_interval,
            auth=settings.auth,
            tls=settings.tls,
        )
        self._ensemble = client(ensemble, env.threads, self._lock.end)
        # Whoever takes, changes or gives back the lock waits for whoever does already.
        self._turn = trio.Lock()
        self._running = trio.CancelScope()

    @property
    def held_until(self) -> float:
        """The moment until which the lock is surely held; 0.0 when it is not held."""
        return self._lock.until

    @property
    def server(self) -> tuple[str, int]:
        """The server that was connected last."""
        return self._ensemble.server

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the session at the ensemble and renew the lock, until ``end``."""
        self._ensemble.start()
        try:
            with self._running:
                task_status.started()
                await self._keep_renewing()
        finally:
            with trio.CancelScope(shield=True):
                await self._ensemble.stop(self._settings.connection_timeout)

    async def end(self) -> None:
        """Give the lock back, and end ``run``."""
        with trio.move_on_after(self._settings.connection_timeout):
            # What can't be given back ends with the session at the ensemble.
            with suppress(MeshqError):
                await self.release()
        self._running.cancel()

    async def read(self) -> QuorumRecord:
        """Return the record."""
        if not self._lock.until:
            return await self._again(self._machine.read)
        async with self._turn:
            return await self._again(self._machine.read, renewing=True)

    async def acquire(self) -> bool:
        """Try to get the lock."""
        async with self._turn:
            if not self._lock.until:
                if not await self._again(self._machine.acquire):
                    return False
                until = self._ensemble.wrote_at + self._lease_s
                if until <= trio.current_time():
                    # It came too late: nobody waits for a whole session because of that.
                    await self._again(self._machine.release)
                    return False
                self._lock.take(until)
            return True

    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        """Store a record in the place of another one."""
        async with self._turn:
            number = self._lock.number
            if not self._lock.until:
                raise RefusedError("the lock of the node id is not held", outcome="not_done")
            try:
                stored = await self._again(lambda: self._machine.compare_and_set(expected, new), renewing=True)
            except RefusedError:
                self._lock.end()
                raise
            if stored:
                self._lock.renew(self._ensemble.wrote_at + self._lease_s, number)
            return stored

    async def release(self) -> None:
        """Give the lock back."""
        self._lock.end()
        await trio.lowlevel.checkpoint()
        if self._machine.claimed:
            async with self._turn:
                await self._again(self._machine.release)

    async def lost(self) -> None:
        """Wait until the lock is not held."""
        await self._lock.wait_lost()

    async def _keep_renewing(self) -> None:
        while True:
            if not self._machine.claimed:
                await self._lock.wait_taken()
            # Without an answer soon again, perhaps at another server, before the lock runs out.
            await trio.sleep(self._lease_s / _TRIES_IN_LEASE)
            await self._renewed()

    async def _renewed(self) -> None:
        """Renew the lock, if it is held."""
        async with self._turn:
            await self._renewed_in_turn()

    async def _renewed_in_turn(self) -> bool:
        try:
            if self._lock.until:
                await self._renew()
            elif self._machine.claimed:
                # The time has run out, and the session at the ensemble has not: nobody else gets the lock.
                await self._carry_out(self._machine.release())
        except ConnectionBrokenError:
            return False
        except MeshqError:
            self._lock.end()
        return True

    async def _renew(self) -> None:
        number = self._lock.number
        await self._carry_out(self._machine.renew())
        self._lock.renew(self._ensemble.wrote_at + self._lease_s, number)

    async def _again(self, make: Callable[[], Steps[T]], *, renewing: bool = False) -> T:
        """Carry steps out, and again if the ensemble could not be asked; ``renewing``: renew the lock in between."""
        for left in range(self._settings.retries, -1, -1):
            try:
                return await self._carry_out(make())
            except ConnectionBrokenError:
                if self._ensemble.refusal is not None:
                    raise self._ensemble.refusal from None
                if not left:
                    raise
            end = trio.current_time() + self._settings.retry_interval
            if not (renewing and await self._renewed_until(end)):
                await trio.sleep_until(end)
        raise AssertionError("the last try returns or raises")

    async def _renewed_until(self, end: float) -> bool:
        """Try to renew the lock until then, as long as it is held; whether the ensemble has answered.

        Whoever waits for another try has the turn, so nobody else renews the lock meanwhile.
        """
        while self._lock.until and (left := end - trio.current_time()) > 0:
            await trio.sleep(min(left, self._lease_s / _TRIES_IN_LEASE))
            if self._lock.until and await self._renewed_in_turn():
                return True
        return False

    async def _carry_out(self, steps: Steps[T]) -> T:
        patience = self._settings.connection_timeout
        try:
            request = next(steps)
            while True:
                # Whoever holds the lock has to have its answer before the lock runs out.
                share = self._lease_s / 3 if self._lock.until else self._lease_s
                connect_s = min(patience, share) if self._lock.until else patience
                answer_s = min(patience, share)
                request = steps.send(await self._ensemble.ask(request, connect_s=connect_s, answer_s=answer_s))
        except StopIteration as end:
            value: T = end.value
            return value
