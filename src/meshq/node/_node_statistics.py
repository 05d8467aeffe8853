"""The figures of a node at one moment."""

from __future__ import annotations

from meshq.broker import ConnectionCounts, Core, SessionRegistry
from meshq.statistics import BrokerStatistics, JournalStatistics


def node_statistics(
    core: Core,
    sessions: SessionRegistry,
    counts: ConnectionCounts,
    *,
    state: str,
    connections: int,
    loop_lag: float,
    journal: JournalStatistics | None,
) -> BrokerStatistics:
    """Return the figures; ``connections``: the number of those that are open."""
    queues = list(core.router.queues.values())
    paged = [queue.paged for queue in queues]
    return BrokerStatistics(
        name=core.settings.name,
        state=state,
        durable=core.durable,
        addresses=len(core.router.addresses),
        queues=len(queues),
        consumers=sum(len(queue.roster.consumers) for queue in queues),
        sessions=len(sessions.by_number),
        connections=connections,
        ready=sum(queue.counts.ready for queue in queues),
        delivering=sum(queue.counts.unacked for queue in queues),
        duplicates=core.ingress.duplicates,
        unrouted=core.ingress.unrouted,
        dropped=core.ingress.dropped,
        blocked_producers=sum(quota.waiting for quota in core.router.quotas.values()),
        paged=sum(messages for messages, _ in paged),
        paged_bytes=sum(size for _, size in paged),
        page_writes=core.pager.paged_bytes,
        page_reads=core.pager.read_bytes,
        memory_used=core.memory.used_bytes,
        memory_limit=core.memory.limit_bytes,
        held_bytes=core.memory.unacked.used_bytes,
        outgoing_bytes=sum(session.outgoing_bound.used_bytes for session in sessions.by_number.values()),
        blocked_sessions=core.memory.waiting,
        sessions_resumed=sessions.resumed,
        sessions_expired=sessions.expired,
        connections_accepted=counts.accepted,
        violations=counts.violations,
        connections_denied=counts.denied,
        connections_turned_away=counts.turned_away,
        requests_forbidden=core.access.refused,
        notifications_dropped=core.settings.event_bus.dropped,
        loop_lag=loop_lag,
        journal=journal,
    )
