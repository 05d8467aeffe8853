"""The service of a node that asks others to run its backup, if its policy says so."""

from __future__ import annotations

import attrs

from meshq.abc import Service
from meshq.ha import Colocated
from meshq.node._settings import BrokerSettings


def requesters(settings: BrokerSettings, root: str | None) -> tuple[Service, ...]:
    """Return the service that asks for a backup, or nothing.  ``root``: the directory that the broker was given."""
    policy = settings.ha
    if not isinstance(policy, Colocated) or not policy.request_backup:
        return ()
    # A node that asks for nothing does not load what that needs.
    from meshq.node.hosting._backup_requester import BackupRequester

    return (BackupRequester(attrs.evolve(settings, data_dir=root), policy),)
