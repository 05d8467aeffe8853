"""The table of a quorum in a policy: which kind it is, and the other words for its keys."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import attrs

from meshq.abc import QuorumProvider
from meshq.errors import SettingsError
from meshq.ha import MajorityVote, MeshQuorum, ZooKeeperQuorum
from meshq.settings import Secret

#: The kinds of quorums, as a file names them; one of ``DEFAULT`` needs no kind where its ``HOSTS`` are given.
QUORUMS: Final[dict[str, type[Any]]] = {"majority": MajorityVote, "zookeeper": ZooKeeperQuorum, "mesh": MeshQuorum}
DEFAULT: Final = "zookeeper"
HOSTS: Final = frozenset({"hosts", "connect-string", "connect_string"})
CLASS: Final = ("class_name", "class-name")
#: Other names of keys; those of ``MILLISECONDS`` are numbers of milliseconds, the time of a vote is one of seconds.
KEYS: Final = {
    "connect-string": "hosts",
    "connect_string": "hosts",
    "session-percent": "session_percent",
    "vote_retries_wait": "vote_retry_wait",
    "vote-retries": "vote_retries",
    "quorum_size": "size",
    "quorum-size": "size",
    "quorum-vote-wait": "quorum_vote_wait",
}
MILLISECONDS: Final = {
    "session-ms": "session",
    "session_ms": "session",
    "connection-ms": "connection_timeout",
    "connection_ms": "connection_timeout",
    "retries-ms": "retry_interval",
    "retries_ms": "retry_interval",
    "vote-retry-wait": "vote_retry_wait",
    "vote-retries-wait": "vote_retry_wait",
}
#: Under these names -1 stands for a size that is left out.
SIZES: Final = ("quorum_size", "quorum-size")
#: Settings of a vote, which other brokers have in the table of the policy.
OF_VOTES: Final = ("size", "vote_retries", "vote_retry_wait", "quorum_vote_wait")


@attrs.frozen(kw_only=True)
class AuthTable:
    """The ``user`` and the ``password`` of an ensemble of ZooKeeper."""

    user: str
    password: Secret


def renamed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the names of the settings themselves.

    Raises:
        SettingsError: a setting is there under two names, or a number of milliseconds is none.
    """
    found: dict[str, Any] = {}
    left_out = [name for name in SIZES if type(table.get(name)) is int and table[name] == -1]
    for name, value in table.items():
        if name in left_out:
            continue
        meant = KEYS.get(name) or MILLISECONDS.get(name, name)
        if meant in found or (meant != name and meant in table):
            raise SettingsError(name, value, f"once: it is the same as {meant!r}, which is there, too")
        if name in MILLISECONDS and type(value) not in (int, float):
            raise SettingsError(name, value, "a number of milliseconds")
        found[meant] = value / 1_000 if name in MILLISECONDS else value
    return found


def meant_for_votes(name: str) -> str:
    """The setting of a vote that a key of a policy's own table means; empty: it means none."""
    meant = KEYS.get(name) or MILLISECONDS.get(name, name)
    return meant if meant in OF_VOTES else ""


def own_quorum(name: object, properties: Mapping[str, Any]) -> QuorumProvider:
    """Make a provider of a class that is named as ``module:Class``, which takes the properties by keyword.

    Raises:
        SettingsError: there is no such class, or it does not take them.
    """
    allowed = "'module:Class', a subclass of meshq.abc.QuorumProvider"
    module, _, inner = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not all(part.isidentifier() for part in (*module.split("."), inner)):
        raise SettingsError("class_name", name, allowed)
    try:
        kind = getattr(import_module(module), inner)
    except (ImportError, AttributeError) as error:
        raise SettingsError("class_name", name, allowed) from error
    if not (isinstance(kind, type) and issubclass(kind, QuorumProvider)):
        raise SettingsError("class_name", name, allowed)
    try:
        return kind(**properties)
    except TypeError as error:
        raise SettingsError("properties", ", ".join(properties) or "none", f"what {name} takes: {error}") from error
