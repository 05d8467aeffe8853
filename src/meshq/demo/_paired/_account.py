"""Which flights of a demo were lost or came twice, and which of its changes of role are missing."""

from __future__ import annotations

from typing import Final

import attrs

from meshq.demo._flights_format import parse

PRIMARY: Final = "first"
BACKUP: Final = "second"


@attrs.frozen(kw_only=True)
class Change:
    """A change of role: the node that serves from then on, the reason, and the time without service."""

    node: str
    epoch: int
    reason: str
    without_service: float


@attrs.define(kw_only=True)
class FlightAccount:
    """The account of a run: confirmed sends, received flights, and confirmed acknowledgements."""

    lines: list[bytes]
    confirmed: int = 0
    #: By the key of a flight its line, once it has come; and the keys of those whose acknowledgement was confirmed.
    arrived: dict[bytes, bytes] = attrs.field(factory=dict)
    settled: set[bytes] = attrs.field(factory=set)
    #: Flights that came again after that.
    again: int = 0

    def came(self, line: bytes) -> bytes:
        """Note a flight that has come; return its key."""
        key = parse(line).key
        self.again += key in self.settled
        self.arrived[key] = line
        return key

    @property
    def differences(self) -> list[str]:
        """Return sentences about flights that differ from the file, and steps of the demo that are missing."""
        expected = {parse(line).key: line for line in self.lines}
        lost = [key for key in expected if key not in self.arrived]
        strange = [key for key, line in self.arrived.items() if expected.get(key) != line]
        found = [(self.again, "came twice"), (len(lost), "were lost"), (len(strange), "are not those of the file")]
        said = [f"{number:,} flights {what}" for number, what in found if number]
        return said + self._further_differences()

    def _further_differences(self) -> list[str]:
        """Return sentences about steps of the demo that are missing."""
        raise NotImplementedError

    @property
    def rows(self) -> list[str]:
        """The lines of the table about the steps of the demo."""
        raise NotImplementedError


def account_table(account: FlightAccount) -> str:
    """Return the steps of a demo, and how many flights came, as a table."""
    number = f"{len(account.arrived):,} of {len(account.lines):,} flights"
    good = f"{number}: 0 lost, 0 came twice, each as in the file."
    return "\n".join([*account.rows, *(account.differences or [good])])


def differences_of_epochs(changes: list[Change], whose: str = "") -> list[str]:
    """Return a sentence if an epoch is missing, or is there twice."""
    epochs = [change.epoch for change in changes]
    if epochs == list(range(1, len(epochs) + 1)):
        return []
    return [f"the epochs of nodes that served {whose}are {', '.join(map(str, epochs))}"]
