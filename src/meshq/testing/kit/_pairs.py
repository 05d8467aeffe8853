"""The pairs of a cluster: their stores, and the policy by which each node serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from meshq.abc import HAPolicy, QuorumProvider, QuorumRecord
from meshq.errors import NotActiveError, UsageError, short
from meshq.ha import ReplicationBackup, ReplicationPrimary, SharedStoreBackup, SharedStorePrimary
from meshq.ha.quorum import node_id_of
from meshq.node import Broker
from meshq.testing._quorum import MemoryQuorum

#: The ways in which nodes have backups.
KINDS: Final = ("replication", "shared_store")
#: By replication: the session of a node at the quorum, and the silence after which a link is given up; seconds.
SESSION_S: Final = 6.0
SILENCE_S: Final = 6.0
#: The name of a backup is that of its primary, and this.
SUFFIX: Final = "b"


def check_ha(value: object) -> None:
    """Raise ``UsageError`` unless nodes can have backups of this kind."""
    if value is not None and value not in KINDS:
        allowed = ", ".join(repr(kind) for kind in KINDS)
        raise UsageError(f"ha={short(value)}: this version of meshq has no such backups; allowed: {allowed}, None")


def backups_of(primaries: Sequence[str], ha: str | None) -> list[str]:
    """Return the names of the backups, one for each primary; none without ``ha``."""
    return [f"{name}{SUFFIX}" for name in primaries] if ha is not None else []


def store_of(name: str) -> str:
    """Return the name of the primary of a node's pair, by which the store is called; its own if it has no other one."""
    return name.removesuffix(SUFFIX)


def policy_of(name: str, ha: str | None, quorum: QuorumProvider | None = None) -> HAPolicy | None:
    """Return the policy of a node; None: it serves from its start to its stop."""
    first = store_of(name) == name
    if ha is None:
        return None
    if quorum is not None:
        group: dict[str, Any] = {
            "group_name": store_of(name),
            "quorum": quorum,
            "retry_interval": 0.1,
            "max_retry_interval": 1.0,
        }
        return ReplicationPrimary(wait_for_activation=False, **group) if first else ReplicationBackup(**group)
    return SharedStorePrimary(wait_for_activation=False) if first else SharedStoreBackup()


def serves(name: str, states: Mapping[str, str]) -> bool:
    """Whether a node serves, or waits while another node of its pair serves."""
    if states[name] == "active":
        return True
    others = [state for other, state in states.items() if other != name and store_of(other) == store_of(name)]
    return states[name] == "waiting" and "active" in others


def ha_settings(name: str, ha: str | None, quorum: QuorumProvider | None = None) -> dict[str, Any]:
    """Return the keywords of ``Broker`` for a node of a pair; none without ``ha``."""
    policy = policy_of(name, ha, quorum)
    if policy is None:
        return {}
    if quorum is not None and store_of(name) == name:
        # A new primary begins before its backup, which could say that it has no store.
        return {"ha": policy, "node_id": node_id_of(name)}
    return {"ha": policy}


def link_settings(ha: str | None) -> dict[str, Any]:
    """Return the keywords of the cluster connection of a node."""
    return {"connection_ttl": SILENCE_S} if ha == "replication" else {}


def standing_of(record: QuorumRecord | None, name: str) -> str:
    """Return ``newest`` or ``older`` for the copy of a node, by the record of a quorum; None: nobody has claimed."""
    members = () if record is None else record.in_sync
    return "newest" if name in [member.partition("/")[0] for member in members] else "older"


class Pairs:
    """The pairs of one simulated cluster."""

    def __init__(self, ha: str | None) -> None:
        self._ha = ha
        # It is never out of reach: what a test cuts are the links between nodes.
        self._quorum = MemoryQuorum(session=SESSION_S) if ha == "replication" else None
        # By the name of the primary; a node that has just begun knows its own not yet.
        self._node_ids: dict[str, bytes] = {}

    @property
    def share_stores(self) -> bool:
        """Whether the nodes of a pair use one disk."""
        return self._ha == "shared_store"

    def broker_settings(self, name: str) -> dict[str, Any]:
        """Return keywords of the broker of a node."""
        return ha_settings(name, self._ha, self._quorum)

    def copy_of(self, broker: Broker | None, name: str) -> str:
        """Return ``newest`` or ``older`` for the copy of a node, by the record of the quorum; nothing without one."""
        if self._quorum is None or broker is None:
            return ""
        with suppress(NotActiveError):
            self._node_ids[store_of(name)] = bytes(broker.node_id)
        node_id = self._node_ids.get(store_of(name))
        return standing_of(None if node_id is None else self._quorum.record(node_id), name)

    def link_settings(self) -> dict[str, Any]:
        """Return keywords of the cluster connection of a node."""
        return link_settings(self._ha)


def waits_for(broker: Broker, name: str) -> bool:
    """Whether a backup is ready to take over from the broker of its primary."""
    waiting = [member.name for member in broker.ha.waiting]
    return name in waiting or name in [replica.name for replica in broker.ha.replicas if replica.in_sync]
