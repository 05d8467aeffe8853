"""Statistics of a broker and its journal: the same records in process and over a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

#: The prefix of the journal's values among the broker's values.
_JOURNAL: Final = "journal_"


@attrs.frozen(kw_only=True)
class JournalStatistics:
    """The state and counters of a journal; the counters began at 0 when the journal was opened."""

    state: str
    full: bool
    segments: int
    #: Bytes of the segments that count, and of the living records in them.
    bytes: int
    live_bytes: int
    live_records: int
    #: The last position given, and the last one on disk.
    last: int
    durable: int
    #: Records that are placed and not on disk.
    lag_records: int
    batches: int
    syncs: int
    #: Syncs made in the loop's own thread.
    inline_syncs: int
    sync_p50_s: float
    sync_p99_s: float
    compactions: int
    #: Bytes of torn tails that were left behind when the journal was opened.
    torn_bytes: int
    #: Sealed segments with an index; and indexes that were found at the opening, and not believed.
    indexed: int
    refused_indexes: int
    #: Sealed segments that a start took by their index, and that were not read whole since; and that are damaged.
    unproven_segments: int
    damaged_segments: int


@attrs.frozen(kw_only=True)
class BrokerStatistics:
    """The state and counters of a broker at one moment; times in seconds, sizes in bytes."""

    name: str
    state: str
    #: Whether anything survives the process.
    durable: bool
    addresses: int
    queues: int
    consumers: int
    sessions: int
    connections: int
    #: Messages that wait, and messages that are with consumers.
    ready: int
    delivering: int
    #: Repeats of known duplicate ids; messages sent where no queue listened.
    duplicates: int
    unrouted: int
    #: Messages that were dropped because their address was full; producers that wait for room at theirs.
    dropped: int
    blocked_producers: int
    #: Messages whose content is on the disk only, and the bytes of that; bytes that were paged and read back so far.
    paged: int
    paged_bytes: int
    page_writes: int
    page_reads: int
    memory_used: int
    memory_limit: int
    #: Of the memory that is used, what can't be paged because consumers hold messages of it; and bytes beside that,
    #: which are on their way to clients.
    held_bytes: int
    outgoing_bytes: int
    #: Sessions that wait for memory before they may send.
    blocked_sessions: int
    sessions_resumed: int
    sessions_expired: int
    connections_accepted: int
    #: Connections that were closed because they broke the protocol.
    violations: int
    connections_denied: int
    connections_turned_away: int
    #: Requests of users who lacked a permission.
    requests_forbidden: int
    #: Notifications that a subscription to them did not get, because it had too many.
    notifications_dropped: int
    #: How much later than it should the loop came back to us, at the last look.
    loop_lag: float
    #: The journal's own statistics; None in memory only.
    journal: JournalStatistics | None

    def values(self) -> dict[str, Any]:
        """Return all values in one dict, as an answer holds them; the journal's values have the prefix ``journal_``."""
        values = attrs.asdict(self, recurse=False)
        journal = values.pop("journal")
        return values if journal is None else {**values, **_prefixed(attrs.asdict(journal))}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BrokerStatistics:
        """Build the record from the values of an answer.  What it says beyond what is known here is left out: it may be
        of a newer broker.  A ``KeyError`` says what it lacks.
        """
        journal = None
        if f"{_JOURNAL}state" in values:
            names = [field.name for field in attrs.fields(JournalStatistics)]
            journal = JournalStatistics(**{name: values[_JOURNAL + name] for name in names})
        names = [field.name for field in attrs.fields(cls) if field.name != "journal"]
        return cls(**{name: values[name] for name in names}, journal=journal)


def _prefixed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_JOURNAL + name: value for name, value in values.items()}


@attrs.frozen(kw_only=True)
class BridgeStatistics:
    """The state and counters of a bridge; the counters began at 0 when its broker started."""

    name: str
    queue: str
    #: The name of a connector, or a URL.
    target: str
    #: None: messages go to the address that they were sent to.
    forwarding_address: str | None
    #: ``new``, ``connecting`` (its target does not answer; ``last_error`` says why), ``carrying``, ``waiting`` (its
    #: target takes nothing; it tries again after ``retry_interval``), ``paused`` or ``stopped``; of a network connector
    #: ``linked``, and ``incoming`` where it is another broker's, whose name is the target, and who counts.
    state: str
    #: Messages that the other broker has confirmed.
    carried: int
    #: Refusals by the other broker: each gives a message back, which does not count as a delivery of it.
    refused: int
    #: Failures of the transformer: each gives a message back, as delivered once more.
    failed: int
    #: Messages that the transformer has ended here, and those that can't be carried and were rejected.
    ended: int
    rejected: int
    #: The last error since the broker started; None: no error.
    last_error: str | None
    #: Of a link of a network connector: messages of topics that wait here for the other broker, in queues that stay
    #: while the link is down; and how many seconds ago the oldest of them came, None without any: when it
    #: was sent, within ten seconds of what the clock here says; its sender's clock alone for what came before a start.
    kept: int = 0
    kept_for: float | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], index: int) -> BridgeStatistics:
        """Build the record from a broker's answer, by its index there."""
        return cls(**{field.name: values[f"{field.name}{index}"] for field in attrs.fields(cls)})


def incoming_bridge(name: str, broker: str) -> BridgeStatistics:
    """Return the statistics of a connector of another broker that is linked here."""
    none = dict.fromkeys(("carried", "refused", "failed", "ended", "rejected"), 0)
    return BridgeStatistics(
        name=name, queue="", target=broker, forwarding_address=None, state="incoming", last_error=None, **none
    )


@attrs.frozen(kw_only=True)
class StuckMessages:
    """Messages of a queue on one node that have not moved for ``seconds``, although a consumer somewhere wants them.

    ``cause``: ``balancing_off``, ``no_redistribution``, ``delay``, ``filter``, ``hop_limit``, ``missing_binding``,
    ``prepared``, ``flow_control``, ``node_gone``, ``group`` or ``paused``; ``why``: the same as a sentence.
    ``messages``: those that wait in that state.  ``first``: the id of the first of them, where one is first; otherwise
    empty.  ``node_ids``: the other nodes that the cause is about.
    """

    queue: str
    address: str
    cause: str
    why: str
    messages: int
    seconds: float
    first: str = ""
    node_ids: tuple[str, ...] = ()

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the names of the values in a row of an answer."""
        return tuple(field.name for field in attrs.fields(cls))

    def row(self) -> dict[str, Any]:
        """Return the record as a row of an answer."""
        return {**attrs.asdict(self), "node_ids": " ".join(self.node_ids)}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StuckMessages:
        """Build the record from a row of a broker's answer."""
        return cls(**{**row, "node_ids": tuple(row["node_ids"].split())})


@attrs.frozen(kw_only=True)
class BalancerTargetStatistics:
    """A target of a balancer.  ``local``: the broker itself."""

    url: str
    #: The id and the name of the node that has answered there; empty: none has.
    node_id: str
    node_name: str
    local: bool
    #: ``new``, ``ready`` or ``not_ready``; and why it is not ready.
    state: str
    error: str
    #: Its clients, as it said last, and those that were sent there since.
    connections: int
    under_way: int
    #: The keys that keep it.
    keys: int


@attrs.frozen(kw_only=True)
class BalancerStatistics:
    """The state and counters of a balancer; the counters began at 0 when its broker started."""

    name: str
    target_key: str
    #: Empty: there is none.
    target_key_filter: str
    local_target_filter: str
    policy: str
    #: Whether as many targets are ready as the quorum wants; True where there is no pool.
    active: bool
    quorum_size: int
    ready: int
    #: Clients that wait for the quorum.
    waiting: int
    #: The keys that are remembered with their targets.
    keys: int
    #: Clients that were sent to another broker, that stayed, and for which there was no target.
    redirected: int
    accepted: int
    refused: int
    #: Questions for a target that were answered.
    asked: int
    targets: tuple[BalancerTargetStatistics, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any], targets: Sequence[Mapping[str, Any]]) -> BalancerStatistics:
        """Build the record from a broker's answers; unknown values of a newer broker are ignored."""
        rows = tuple(BalancerTargetStatistics(**_known(BalancerTargetStatistics, row)) for row in targets)
        return cls(**_known(cls, values), targets=rows)


@attrs.frozen(kw_only=True)
class BalancerRoute:
    """The route of a client with a key: where a balancer would send it now.

    ``outcome``: ``local``, ``remote`` or ``none``; ``url`` and ``node_id`` of the target.  ``steps``: what is asked, in
    order, and what comes of it.
    """

    key: str
    outcome: str
    url: str
    node_id: str
    steps: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any], steps: Sequence[str]) -> BalancerRoute:
        """Build the record from a broker's answer; unknown values of a newer broker are ignored."""
        return cls(**_known(cls, values), steps=tuple(steps))


@attrs.frozen(kw_only=True)
class RoleStatus:
    """The role of a node in its pair, with the fields that ``broker.ha`` has in the program of the node.

    ``acting``: the name of the node that serves, and ``acting_url``; empty: nobody is known.  ``waiting``: names and
    URLs of the other nodes that would take over, the next one first.  ``records_behind``, ``bytes_behind``: what the
    node itself was given as a replica, and does not have on its disk yet.  ``replicas``: of those that follow it, and
    of the last one that was dropped, the name, the URL, whether it is in sync, how many records and bytes it lacks,
    and why it was dropped; empty: it is there.
    """

    policy: str
    role: str
    phase: str
    epoch: int
    since: int
    unprotected: bool
    acting: str
    acting_url: str
    last_error: str
    waiting: tuple[tuple[str, str], ...] = ()
    records_behind: int = 0
    bytes_behind: int = 0
    replicas: tuple[tuple[str, str, bool, int, int, str], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any], waiting: Sequence[tuple[str, str]]) -> RoleStatus:
        """Build the record from a broker's answer; unknown values of a newer broker are ignored."""
        known = _known(cls, values)
        for rows in ("waiting", "replicas"):
            known.pop(rows, None)
        replicas: list[tuple[str, str, bool, int, int, str]] = []
        while f"replica_name{len(replicas)}" in values:
            name, url, in_sync, records, size, dropped = (
                values[f"replica_{key}{len(replicas)}"]
                for key in ("name", "url", "in_sync", "records_behind", "bytes_behind", "dropped")
            )
            replicas.append((name, url, in_sync, records, size, dropped))
        return cls(**known, waiting=tuple(waiting), replicas=tuple(replicas))


@attrs.frozen(kw_only=True)
class EndedBackup:
    """A backup of another node that a broker has run, and runs no more.

    ``requester`` and ``node_id``: the name and the id of that node; empty: they could not be read.  ``directory``:
    where the store of the backup lies now.
    """

    name: str
    requester: str
    node_id: str
    directory: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EndedBackup:
        """Build the record from a broker's answer; unknown values of a newer broker are ignored."""
        return cls(**_known(cls, values))


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in attrs.fields(kind)} - {"steps", "targets"}
    return {name: value for name, value in values.items() if name in names}
