"""A peer made of nothing but the layer without I/O: it reads, checks all that this layer can check, and answers.

What only a broker can know (which channels are open, which tags are out, how much credit is left) is not looked at.
"""

from __future__ import annotations

from typing import Final

from meshq import limits
from meshq.wire import (
    BY_NAME,
    KIND_HEADERS,
    KIND_PROPERTIES,
    SCHEMAS,
    Answer,
    Call,
    Close,
    ConnectionMachine,
    ConnectionState,
    Deliver,
    Frame,
    FrameType,
    Header,
    Hello,
    IncomingStream,
    OutgoingStream,
    ReceiveBuffer,
    RunBytes,
    RunView,
    Sender,
    agree,
    check_run,
    decode_map,
    decode_ranges,
    duplicate_ids,
)

#: What a side says as soon as it has heard this.
_REPLIES: Final = {
    Sender.SERVER: {
        FrameType.HELLO: FrameType.WELCOME,
        FrameType.AUTHENTICATE: FrameType.AUTHENTICATED,
        FrameType.ATTACH: FrameType.ATTACHED,
    },
    Sender.CLIENT: {
        FrameType.WELCOME: FrameType.AUTHENTICATE,
        FrameType.CHALLENGE: FrameType.PROOF,
        FrameType.AUTHENTICATED: FrameType.ATTACH,
    },
}
#: The server has answered these with a numbered frame each, so a client may have received as many.
_ANSWERED: Final = frozenset({FrameType.PRODUCE, FrameType.CONSUME, FrameType.LEAVE, FrameType.CALL})


class SansIOPeer:
    """One side of a connection."""

    def __init__(self, here: Sender) -> None:
        self.here = here
        self.machine = ConnectionMachine(here, Sender.CLIENT if here is Sender.SERVER else Sender.SERVER)
        self.buffer = ReceiveBuffer()
        self.incoming = IncomingStream()
        self.outgoing = OutgoingStream()
        self.frames = 0
        if here is Sender.CLIENT:
            self.machine.sending(FrameType.HELLO)

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self.machine.state

    def feed(self, data: bytes) -> None:
        """Bytes have arrived.

        Raises:
            RemoteProtocolError: as they deserve.
        """
        for frame in self.buffer.feed(data):
            self._handle(frame)
            self.frames += 1

    def end(self) -> None:
        """The other side has stopped sending."""
        self.buffer.end()

    def _handle(self, frame: Frame) -> None:
        self.machine.received(frame.type)
        self.incoming.accept(frame)
        self.outgoing.arrived(frame.received)
        schema = SCHEMAS.get(frame.type)
        if schema is not None:
            self._read_header(frame, schema.decode(frame.header))
        if frame.type is FrameType.SEND:
            read_run(RunBytes(frame.count, bytes(frame.table), 0, frame.body))
        elif frame.type is FrameType.SETTLE:
            decode_ranges(frame.table)
        reply = _REPLIES[self.here].get(frame.type)
        if reply is not None:
            self.machine.sending(reply)
        if FrameType.AUTHENTICATED in (frame.type, reply):
            self.buffer.body_bytes_max = limits.BODY_BYTES_MAX
        if frame.type in _ANSWERED:
            self.outgoing.number(Frame(FrameType.ANSWER, first=frame.first), keep=True)

    def _read_header(self, frame: Frame, header: Header) -> None:
        match header:
            case Hello():
                agree(header)
            case Call() | Answer():
                assert isinstance(header.named, dict)
            case Deliver():
                header.delivery_counts(frame.count)
                read_run(RunBytes(frame.count, bytes(frame.table), header.base, frame.body))
            case _:
                pass

    def goodbye(self, refusal: str, text: str) -> Frame:
        """What tells the other side why the connection ends."""
        return Frame(FrameType.CLOSE, header=Close(code=BY_NAME[refusal].number, text=text).encode())


def read_run(run: RunBytes) -> None:
    """Read a run from a peer as broker and client do: once it is checked, every part of it can be read."""
    union = check_run(run)
    view = RunView(run)
    size = sum(len(part) for part in duplicate_ids(run))
    for index in range(run.rows):
        body, properties, headers = view.body(index), view.properties(index), view.headers(index)
        size += len(body) + len(properties) + len(headers)
        if index < 3 and union & KIND_PROPERTIES and properties:
            decode_map(properties, limits.ENVELOPE_BYTES_MAX, lists=False)
        if index < 3 and union & KIND_HEADERS and headers:
            decode_map(headers, limits.ENVELOPE_BYTES_MAX, lists=False)
    assert size == len(run.body), "the parts of a checked run are all of its bytes"
