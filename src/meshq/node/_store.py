"""The journal of a broker, from the broker's settings."""

from __future__ import annotations

from meshq.abc import Env, ReplicationSink
from meshq.broker import PREFIX_FORM, record_prefix
from meshq.errors import UsageError
from meshq.node._settings import BrokerSettings
from meshq.store import Journal, RecordPrefix


def journal_of(settings: BrokerSettings, env: Env, sink: ReplicationSink | None = None) -> Journal | None:
    """Make the journal of a broker's store, which is not open yet; None: the broker is in memory only.

    ``sink``: where the records of the store have to be durable, too.

    Raises:
        UsageError: there is a sink, and no store.
    """
    if settings.data_dir is None:
        if sink is not None:
            raise UsageError("a broker in memory only has no records that a sink could take: its policy gives none")
        return None
    return Journal(
        settings.data_dir,
        segment_bytes=settings.journal.segment_bytes,
        node_id=settings.node_id,
        env=env,
        encryption_keys=settings.journal.encryption_keys,
        directories=settings.directories,
        record_prefix=RecordPrefix(PREFIX_FORM, record_prefix),
        sink=sink,
    )
