"""The session of another node: the runs that it sends to queues here, and the descriptions of these queues for it.

A peer's link begins with a snapshot of this node's queues; after that each changed queue is described anew, as it is
then, at the end of the pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from meshq import limits
from meshq.address import INTERNAL, is_name
from meshq.broker.bodies._body import Body
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.core._host_node import HostNode
from meshq.broker.core._node_identity import NodeIdentity
from meshq.broker.ingress._filters_at import costly, filters_of_forwarded
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._link_branches import is_branch_name
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.log._hop_log import Hop
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._run import StoredRun
from meshq.broker.session._forward_history import history_of
from meshq.broker.session._principal import Principal
from meshq.broker.session._queue_descriptions import QueueDescriptions
from meshq.broker.session._session_calls import SessionCalls
from meshq.broker.session._session_channels import SessionChannels
from meshq.broker.session._session_credit import SessionCredit
from meshq.broker.session._session_producers import SessionProducers
from meshq.broker.session._session_stream import SessionStream
from meshq.broker.transactions import ForwardedRuns
from meshq.broker.work._closing import Closing
from meshq.broker.work._fair_scheduler import CostlyScan, FairScheduler
from meshq.errors import MeshqError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import (
    COUNTER_MAX,
    FLAG_DURABLE,
    PREPARED_PARTS,
    AddressCredit,
    BranchChange,
    Forward,
    Frame,
    FrameType,
    LinkOpening,
    RunBytes,
    check_run,
    decline,
    header_of,
    violation,
)

#: What the journal has room for.
_STEP_MAX: Final = 2**16 - 1


#: The parts of runs that this node understands besides those that every node does, separated by spaces.
LINK_FEATURES: Final = "origin counts due queue ids hops prepared define announced large groups branches"


class Peering:
    """The part of a session that only another node's has."""

    def __init__(
        self,
        principal: Principal,
        stream: SessionStream,
        *,
        identity: NodeIdentity,
        host: HostNode,
        ingress: Ingress,
        definitions: Definitions,
        release_queue: ReleaseQueue,
        memory: MemoryBound,
        fair_scheduler: FairScheduler,
        closing: Closing,
        incoming: ForwardedRuns,
        calls: SessionCalls,
        channels: SessionChannels,
        credit: SessionCredit,
        producers: SessionProducers,
    ) -> None:
        self._identity = identity
        self._host = host
        self._ingress = ingress
        self._definitions = definitions
        self._release_queue = release_queue
        self._memory = memory
        self._fair_scheduler = fair_scheduler
        self._closing = closing
        self._incoming = incoming
        self._principal = principal
        self._stream = stream
        self._calls = calls
        self._session_channels = channels
        self._credit = credit
        self._producers = producers
        #: Links by channel; empty: it was opened anew in another session.
        self.channels: dict[int, bytes] = {}
        # By channel: the first number of a run whose queues have not all been named, how many messages, and the queues.
        self._named: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        # The run that waits first on the link, while it is put to filters, and until it is placed.
        self._judged: tuple[Frame, StoredRun] | None = None
        self._descriptions = QueueDescriptions(definitions, release_queue, stream, self.channels.keys())
        self.handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.LINK: self._link,
            FrameType.FORWARD: self._forward,
            FrameType.BRANCH: self._branch,
            FrameType.ADDRESS_CREDIT: self._kept,
        }

    def changed(self, number: int) -> None:
        """Describe a queue anew."""
        self._descriptions.changed(number)

    def remote_changed(self, address: str) -> None:
        """Describe the queues of further nodes on an address anew, for links that have asked for these."""
        self._descriptions.remote_changed(address)

    def bounds_changed(self, address: str) -> None:
        """Give the links credit at an address that may have become bounded, or take it back at one that is gone."""
        self._descriptions.bounds_changed(address)

    def supersede(self, link: bytes) -> None:
        """A link is read in another session from now on."""
        for channel in [channel for channel, one in self.channels.items() if one == link]:
            self.channels[channel] = b""
            self._descriptions.credits.close(channel)

    @property
    def connected(self) -> bool:
        """Whether the session has a connection now."""
        return self._stream.link is not None

    def end(self) -> None:
        """The session is over."""
        self.forget()
        self._definitions.router.demand.drop(self)
        self._descriptions.end()
        self.channels.clear()

    # -- in

    def _link(self, frame: Frame) -> None:
        header = header_of(frame, LinkOpening)
        here = self._identity
        if header.node_id == here.node_id:
            own = header.instance == here.instance
            name = "same_node" if own else "duplicate_node"
            where = header.connector or self._principal.peer
            error = decline(name, f"{here.name!r} was reached by {header.node_name!r} at {where!r}")
            self._host.meet_stranger(header, error)
            raise error
        who = header.node_id, header.instance, header.connector
        twin = self._definitions.router.demand.place_of_twin(*who)
        if twin:
            # Both would use the same numbers, so that messages of one were taken for those of the other.
            where = header.connector or self._principal.peer
            error = decline("duplicate_node", f"{header.node_name!r} at {where!r} has the id of the node at {twin!r}")
            self._host.meet_stranger(header, error)
            raise error
        if not any(header.link) or is_branch_name(header.link):
            raise violation("bad_header", "the link has no name, or one that only a branch has")
        if not header.bounded and (known := self._ingress.branches.of(header.link)):
            # By the link's mark alone it would take what waits in these for stored.
            raise violation("bad_header", f"{header.node_name!r} has to know the branches of its link: {sorted(known)}")
        self._calls.begin(frame)
        self._session_channels.open(frame)

        def link() -> dict[str, Any]:
            # Whoever links counts on the answer: it decides what becomes of all that is not stored.
            self._definitions.router.demand.supersede(header.link)
            self.channels[frame.channel] = header.link
            self._principal.node = header.node_id.hex(), header.instance.hex()
            self.met(header.node_id, header.connector)
            for address, mark in self._ingress.branches.of(header.link).items():
                about = BranchChange(address=address).encode()
                self._stream.put(Frame(FrameType.BRANCH, channel=frame.channel, first=mark, header=about))
            store = hashlib.sha256(self._identity.store).digest()[:IDENTITY_BYTES]
            return {"number": self._ingress.links.get(header.link, 0), "store": store, "features": LINK_FEATURES}

        self._calls.answering(frame, link, takes_in=False)
        if frame.channel not in self.channels:
            return
        self._descriptions.begin(frame.channel, header)
        self._definitions.router.demand.add(self, who)
        self._stream.schedule_flush()

    def met(self, node_id: bytes, connector: str) -> None:
        """Tell the watchers that the other node is there, and the connector that it has named."""
        self._definitions.router.demand.met(node_id, connector)

    def reads(self, frame: Frame) -> bool:
        """Whether the link of a frame is read here: no other session has it by now.

        Raises:
            RemoteProtocolError: there is no link on its channel.
        """
        if frame.channel not in self.channels:
            raise violation("bad_channel", f"there is no link on channel {frame.channel}")
        return bool(self.channels[frame.channel])

    def _branch(self, frame: Frame) -> None:
        """Begin or end a branch of a link: nothing that was sent behind this is stored without it."""
        header = header_of(frame, BranchChange)
        if not is_name(header.address) or header.address.startswith(INTERNAL):
            raise violation("bad_header", "a branch of an address without a valid name, or of one of a node's own")
        if not self.reads(frame) or self._closing.why is not None:
            return
        change = self._ingress.branches.end if header.ended else self._ingress.branches.begin
        try:
            change(self.channels[frame.channel], header.address)
        except MeshqError:
            # As a run that is not stored: what comes behind it must not be stored in this session.
            self._stream.refuse_resume()
            raise

    def _kept(self, frame: Frame) -> None:
        """Take credit back that was asked for."""
        header = header_of(frame, AddressCredit)
        if self.reads(frame):
            self._descriptions.credits.kept(header.number, frame.first)

    def _forward(self, frame: Frame) -> None:
        self.reads(frame)
        link = self.channels[frame.channel]
        self._credit.check()
        try:
            if link:
                self._take(frame, link)
        except MeshqError:
            # The frame is not stored and has its number: whoever came back to this session would leave it out.
            self._stream.refuse_resume()
            raise
        finally:
            # Also if another session has its link by now.
            self.forget()
            self._memory.received(self._credit, frame.size_bytes)

    def _take(self, frame: Frame, link: bytes) -> None:
        header = header_of(frame, Forward)
        content = RunBytes(frame.count, bytes(frame.table), 0, frame.body)
        kinds = check_run(content)
        step, stride = header.step, header.step * header.stride
        last = frame.first + (content.rows - 1) * step
        aimed = bool(header.queues) != bool(header.queue) or header.entry in PREPARED_PARTS
        if not frame.first or not 0 < step <= stride <= _STEP_MAX or last > COUNTER_MAX or not aimed:
            raise violation("bad_header", f"numbers from {frame.first} in steps of {step} and {stride}, or no queue")
        if header.number + (content.rows - 1) * stride > COUNTER_MAX:
            raise violation("bad_header", f"a producer's number over {COUNTER_MAX}")
        if not is_name(header.address) or header.address.startswith(INTERNAL):
            raise violation("bad_header", "the address of messages has no valid name, or one of a node's own")
        queues = self._all_queues(frame, header)
        if header.more or (header.branch and self._closing.why is not None):
            # A node that stops begins no branches, so that it may not know this one: the run comes again.
            return
        link = self._ingress.branches.name(link, header.address, branch=header.branch)
        bodies = self._producers.body_blocks
        body = bodies.claim_forwarded(frame, header.upload) if header.upload else None
        try:
            self._store(frame, header, (content, kinds, body), (link, last), queues)
        finally:
            if body is not None and not body.refs:
                # Stored already, or not taken.
                bodies.abandon(body)
        # Only now, when what was placed counts.
        self._descriptions.credits.came(header.credit, content.rows)

    def _store(
        self,
        frame: Frame,
        header: Forward,
        come: tuple[RunBytes, int, Body | None],
        number: tuple[bytes, int],
        queues: tuple[int, ...],
    ) -> None:
        """Place the messages of a frame that are not stored yet.  ``number``: the link, and its last number."""
        (content, kinds, body), judged = come, self._judged
        confirm = self._producers.confirm_later(frame.channel, number[1])
        # Sent again after a link was lost: what is stored is left out.
        stored = max(0, (self._ingress.links.get(number[0], 0) - frame.first) // header.step + 1)
        if stored >= content.rows:
            self._release_queue.when_all_is_durable(confirm)
            return
        if self._closing.why is not None:
            # Neither confirmed nor refused: it comes again.
            return
        run = judged[1] if judged is not None and judged[0] is frame else self._run(frame, header, content)
        run.body = body
        rows = range(stored, content.rows)
        about = history_of(header, content.rows)
        self._incoming.store(
            run, frame, header, about, queues=queues, kinds=kinds, link=number, rows=rows, then=confirm
        )
        if about.entry:
            return
        name = about.there.name if about.there is not None else ""
        demand, about_run = self._definitions.router.demand, (run.producer, run.number, run.number_step)
        came = Hop(
            *about_run, content.rows, to=False, node_id=demand.node_of(self), forward=0, numbers=queues, name=name
        )
        demand.hops.add(came)

    def _run(self, frame: Frame, header: Forward, content: RunBytes) -> StoredRun:
        return StoredRun(
            header.address,
            content,
            durable=bool(frame.flags & FLAG_DURABLE) and self._release_queue.durable,
            producer=header.producer,
            number=header.number,
            stamp=frame.stamp,
            number_step=header.step * header.stride,
        )

    def costly(self, frame: Frame) -> CostlyScan | None:
        """The steps in which a run has to be put to filters before it is taken; None: it need not be, or is not taken.

        Raises:
            RemoteProtocolError: it can't be read.
        """
        link = self.channels.get(frame.channel)
        if not link or self._closing.why is not None or self._credit.used_up:
            return None
        header = header_of(frame, Forward)
        if (
            header.more
            or header.queue
            or header.entry
            or not frame.first
            or not header.step
            or not is_name(header.address)
        ):
            # What is for one queue by its name goes there, whatever its filter.
            return None
        link = self._ingress.branches.name(link, header.address, branch=header.branch)
        stored = max(0, (self._ingress.links.get(link, 0) - frame.first) // header.step + 1)
        named = self._named.get(frame.channel)
        filters = filters_of_forwarded(
            self._definitions.router, header.address, (named[2] if named else ()) + header.queues
        )
        if stored >= frame.count or not filters:
            return None
        return costly(
            self._fair_scheduler,
            self._principal.owner,
            self._come(frame, header),
            filters,
            range(stored, frame.count),
        )

    def see(self, frame: Frame) -> None:
        """Note the arrival of a frame that may have to wait for disk space: its delays count from now.

        Raises:
            RemoteProtocolError: the frame can't be read.
        """
        if self.channels.get(frame.channel) and not (header := header_of(frame, Forward)).more:
            self._come(frame, header)

    def _come(self, frame: Frame, header: Forward) -> StoredRun:
        """The run of a frame, as it was when that was first looked at."""
        if self._judged is None or self._judged[0] is not frame:
            content = RunBytes(frame.count, bytes(frame.table), 0, frame.body)
            kinds = check_run(content)
            run = self._run(frame, header, content)
            # Filters may ask for its size.
            run.body = self._producers.body_blocks.whole_on(frame, header.upload) if header.upload else None
            self._ingress.asked_of_forwarded(run, kinds, history_of(header, content.rows))
            self._judged = frame, run
        return self._judged[1]

    def forget(self) -> None:
        """Forget the run that is being put to filters: it will not be placed."""
        self._judged = None

    def _all_queues(self, frame: Frame, header: Forward) -> tuple[int, ...]:
        """The queues that a run is for; none yet if more will be named."""
        first, rows, named = self._named.pop(frame.channel, (frame.first, frame.count, ()))
        queues = named + header.queues
        if (first, rows) != (frame.first, frame.count) or len(queues) > limits.ALL_QUEUES_PER_ADDRESS_MAX:
            raise violation("bad_number", f"run {frame.first} after a part of run {first}, for {len(queues)} queues")
        if header.more:
            self._named[frame.channel] = (first, rows, queues)
            return ()
        return queues

    # -- out

    def flush(self) -> None:
        """Describe the changed queues, and the bounded addresses before these."""
        self._descriptions.flush()
