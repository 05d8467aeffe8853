"""The content of paged runs, from their records in the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshq.broker.queue._run import StoredRun
from meshq.broker.records import content_of
from meshq.store import JournalRecord
from meshq.wire import RunBytes, pick


def run_contents(runs: Iterable[StoredRun], records: Mapping[int, JournalRecord]) -> dict[StoredRun, RunBytes]:
    """The content of runs, by the records of the runs that they are, or are shares of, at their positions.

    A record is read once, however many shares of it are wanted: a run of a thousand messages may be a thousand shares.
    One that died meanwhile is missing, and no consumer waits for it.

    Raises:
        DamagedError: a record can't be read.
    """
    whole: dict[int, RunBytes] = {}
    found: dict[StoredRun, RunBytes] = {}
    for run in runs:
        position = (run.origin or run).position
        record = records.get(position)
        if record is None:
            found[run] = run.content
            continue
        if position not in whole:
            whole[position] = content_of(record.kind, record.payload)
        content = whole[position]
        found[run] = pick(content, run.rows) if run.rows is not None else content
    return found
