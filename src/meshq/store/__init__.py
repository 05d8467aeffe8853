"""The store of a node: one log with group commit, proven on recovery, reclaimed and compacted as it runs."""

from meshq.statistics import JournalStatistics
from meshq.store._journal import Journal
from meshq.store.bodies._large_bodies import LargeBodyFiles, LargeBodyWriter
from meshq.store.bodies._spill_files import Page, SpillFiles
from meshq.store.commit._journal_owner import JournalOwner
from meshq.store.directory._directories import make_directory, why_not_private
from meshq.store.directory._identity import store_node_id
from meshq.store.directory._ping_pong_file import is_disk_full
from meshq.store.formats._record import PLAIN, CheckpointRecord, JournalRecord
from meshq.store.formats._record_prefix import RecordPrefix
from meshq.store.inspection._last_position import last_position
from meshq.store.inspection._recovered_store import RecoveredStore, recovered_store
from meshq.store.reading._replay import Replay
from meshq.store.recovery._store_copy import StoreCopy

__all__ = [
    "PLAIN",
    "CheckpointRecord",
    "Journal",
    "JournalOwner",
    "JournalRecord",
    "JournalStatistics",
    "LargeBodyFiles",
    "LargeBodyWriter",
    "Page",
    "RecordPrefix",
    "RecoveredStore",
    "Replay",
    "SpillFiles",
    "StoreCopy",
    "is_disk_full",
    "last_position",
    "make_directory",
    "recovered_store",
    "store_node_id",
    "why_not_private",
]
