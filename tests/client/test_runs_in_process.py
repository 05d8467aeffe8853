"""Sends within a process: the broker tells of each run that is stored by a call, not by a frame."""

from __future__ import annotations

import pytest

from meshq.abc import FrameReceiver
from meshq.client.outgoing._outbox import Outbox, OutgoingRun
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientSettings
from meshq.errors import AddressFullError, ClosedError, MeshqError, RefusedError
from meshq.wire import BY_NAME, COUNTER_MAX, Close, Frame, FrameType, Link, Refuse, StreamLink, encode_one
from tests.client._stream import MemoryStream


class Line(Link):
    """Keeps what is sent."""

    lossless = True
    local = True
    peer = "near"

    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def start(self, receiver: FrameReceiver[Frame]) -> None:
        """Nobody is there."""

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def flush(self) -> None:
        """Nobody is there."""

    def close(self) -> None:
        """Nobody is there."""

    def admit(self) -> None:
        """Nobody is there."""


class Unheard:
    """The owner of a producer of which nobody wants to hear."""

    def producer_opened(self) -> None:
        """Nobody is there."""

    def producer_failed(self, error: MeshqError) -> None:
        """Nobody is there."""


def sent_over(link: Link, count: int) -> tuple[ClientSession, Outbox, list[OutgoingRun]]:
    """Runs of one message, sent over a link."""
    session = ClientSession(ClientSettings.build({}), lambda: 1.0)
    session.stream.link = link
    session.send_queue.credit(1 << 20)
    outbox = Outbox("a", bytes(16), Unheard())
    outbox.ask(session.channels.new(outbox))
    outbox.opened(COUNTER_MAX)
    session.send_queue.outboxes[outbox] = None
    runs = [OutgoingRun(encode_one(b"x"), False, 0, plain=True) for _ in range(count)]
    for run in runs:
        session.send_queue.submit(outbox, run)
    return session, outbox, runs


def stored(frame: Frame) -> None:
    """The broker has stored what a frame carries."""
    assert frame.on_stored is not None
    frame.on_stored()


def test_each_run_is_settled_by_itself_so_an_earlier_refusal_still_counts() -> None:
    line = Line()
    session, outbox, (refused, taken, last) = sent_over(line, 3)
    stored(line.sent[1])
    assert (refused.done, taken.done, last.done) == (False, True, False)
    header = Refuse(messages=1, code=BY_NAME["address_full"].number, text="full").encode()
    session.handle([Frame(FrameType.REFUSE, channel=outbox.channel, number=1, first=1, header=header)])
    with pytest.raises(AddressFullError):
        refused.result()
    stored(line.sent[2])
    assert last.done
    assert (outbox.unsettled, list(outbox.sent)) == (0, [])


def test_a_run_that_is_told_of_twice_or_too_late_is_settled_once() -> None:
    line = Line()
    session, outbox, (first, second) = sent_over(line, 2)
    stored(line.sent[0])
    stored(line.sent[0])
    assert outbox.unsettled == 1
    session.fail(ClosedError("the client is closed"))
    stored(line.sent[1])
    assert (first.result(), outbox.unsettled) == (None, 0)
    with pytest.raises(ClosedError) as caught:
        second.result()
    assert caught.value.outcome == "unknown"


def test_a_producer_that_was_closed_leaves_when_its_last_run_is_stored() -> None:
    line = Line()
    session, outbox, _ = sent_over(line, 1)
    session.send_queue.close(outbox)
    assert [frame.type for frame in line.sent] == [FrameType.SEND]
    stored(line.sent[0])
    assert [frame.type for frame in line.sent] == [FrameType.SEND, FrameType.LEAVE]
    assert session.wakeup.woken


def test_nothing_of_this_goes_over_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[Frame] = []
    link = StreamLink(MemoryStream("far"), local=True)
    monkeypatch.setattr(link, "send", frames.append)
    sent_over(link, 1)
    assert (frames[0].on_stored, frames[0].plain) == (None, None)


class Owner:
    """The owner of a link; keeps the errors for which the session ends it."""

    def __init__(self) -> None:
        self.errors: list[MeshqError] = []

    def peer_closed(self, close: Close) -> None:
        """Nobody closes it."""

    def peer_violated(self, error: MeshqError) -> None:
        self.errors.append(error)


def test_what_a_client_refuses_ends_its_own_link_and_is_no_error_of_the_nodes_call() -> None:
    session, outbox, _ = sent_over(Line(), 1)
    owner = Owner()
    session._link_owner = owner
    error = RefusedError("the other node is older")

    def refuse(frame: Frame) -> None:
        raise error

    session._handlers[FrameType.CREDIT] = refuse
    session.handle([Frame(FrameType.CREDIT, channel=outbox.channel, number=1, first=1)])
    assert owner.errors == [error]
