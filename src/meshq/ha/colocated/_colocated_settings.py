"""The policy of a node that is a primary, and runs the backups of other nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final

import attrs

from meshq.abc import Activation, HAPolicy, NodeControl
from meshq.address import check_name
from meshq.errors import SettingsError
from meshq.ha._store_settings import SharedStoreBackup, SharedStorePrimary
from meshq.ha.colocated._store_place_plan import PLAIN, is_plain
from meshq.ha.replication import ReplicationBackup, ReplicationPrimary
from meshq.settings import in_range, is_bool

#: Seconds between two requests.
INTERVAL_S: Final = (0.001, 86_400.0)
#: Backups in one process: each has a share of its memory and of its descriptors.
BACKUPS_MAX: Final = 64
PORT_OFFSET: Final = (1, 65_535)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SettingsError("excludes", value, "a list of connectors' names")
    return tuple(check_name("excludes", name) for name in value)


def _root(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if type(path) is not str or not is_plain(path):
        raise SettingsError("shared_root", value, f"{PLAIN}, or None")
    return path


def _primary(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, SharedStorePrimary | ReplicationPrimary):
        raise SettingsError(attribute.name, value, "SharedStorePrimary(...) or ReplicationPrimary(...)")


def _backup(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, SharedStoreBackup | ReplicationBackup):
        raise SettingsError(attribute.name, value, "SharedStoreBackup(...) or ReplicationBackup(...)")


@attrs.frozen(kw_only=True)
class Colocated(HAPolicy):
    """The policy of a node that is a primary, and runs the backups of other nodes in its process.

    ``primary``: the policy of the node itself; ``backup``: that of the backups which it runs, of the same kind.
    ``request_backup``: while it serves, it asks the nodes of its cluster to run its backup, the one first that runs the
    fewest.  ``backup_request_retries``: so many times again while none takes
    it, ``backup_request_retry_interval`` seconds apart.  ``max_backups``: so many backups it runs, and refuses the next
    one.  ``backup_port_offset``: how much higher than its own the ports of the first backup are, those of the second
    twice as much.  ``excludes``: the names of connectors that stay as they are for its backups, as they lead to others.
    ``shared_root``: the directory beneath which the stores of nodes lie whose backups it runs; None: they lie anywhere
    but in directories of its own.

    Raises:
        SettingsError: a setting isn't allowed, or the two policies are of different kinds.
    """

    kind: ClassVar[str] = "colocated"

    primary: SharedStorePrimary | ReplicationPrimary = attrs.field(validator=_primary)
    backup: SharedStoreBackup | ReplicationBackup = attrs.field(validator=_backup)
    request_backup: bool = attrs.field(default=False, validator=is_bool)
    backup_request_retries: float = attrs.field(default=math.inf, validator=in_range(0, math.inf, whole=True))
    backup_request_retry_interval: float = attrs.field(default=5.0, validator=in_range(*INTERVAL_S))
    max_backups: int = attrs.field(default=1, validator=in_range(0, BACKUPS_MAX, whole=True))
    backup_port_offset: int = attrs.field(default=100, validator=in_range(*PORT_OFFSET, whole=True))
    excludes: tuple[str, ...] = attrs.field(default=(), converter=_names)
    shared_root: str | None = attrs.field(default=None, converter=_root)
    #: As the policy of the node itself says.
    wait_for_activation: bool = attrs.field(init=False, repr=False, eq=False)

    @wait_for_activation.default
    def _as_the_primary(self) -> bool:
        # What is no policy is refused after this.
        return getattr(self.primary, "wait_for_activation", True)

    def __attrs_post_init__(self) -> None:
        if self.replicates is not isinstance(self.backup, ReplicationBackup):
            raise SettingsError(
                "ha", self, "a primary and a backup of one kind: both shared store, or both replication"
            )

    @property
    def replicates(self) -> bool:
        """Whether each node has a store of its own, and follows another one."""
        return isinstance(self.primary, ReplicationPrimary)

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Take part as ``primary`` does."""
        return self.primary.activation(control)
