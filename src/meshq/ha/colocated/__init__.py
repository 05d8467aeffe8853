"""Colocated backups: nodes that run the backups of each other in their own processes."""

from meshq.ha.colocated._backup_request_format import BackupRequest
from meshq.ha.colocated._colocated_settings import Colocated
from meshq.ha.colocated._ended_backups_plan import backup_number, decode_epoch, encode_epoch, is_left_behind
from meshq.ha.colocated._hosted_replica import HostedReplica
from meshq.ha.colocated._hosted_store_backup import HostedStoreBackup
from meshq.ha.colocated._hosting_plan import HostedPlaces, HostingPlan, HostRules
from meshq.ha.colocated._kept_backup_format import KeptBackup
from meshq.ha.colocated._kept_backups import FoundBackups, KeptBackups
from meshq.ha.colocated._ports_plan import check_first_place, check_own_ports
from meshq.ha.colocated._requests_plan import (
    HostOffer,
    OwnBackups,
    RequestTries,
    best_host,
    host_to_clear,
    own_backups,
    own_replicas,
)
from meshq.ha.colocated._store_place_plan import check_place

__all__ = [
    "BackupRequest",
    "Colocated",
    "FoundBackups",
    "HostOffer",
    "HostRules",
    "HostedPlaces",
    "HostedReplica",
    "HostedStoreBackup",
    "HostingPlan",
    "KeptBackup",
    "KeptBackups",
    "OwnBackups",
    "RequestTries",
    "backup_number",
    "best_host",
    "check_first_place",
    "check_own_ports",
    "check_place",
    "decode_epoch",
    "encode_epoch",
    "host_to_clear",
    "is_left_behind",
    "own_backups",
    "own_replicas",
]
