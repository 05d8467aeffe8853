"""The settings of a read, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from meshq.address import ADVISORY, INTERNAL, NOTIFICATIONS, SEPARATOR, TEMPORARY
from meshq.errors import SettingsError
from meshq.spark._offsets_format import Bounds, bounds_of

#: Queues of the broker itself, which no pattern finds.
_OWN: Final = (ADVISORY, INTERNAL, NOTIFICATIONS, TEMPORARY)


@attrs.frozen(kw_only=True)
class Queues:
    """The queues to read, by names or by a pattern."""

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None

    def among(self, known: list[str]) -> list[str]:
        """Return the queues to read among the queues of a node."""
        if self.pattern is None:
            return [name for name in self.names if name in known]
        return [name for name in known if not name.startswith(_OWN) and self.pattern.fullmatch(name)]

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names)) if self.pattern is None else f"that fit {self.pattern.pattern!r}"


@attrs.frozen(kw_only=True)
class ReadSettings:
    """The options of a read, beside those about reaching brokers."""

    queues: Queues
    start: Bounds
    min_tasks: int | None
    max_rows_of_task: int | None
    groups: frozenset[str]


@attrs.frozen(kw_only=True)
class StreamSettings:
    """The options that only a stream has."""

    cursor: str
    eager: bool
    fail_on_loss: bool
    lease_s: float
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_s: float


def read_settings(values: Mapping[str, Any]) -> ReadSettings:
    """The options of a read, in batch or streaming.

    Raises:
        SettingsError: one is missing, or two don't go together.
    """
    names, pattern = values["subscribe"], values["subscribePattern"]
    if (names is None) == (pattern is None):
        raise SettingsError("subscribe", names, "exactly one of subscribe and subscribePattern")
    return ReadSettings(
        queues=Queues(names=names or (), pattern=pattern),
        start=bounds_of("startingOffsets", values["startingOffsets"]),
        min_tasks=values["minPartitions"],
        max_rows_of_task=values["maxRecordsPerPartition"],
        groups=frozenset(name for name in ("includeHeaders", "includeMetadata") if values[name]),
    )


def stream_settings(values: Mapping[str, Any]) -> StreamSettings:
    """The options of a stream.

    Raises:
        SettingsError: the cursor has no name.
    """
    names: tuple[str, ...] = values["subscribe"] or ()
    cursor = values["cursor"]
    if cursor is None:
        if len(names) != 1:
            raise SettingsError("cursor", None, "a name: it is required unless one single queue is subscribed to")
        cursor = names[0].rpartition(SEPARATOR)[2]
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise SettingsError("minOffsetsPerTrigger", least, f"at most maxOffsetsPerTrigger, which is {most}")
    return StreamSettings(
        cursor=cursor,
        eager=values["ackMode"] == "eager",
        fail_on_loss=values["failOnDataLoss"],
        lease_s=values["lease"],
        max_rows=most,
        max_bytes=values["maxBytesPerTrigger"],
        min_rows=least,
        max_delay_s=values["maxTriggerDelay"],
    )
