"""The plan of a write: the node of a sink, and the decision of a commit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshq.errors import UsageError


class StageResult(NamedTuple):
    """The result of a task: a stage on a node, and its rows.  ``stage`` 0: the rows were sent at once."""

    sink: str
    node: str
    stage: int
    rows: int


class Decision(NamedTuple):
    """The parts of a batch that are decided together."""

    sink: str
    node: str
    stages: tuple[int, ...]
    rows: int


def node_of_sink(sink: str, ledgers: Mapping[str, Iterable[str]]) -> str:
    """Return the node of a sink: the node whose ledger has it, else the choice by a hash of both names.

    Raises:
        UsageError: two nodes have it.
    """
    owners = sorted(node for node, sinks in ledgers.items() if sink in sinks)
    if len(owners) > 1:
        raise UsageError(
            f"the sink {sink!r} is in the ledgers of the nodes {', '.join(owners)}: delete it on all but one"
        )
    if owners:
        return owners[0]
    return max(sorted(ledgers), key=lambda node: hashlib.sha256(f"{node}/{sink}".encode()).digest())


def check_alone(nodes: Iterable[str]) -> None:
    """See that the cluster has one node, so that this has all messages to replace.

    Raises:
        UsageError: there are others, which keep what they have.
    """
    if len(found := sorted(nodes)) > 1:
        raise UsageError(
            f"purgeOnOverwrite takes a broker without others, and the cluster has {', '.join(found)}: a batch and a "
            f"purge are one decision of one node; write with append, and purge the queues yourself"
        )


def decision_of(results: Iterable[StageResult | None]) -> Decision | None:
    """Return the decision of a commit, by the results of all tasks; None: nothing was staged.

    Raises:
        UsageError: a task has no result, or the results don't fit together.
    """
    found = list(results)
    if any(one is None for one in found):
        raise UsageError("a task of the batch has written nothing: it can't be committed")
    staged = [one for one in found if one is not None and one.stage]
    if not staged:
        return None
    names = sorted({(one.sink, one.node) for one in staged})
    if len(names) > 1:
        text = ", ".join(f"{sink!r} on {node}" for sink, node in names)
        raise UsageError(
            f"the parts of the batch are of {text}: the cluster has changed meanwhile; write the batch again"
        )
    sink, node = names[0]
    return Decision(sink, node, tuple(one.stage for one in staged), sum(one.rows for one in staged))
