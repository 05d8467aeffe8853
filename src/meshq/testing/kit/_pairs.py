"""The pairs of a cluster: which nodes share a store, and by which policy each of them serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from meshq.abc import HAPolicy
from meshq.errors import UsageError, short
from meshq.ha import SharedStoreBackup, SharedStorePrimary

#: The ways in which nodes have backups.
KINDS: Final = ("shared_store",)
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
    """Return the name of the primary with which a node shares its store, its own if it has no other one."""
    return name.removesuffix(SUFFIX)


def policy_of(name: str, ha: str | None) -> HAPolicy | None:
    """Return the policy of a node; None: it serves from its start to its stop."""
    if ha is None:
        return None
    return SharedStorePrimary(wait_for_activation=False) if store_of(name) == name else SharedStoreBackup()


def serves(name: str, states: Mapping[str, str]) -> bool:
    """Whether a node serves, or waits while another node of its pair serves."""
    if states[name] == "active":
        return True
    others = [state for other, state in states.items() if other != name and store_of(other) == store_of(name)]
    return states[name] == "waiting" and "active" in others


def ha_settings(name: str, ha: str | None) -> dict[str, Any]:
    """Return the keywords of ``Broker`` for a node of a pair; none without ``ha``."""
    policy = policy_of(name, ha)
    return {} if policy is None else {"ha": policy}
