"""The windows: flights and delays of a carrier in one hour, as Spark computes them and as the file has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import attrs

from meshq.demo._flights_format import MISSING
from meshq.demo._sparked._settings import ALERT_DEPARTED, ALERT_MINUTES

#: The fields of a line: delay, carrier, and the hour in which the flight was to leave.
DELAY_FIELD: Final = 5
CARRIER_FIELD: Final = 9
HOUR_FIELD: Final = 18
#: The hour in a field ends here: ``2013-01-01T10``.
HOUR_CHARACTERS: Final = 13


class Hour(NamedTuple):
    """The numbers of a window: scheduled flights, departed flights, and the sum of the delays in minutes."""

    flights: int = 0
    departed: int = 0
    delay: int = 0

    @property
    def is_alert(self) -> bool:
        """Whether the window is worth an alert."""
        return self.departed >= ALERT_DEPARTED and self.delay >= ALERT_MINUTES * self.departed


#: A window with its hour and its carrier.
Row = tuple[tuple[str, str], Hour]
Hours = dict[tuple[str, str], Hour]


def hour_of(line: bytes) -> str:
    """The hour of a line of the file: texts of this kind are in the order of time."""
    return line.split(b",")[HOUR_FIELD][:HOUR_CHARACTERS].decode()


def hours_of(lines: Iterable[bytes]) -> Hours:
    """The windows of lines of the file."""
    found: Hours = {}
    for line in lines:
        fields = line.split(b",")
        key = fields[HOUR_FIELD][:HOUR_CHARACTERS].decode(), fields[CARRIER_FIELD].decode()
        flights, departed, delay = found.get(key, Hour())
        left = fields[DELAY_FIELD] != MISSING
        found[key] = Hour(flights + 1, departed + left, delay + (int(fields[DELAY_FIELD]) if left else 0))
    return found


def parse_hour(text: str) -> Row:
    """A window as the query writes it.  Raises: ValueError: it isn't one."""
    hour, carrier, *numbers = text.split(",")
    flights, departed, delay = map(int, numbers)
    return (hour, carrier), Hour(flights, departed, delay)


@attrs.define(kw_only=True)
class Account:
    """The account of a run: expected windows and alerts, and received ones."""

    flights: int
    expected: Hours
    #: The rows of the table that the query has made, and the windows that came as alerts, each by its message's id.
    table: list[Row] = attrs.field(factory=list)
    alerts: dict[str, Row] = attrs.field(factory=dict)
    #: Alerts that came again after their acknowledgement was confirmed.
    again: int = 0
    #: Sentences about what happened on the way, and what was left behind.
    strikes: list[str] = attrs.field(factory=list)
    left: list[str] = attrs.field(factory=list)
    batches: int = 0
    seconds: float = 0.0

    @property
    def expected_alerts(self) -> Hours:
        """The windows that should have come as alerts."""
        return {key: hour for key, hour in self.expected.items() if hour.is_alert}

    @property
    def differences(self) -> list[str]:
        """Sentences about all that differs from the file, or was left behind; none if nothing does."""
        found = _compared("windows", self.table, self.expected)
        found += _compared("alerts", list(self.alerts.values()), self.expected_alerts)
        if self.again:
            found.append(f"{self.again:,} alerts came again")
        return found + self.left


def _compared(
    what: str, rows: list[tuple[tuple[str, str], Hour]], expected: Mapping[tuple[str, str], Hour]
) -> list[str]:
    got = dict(rows)
    missing = [key for key in expected if key not in got]
    strange = [key for key in got if key not in expected]
    other = [key for key, hour in got.items() if key in expected and expected[key] != hour]
    counts = [
        (len(missing), "are missing", missing),
        (len(strange), "are not in the file", strange),
        (len(other), "have other numbers", other),
        (len(rows) - len(got), "came more than once", []),
    ]
    return [
        f"{number:,} {what} {said}{': ' + ' '.join(keys[0]) + ' is one' if keys else ''}"
        for number, said, keys in counts
        if number
    ]


def account_of(lines: Iterable[bytes]) -> Account:
    """The account of a run that has not begun."""
    kept = list(lines)
    return Account(flights=len(kept), expected=hours_of(kept))
