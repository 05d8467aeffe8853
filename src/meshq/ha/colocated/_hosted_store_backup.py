"""The policy of a backup that a host runs over the store of another node."""

from __future__ import annotations

import attrs

from meshq.ha._store_settings import SharedStoreBackup


@attrs.frozen(kw_only=True)
class HostedStoreBackup(SharedStoreBackup):
    """A ``SharedStoreBackup`` that serves the store of another node, and never begins a new one.

    Where that store is not there, as with a disk that is not mounted, it waits and changes nothing.
    """

    makes_store: bool = attrs.field(default=False, init=False)

    @classmethod
    def of(cls, policy: SharedStoreBackup) -> HostedStoreBackup:
        """Return a policy with the settings of another one, whose broker starts without waiting to serve."""
        given = {one.name: getattr(policy, one.name) for one in attrs.fields(type(policy)) if one.init}
        return cls(**{**given, "wait_for_activation": False})
