"""One error about many messages."""

from __future__ import annotations

from collections.abc import Sequence

from meshq.client._completion import copied_error
from meshq.errors import MeshqError, Outcome


def combined(results: Sequence[MeshqError | None]) -> MeshqError:
    """The error that stands for all of ``results``: of the first one's kind, with all of them listed.

    Its outcome is ``not_done`` only if that is true of every message; a mixture is ``unknown`` as a whole.
    """
    errors = [error for error in results if error is not None]
    error = copied_error(errors[0])
    outcome: Outcome = "unknown"
    if len(errors) == len(results) and all(one.outcome == "not_done" for one in errors):
        outcome = "not_done"
    error.outcome = outcome
    error.results = tuple(results)
    if len(results) > 1:
        error.args = (f"{len(errors)} of {len(results)} messages failed: {errors[0]}",)
    return error
