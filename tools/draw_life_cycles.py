"""Draw docs/design/life-cycles.md from the tables of the life cycles: ``python -m tools.draw_life_cycles``."""

from __future__ import annotations

from pathlib import Path

from meshq.bridge._bridge_life import BRIDGE_TRANSITIONS
from meshq.broker.connection._handshake_life import HANDSHAKE_TRANSITIONS
from meshq.broker.cursors._cursor_life import CURSOR_TRANSITIONS
from meshq.broker.queue._consumer_roster import SERVING_TRANSITIONS
from meshq.broker.session._session_life import SESSION_TRANSITIONS
from meshq.broker.stages._stage_life import STAGE_TRANSITIONS
from meshq.client.incoming._consumer_life import CONSUMER_TRANSITIONS
from meshq.client.link._fanout_life import FANOUT_TRANSITIONS
from meshq.client.link._link_life import LINK_TRANSITIONS
from meshq.client.outgoing._outbox_life import OUTBOX_TRANSITIONS
from meshq.client.outgoing._run_life import RUN_TRANSITIONS
from meshq.client.receive._body_stream_life import BODY_STREAM_TRANSITIONS
from meshq.client.send._producer_life import PRODUCER_TRANSITIONS
from meshq.client.session._cluster_link_life import CLUSTER_LINK_TRANSITIONS
from meshq.client.transactions._transaction_life import TRANSACTION_TRANSITIONS
from meshq.cluster._peer_life import PEER_TRANSITIONS
from meshq.cluster.leaving._drain_plan import DRAIN_TRANSITIONS
from meshq.concurrency._block_life import BLOCK_TRANSITIONS
from meshq.ha._role_life import ROLE_TRANSITIONS
from meshq.ha.quorum.mesh._node_life import QUORUM_NODE_TRANSITIONS
from meshq.ha.replication._replica_machine import FOLLOWING_TRANSITIONS
from meshq.ha.replication._replicator_machine import REPLICA_TRANSITIONS
from meshq.ha.replication._role_life import REPLICATION_ROLE_TRANSITIONS
from meshq.lb import TARGET_TRANSITIONS
from meshq.lifecycle import Transitions
from meshq.network._network_link_life import NETWORK_LINK_TRANSITIONS
from meshq.node._broker_life import BROKER_TRANSITIONS
from meshq.portal._buffer_life import BUFFER_TRANSITIONS
from meshq.portal._loop_life import LOOP_TRANSITIONS
from meshq.store.allocation._segment_allocator import ALLOCATOR_TRANSITIONS
from meshq.store.commit._journal_life import JOURNAL_TRANSITIONS
from meshq.testing.kit._spawned_task import SPAWNED_TASK_TRANSITIONS

PAGE = Path(__file__).parents[1] / "docs" / "design" / "life-cycles.md"
#: What has a life cycle, and the file of its table below the package.
TABLES: dict[str, tuple[str, Transitions]] = {
    "Broker": ("node/_broker_life.py", BROKER_TRANSITIONS),
    "Part of a node in a shared store": ("ha/_role_life.py", ROLE_TRANSITIONS),
    "Node of a quorum": ("ha/quorum/mesh/_node_life.py", QUORUM_NODE_TRANSITIONS),
    "Part of a node in replication": ("ha/replication/_role_life.py", REPLICATION_ROLE_TRANSITIONS),
    "Replica, as its primary sees it": ("ha/replication/_replicator_machine.py", REPLICA_TRANSITIONS),
    "Node that follows": ("ha/replication/_replica_machine.py", FOLLOWING_TRANSITIONS),
    "Drain": ("cluster/leaving/_drain_plan.py", DRAIN_TRANSITIONS),
    "Consumers of a queue": ("broker/queue/_consumer_roster.py", SERVING_TRANSITIONS),
    "Cursor": ("broker/cursors/_cursor_life.py", CURSOR_TRANSITIONS),
    "Stage": ("broker/stages/_stage_life.py", STAGE_TRANSITIONS),
    "Journal": ("store/commit/_journal_life.py", JOURNAL_TRANSITIONS),
    "Segment allocator": ("store/allocation/_segment_allocator.py", ALLOCATOR_TRANSITIONS),
    "Session at the broker": ("broker/session/_session_life.py", SESSION_TRANSITIONS),
    "Handshake at the broker": ("broker/connection/_handshake_life.py", HANDSHAKE_TRANSITIONS),
    "Block": ("concurrency/_block_life.py", BLOCK_TRANSITIONS),
    "Loop in a thread": ("portal/_loop_life.py", LOOP_TRANSITIONS),
    "Producer or consumer over a loop in a thread": ("portal/_buffer_life.py", BUFFER_TRANSITIONS),
    "Link of a client": ("client/link/_link_life.py", LINK_TRANSITIONS),
    "Broker of a fanout client": ("client/link/_fanout_life.py", FANOUT_TRANSITIONS),
    "Producer of a client": ("client/send/_producer_life.py", PRODUCER_TRANSITIONS),
    "Outbox of a producer": ("client/outgoing/_outbox_life.py", OUTBOX_TRANSITIONS),
    "Outgoing run of a producer": ("client/outgoing/_run_life.py", RUN_TRANSITIONS),
    "Consumer of a client": ("client/incoming/_consumer_life.py", CONSUMER_TRANSITIONS),
    "Body stream of a consumer": ("client/receive/_body_stream_life.py", BODY_STREAM_TRANSITIONS),
    "Channel of a cluster link": ("client/session/_cluster_link_life.py", CLUSTER_LINK_TRANSITIONS),
    "Peer of a cluster connection": ("cluster/_peer_life.py", PEER_TRANSITIONS),
    "Transaction of a client": ("client/transactions/_transaction_life.py", TRANSACTION_TRANSITIONS),
    "Task that a test has started on a node": ("testing/kit/_spawned_task.py", SPAWNED_TASK_TRANSITIONS),
    "Target of a balancer": ("lb/_target_life.py", TARGET_TRANSITIONS),
    "Bridge": ("bridge/_bridge_life.py", BRIDGE_TRANSITIONS),
    "NetworkLink": ("network/_network_link_life.py", NETWORK_LINK_TRANSITIONS),
}
HEAD = """# Life cycles

Drawn from tables by `python -m tools.draw_life_cycles`; a test fails when the page is stale.
Each line is a state, an event and the next state.
An event that a state does not list is illegal there: `InvariantError` names both, and the state stays.
Only the engine (`src/meshq/lifecycle.py`) assigns a state.
The states of a connection have [a page of their own](connection-states.md).
"""


def drawing(transitions: Transitions) -> str:
    """One life cycle, as lines of text: its states in the order of the table."""
    width = max(len(state) for state in transitions)
    events = max((len(event) for legal in transitions.values() for event in legal), default=0)
    lines: list[str] = []
    for state, legal in transitions.items():
        if not legal:
            lines.append(f"{state:<{width}}  (the end)")
        for number, (event, following) in enumerate(legal.items()):
            lines.append(f"{state if not number else '':<{width}}  {event:<{events}}  -> {following}")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, (file, transitions) in TABLES.items():
        parts.append(f"\n## {name}\n\n`src/meshq/{file}`\n\n```text\n{drawing(transitions)}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
