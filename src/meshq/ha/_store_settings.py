"""The policies of a pair that shares a store."""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import attrs

from meshq.abc import Activation, HAPolicy, NodeControl
from meshq.errors import SettingsError
from meshq.ha._fence_plan import check_fence_command
from meshq.ha._hosts_plan import check_hosts_of
from meshq.ha._scale_down import ScaleDown, check_scale_down, never_serves
from meshq.ha._turns_plan import Role
from meshq.settings import in_range, is_bool

#: Seconds of a lease: below, a sync that takes long would end it; above, an operator waits for nothing.
LEASE_S = (0.1, 3_600.0)
#: Seconds between two looks at the lock.
PERIOD_S = (0.01, 60.0)
WAIT_S = (0.001, 86_400.0)


@attrs.frozen(kw_only=True)
class StoreRules:
    """The rules by which a node competes for a shared store, from its policy.

    ``makes_store``: a directory without a store gets a new one; otherwise the node waits until the store is there.
    """

    role: Role
    failover_on_shutdown: bool
    lease: float
    lock_check_period: float
    fence_command: tuple[str, ...] | None
    fence_timeout: float
    check_hosts: tuple[str, ...]
    check_hosts_period: float
    check_hosts_timeout: float
    allow_failback: bool = False
    restart_backup: bool = True
    makes_store: bool = True


def _lease(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    in_range(*LEASE_S)(instance, attribute, value)


def _check_period(policy: SharedStorePrimary | SharedStoreBackup) -> None:
    if policy.lock_check_period > policy.lease / 2:
        allowed = f"seconds up to half of the lease of {policy.lease:g} s"
        raise SettingsError("lock_check_period", policy.lock_check_period, allowed)


def _rules(policy: SharedStorePrimary | SharedStoreBackup, **of_its_own: Any) -> StoreRules:
    shared = {one.name for one in attrs.fields(StoreRules)} & {one.name for one in attrs.fields(type(policy))}
    return StoreRules(**{name: getattr(policy, name) for name in shared}, **of_its_own)


def _join(rules: StoreRules, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
    from meshq.ha._store_competition import joined

    if control.data_dir is None:
        raise SettingsError("data_dir", None, "the directory that the nodes share")
    return joined(rules, control, control.data_dir)


@attrs.frozen(kw_only=True)
class SharedStorePrimary(HAPolicy):
    """The policy of the first node of a pair that shares a ``data_dir``, of which one node has the store at a time.

    ``failover_on_shutdown``: a clean stop lets a backup take over; otherwise backups wait until a primary starts.
    ``wait_for_activation``: the broker's block is entered when the node is active, not already when it waits.
    ``lease``: seconds for which the node acts without having looked at its store; where a server gives locks away, less
    than that server's patience.  ``lock_check_period``: seconds between two tries of a node that waits.
    ``fence_command``: run, with its arguments, when the node that has the store hangs; exit status 0 says that it is
    dead.  ``{name} {host} {pid} {node_id} {epoch}`` stand for that node; it has ``fence_timeout`` seconds.
    ``check_hosts``: hosts (``"host:port"``) of which one answers within ``check_hosts_timeout`` unless this node is cut
    off; a node that is cut off does not serve.  They are asked every ``check_hosts_period``.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "shared_store_primary"

    failover_on_shutdown: bool = attrs.field(default=False, validator=is_bool)
    wait_for_activation: bool = attrs.field(default=True, validator=is_bool)
    lease: float = attrs.field(default=5.0, validator=_lease)
    lock_check_period: float = attrs.field(default=0.1, validator=in_range(*PERIOD_S))
    fence_command: tuple[str, ...] | None = attrs.field(default=None, converter=check_fence_command)
    fence_timeout: float = attrs.field(default=30.0, validator=in_range(WAIT_S[0], math.inf))
    check_hosts: tuple[str, ...] = attrs.field(default=(), converter=check_hosts_of)
    check_hosts_period: float = attrs.field(default=10.0, validator=in_range(*WAIT_S))
    check_hosts_timeout: float = attrs.field(default=1.0, validator=in_range(*WAIT_S))

    def __attrs_post_init__(self) -> None:
        _check_period(self)

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Join the competition for the store, before all backups."""
        return _join(_rules(self, role="primary"), control)


@attrs.frozen(kw_only=True)
class SharedStoreBackup(HAPolicy):
    """The policy of a node that takes over the ``data_dir`` which it shares when the node that has the store is gone.

    ``allow_failback``: once it serves, it gives the store back to a primary that comes back; otherwise it goes on.
    ``restart_backup``: it waits again after that; otherwise its broker stops.  ``failover_on_shutdown``: a clean stop
    of the node, while it serves, lets another backup take over.  ``scale_down``: it never serves clients: what
    it takes over it hands over to another node, and waits again.  All other settings are as of ``SharedStorePrimary``.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "shared_store_backup"

    allow_failback: bool = attrs.field(default=False, validator=is_bool)
    failover_on_shutdown: bool = attrs.field(default=False, validator=is_bool)
    restart_backup: bool = attrs.field(default=True, validator=is_bool)
    scale_down: ScaleDown | None = attrs.field(default=None, validator=check_scale_down)
    wait_for_activation: bool = attrs.field(default=False, validator=is_bool)
    lease: float = attrs.field(default=5.0, validator=_lease)
    lock_check_period: float = attrs.field(default=0.1, validator=in_range(*PERIOD_S))
    fence_command: tuple[str, ...] | None = attrs.field(default=None, converter=check_fence_command)
    fence_timeout: float = attrs.field(default=30.0, validator=in_range(WAIT_S[0], math.inf))
    check_hosts: tuple[str, ...] = attrs.field(default=(), converter=check_hosts_of)
    check_hosts_period: float = attrs.field(default=10.0, validator=in_range(*WAIT_S))
    check_hosts_timeout: float = attrs.field(default=1.0, validator=in_range(*WAIT_S))

    def __attrs_post_init__(self) -> None:
        _check_period(self)
        never_serves(self.scale_down, waits=self.wait_for_activation)

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Join the competition for the store, after all primaries."""
        return _join(_rules(self, role="backup"), control)
