"""Another node, which speaks in raw frames to a core, and says by hand what its links would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshq.broker import RemoteBinding
from meshq.broker.queue._queue_machine import Queue
from meshq.wire import (
    FLAG_DURABLE,
    Attach,
    Attached,
    Authenticate,
    Binding,
    BranchChange,
    Envelope,
    Forward,
    FrameType,
    Hello,
    LinkOpening,
    encode_run,
    header_of,
)
from tests.broker.kit import PRODUCER, House, RawClient

LINK = b"the link's name!"


class RawPeer(RawClient):
    """A peer, with a session unless a test says so."""

    def shake(self, **attach: Any) -> Attached:
        """The handshake, in a peer's role; its proof is tested elsewhere, so it says hello as if in process."""
        link = self.server._link
        lossless, link.lossless = link.lossless, True
        self.send(FrameType.HELLO, Hello(oldest=1, newest=1, role="peer", label="test"))
        link.lossless = lossless
        self.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
        self.send(FrameType.ATTACH, Attach(**attach))
        self.attached = header_of(self.last(FrameType.ATTACHED), Attached)
        return self.attached

    def open(self, link: bytes = LINK, node_id: bytes = b"another node, 16", **changed: Any) -> int:
        """Open a channel for a link; returns the channel."""
        self.channels += 1
        changed = {"instance": b"i" * 16, **changed}
        header = LinkOpening(link=link, node_id=node_id, node_name="there", **changed)
        self.request(FrameType.LINK, header, channel=self.channels)
        return self.channels

    def forward(
        self,
        channel: int,
        first: int,
        *bodies: bytes,
        queues: Sequence[int] = (1,),
        address: str = "q",
        number: int = 1,
        durable: bool = True,
        step: int = 1,
        stride: int = 1,
        producer: bytes = PRODUCER,
        envelopes: Sequence[Envelope] | None = None,
        stamp: int = 0,
        more: bool = False,
        arrival: int = 0,
        origin: Sequence[str] = (),
        branch: bool = False,
        credit: int = 0,
    ) -> None:
        """Forward a run."""
        run = encode_run(list(bodies), envelopes)
        header = Forward(
            address=address,
            producer=producer,
            number=number,
            step=step,
            stride=stride,
            queues=tuple(queues),
            more=more,
            arrival=arrival,
            origin=tuple(origin),
            branch=branch,
            credit=credit,
        )
        self.send(
            FrameType.FORWARD,
            header,
            flags=FLAG_DURABLE if durable else 0,
            channel=channel,
            first=first,
            count=run.rows,
            table=run.table,
            body=run.body,
            stamp=stamp,
        )

    def branch(self, channel: int, address: str = "q", *, ended: bool = False) -> None:
        """Begin or end a branch of a link."""
        self.send(FrameType.BRANCH, BranchChange(address=address, ended=ended), channel=channel)

    def bindings(self) -> list[Binding]:
        """All descriptions, in order."""
        return [header_of(frame, Binding) for frame in self.all(FrameType.BINDING)]


def peer_of(house: House) -> RawPeer:
    """A peer with a session."""
    peer = RawPeer(house)
    peer.shake()
    return peer


def bind(
    house: House,
    *,
    number: int = 7,
    name: str = "q",
    address: str = "q",
    routing: str = "anycast",
    consumers: int = 1,
    mode: str = "on_demand",
    node: str = "there",
) -> Queue:
    """A queue of another node is known; returns the store-and-forward queue that leads there."""
    core = house.core
    forward = core.definitions.forward_queue(f"$meshq.cluster.mesh.{node}")
    binding = RemoteBinding(forward, mode, number, name, address, routing, consumers, ())
    core.router.bind(forward.number.to_bytes(8, "big"), binding)
    return forward
