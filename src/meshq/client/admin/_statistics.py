"""Statistics of clients and queues, and other records of administration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from meshq import limits
from meshq.wire import violation


@attrs.frozen(kw_only=True)
class QueueStatistics:
    """The state and message counts of a queue at its broker.  Counts are messages, since the node started where they
    only rise."""

    name: str
    address: str = ""
    routing: str = ""
    durable: bool = True
    #: Whether the queue is paused: it stores messages and delivers none.
    paused: bool = False
    #: Whether the queue ends with the session that created it.
    temporary: bool = False
    #: How it was subscribed to: 'own', 'single' or 'shared'; empty if it is no subscription.
    subscription: str = ""
    #: The filter of the queue; empty: all messages.
    filter: str = ""
    #: Waiting for a consumer; delivered and not settled.
    ready: int = 0
    delivering: int = 0
    #: Not due yet; handed back, and to wait before they are delivered again.
    scheduled: int = 0
    delayed: int = 0
    #: Of all these: messages whose content is on the disk only, and the bytes of that.
    paged: int = 0
    paged_bytes: int = 0
    added: int = 0
    acknowledged: int = 0
    rejected: int = 0
    purged: int = 0
    #: Messages that expired; that were dead-lettered; that were moved by an operator; that were moved to consumers on
    #: other nodes, the queue having none here.
    expired: int = 0
    dead_lettered: int = 0
    moved: int = 0
    redistributed: int = 0
    #: Sent to its address and dropped, because that was full.
    dropped: int = 0
    redelivered: int = 0
    consumers: int = 0
    #: Gone because a newer message had the same value.
    replaced: int = 0
    #: Groups of which it has messages.
    groups: int = 0
    #: The highest number given in this queue.
    last_sequence: int = 0
    #: Of the queue itself: another queue of its name has another one.
    number: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> QueueStatistics:
        """Build the record from a broker's answer; unknown values of a newer broker are ignored.

        Raises:
            RemoteProtocolError: a value is of another type, or a number that no queue has.
        """
        found: dict[str, Any] = {}
        for field in attrs.fields(cls):
            if field.name in values:
                value: Any = values[field.name]
                kind: type = str if field.name == "name" else type(field.default)
                found[field.name] = value
                good = 0 <= value <= limits.NUMBER_MAX if type(value) is kind is int else type(value) is kind
                if not good:
                    raise violation("bad_header", f"an answer about a queue whose {field.name} is none")
        return cls(**found)


@attrs.frozen(kw_only=True)
class Divert:
    """A divert: messages to ``address`` go to ``forwarding_address`` too, or only there if ``exclusive``."""

    name: str
    address: str
    forwarding_address: str
    #: Only messages of which this is true; None: all.
    filter: str | None
    exclusive: bool

    @classmethod
    def of(cls, values: Mapping[str, Any], index: int) -> Divert:
        """Build the record from a broker's answer, by its index there."""
        about = {name.name: values[f"{name.name}{index}"] for name in attrs.fields(cls)}
        return cls(**{**about, "filter": about["filter"] or None})


@attrs.frozen(kw_only=True)
class PreparedTransaction:
    """A prepared transaction that waits for ``commit`` or ``rollback``."""

    xid: bytes
    #: The user of the session that prepared the transaction; empty without security.
    user: str
    #: Seconds for which it has waited, by the broker's clock.
    age: float
    #: Messages that it sends, and that it has acknowledged.
    sent: int
    acked: int


@attrs.frozen(kw_only=True)
class ClientStatistics:
    """The state and counters of a client at one moment."""

    state: str
    peer: str
    node_id: bytes
    node_name: str
    session: int
    #: Rises each time the session is made anew.
    epoch: int
    #: Links made; sessions resumed and made anew after a loss.
    connected: int
    resumed: int
    renewed: int
    producers: int
    consumers: int
    #: Messages taken and not confirmed; runs that wait for credit or a link.
    unconfirmed: int
    waiting_runs: int
    #: Requests that wait for answers, and answers that came after their requests had given up.
    requests: int
    late_answers: int
    #: Bytes of frames that are not known to have arrived.
    kept_bytes: int
