"""The content of a paged run, from its record in the journal."""

from __future__ import annotations

from meshq.broker.queue._run import StoredRun
from meshq.broker.records import content_of
from meshq.wire import RunBytes, pick


def run_content(run: StoredRun, kind: int, payload: bytes) -> RunBytes:
    """The content of a run, by the record of the run that it is, or is a share of.

    Raises:
        DamagedError: the record can't be read.
    """
    content = content_of(kind, payload)
    return pick(content, run.rows) if run.rows is not None else content
