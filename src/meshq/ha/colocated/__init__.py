"""Colocated backups: nodes that run the backups of each other in their own processes."""

from meshq.ha.colocated._backup_request_format import BackupRequest
from meshq.ha.colocated._colocated_settings import Colocated
from meshq.ha.colocated._hosted_replica import HostedReplica
from meshq.ha.colocated._hosted_store_backup import HostedStoreBackup
from meshq.ha.colocated._hosting_plan import HostedPlaces, HostingPlan, HostRules
from meshq.ha.colocated._requests_plan import HostOffer, OwnBackups, RequestTries, best_host, host_to_clear, own_backups
from meshq.ha.colocated._store_place_plan import check_place

__all__ = [
    "BackupRequest",
    "Colocated",
    "HostOffer",
    "HostRules",
    "HostedPlaces",
    "HostedReplica",
    "HostedStoreBackup",
    "HostingPlan",
    "OwnBackups",
    "RequestTries",
    "best_host",
    "check_place",
    "host_to_clear",
    "own_backups",
]
