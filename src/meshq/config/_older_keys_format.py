"""The older spelling of high availability: keys at the top of a file, in place of a table with a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: The keys that say which policy it is.
CHOICES: Final = ("backup", "shared_store")
#: The other ones, and what the policy calls them.
KEYS: Final = {
    "allow_failback": "allow_failback",
    "allow_fail_back": "allow_failback",
    "failover_on_shutdown": "failover_on_shutdown",
    "check_for_live_server": "check_for_live_server",
    "backup_group_name": "group_name",
    "replication_cluster_name": "cluster_name",
    "max_saved_replicated_journals": "max_saved_replicated_journals",
    "max_saved_replicated_journals_size": "max_saved_replicated_journals",
}


def with_policy(table: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the table with a policy in place of older keys, and those keys; a table with a policy stays as it is."""
    names = {name: name.replace("-", "_") for name in table}
    older = tuple(name for name, plain in names.items() if plain in (*CHOICES, *KEYS))
    meant = [KEYS.get(names[name], names[name]) for name in older]
    if "ha" in table or not older or len(set(meant)) < len(meant):
        return dict(table), ()
    given = {names[name]: table[name] for name in older}
    pair = "shared_store" if given.get("shared_store", True) is True else "replication"
    role = "backup" if given.get("backup", False) is True else "primary"
    policy = {"policy": f"{pair}_{role}", **{KEYS[name]: given[name] for name in given if name in KEYS}}
    return {name: value for name, value in table.items() if name not in older} | {"ha": policy}, older
