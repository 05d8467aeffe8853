"""The two numbered streams: what is kept, what is sent again, and which numbers nobody can believe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq.errors import InvariantError, RemoteProtocolError
from meshq.wire import HEAD_BYTES, NUMBERED, Frame, FrameType, IncomingStream, OutgoingStream


def call(body: int = 0) -> Frame:
    return Frame(FrameType.CALL, first=1, header=bytes(body))


def sent(count: int, *, keep: bool = True) -> tuple[OutgoingStream, list[Frame]]:
    """A side that has sent so many numbered frames, and these."""
    outgoing = OutgoingStream()
    frames = [call(index) for index in range(count)]
    for frame in frames:
        outgoing.number(frame, keep=keep)
    return outgoing, frames


def test_numbers_begin_at_1_and_rise_by_one() -> None:
    outgoing, frames = sent(3)
    assert [frame.number for frame in frames] == [1, 2, 3]
    assert outgoing.last == 3


@pytest.mark.parametrize("frame_type", [t for t in FrameType if t not in NUMBERED])
def test_a_frame_that_changes_no_state_has_no_number_and_is_not_kept(frame_type: FrameType) -> None:
    outgoing = OutgoingStream()
    frame = Frame(frame_type)
    outgoing.number(frame, keep=True)
    assert (frame.number, outgoing.last, outgoing.kept_bytes) == (0, 0, 0)
    assert list(outgoing.resume(0)) == []


def test_what_has_arrived_is_no_longer_kept() -> None:
    outgoing, frames = sent(5)
    assert outgoing.kept_bytes == 5 * HEAD_BYTES + 0 + 1 + 2 + 3 + 4
    outgoing.arrived(3)
    assert outgoing.kept_bytes == 2 * HEAD_BYTES + 3 + 4
    outgoing.arrived(3)
    assert list(outgoing.resume(3)) == frames[3:]
    outgoing.arrived(5)
    assert outgoing.kept_bytes == 0


def test_on_a_link_that_loses_nothing_nothing_is_kept() -> None:
    outgoing, _ = sent(5, keep=False)
    assert (outgoing.kept_bytes, outgoing.last) == (0, 5)
    outgoing.arrived(2)
    outgoing.arrived(5)
    with pytest.raises(RemoteProtocolError):
        outgoing.arrived(6)


def test_to_resume_without_what_was_not_kept_is_a_defect_of_ours() -> None:
    outgoing, _ = sent(5, keep=False)
    with pytest.raises(InvariantError):
        outgoing.resume(3)


def test_more_than_was_sent_cannot_have_arrived() -> None:
    outgoing, _ = sent(2)
    for report in (outgoing.arrived, outgoing.resume):
        with pytest.raises(RemoteProtocolError) as caught:
            report(3)
        assert caught.value.refusal == "bad_number"
    assert len(list(outgoing.resume(0))) == 2


def test_a_report_that_is_older_than_the_last_changes_nothing() -> None:
    # A frame that is sent again says what its sender had received when it was made.
    outgoing, frames = sent(4)
    outgoing.arrived(3)
    outgoing.arrived(1)
    assert list(outgoing.resume(3)) == frames[3:]


def test_who_resumes_from_before_what_it_had_reported_is_refused() -> None:
    outgoing, _ = sent(4)
    outgoing.arrived(3)
    with pytest.raises(RemoteProtocolError) as caught:
        outgoing.resume(2)
    assert caught.value.refusal == "bad_number"
    assert list(outgoing.resume(4)) == []
    outgoing.number(frame := call(), keep=True)
    assert frame.number == 5
    assert list(outgoing.resume(4)) == [frame]


def test_what_is_said_while_frames_are_sent_again_is_not_among_them() -> None:
    outgoing, frames = sent(2)
    again = outgoing.resume(0)
    outgoing.number(call(), keep=True)
    assert list(again) == frames


def test_only_the_next_number_is_accepted() -> None:
    incoming = IncomingStream()
    first, second = Frame(FrameType.CALL, number=1), Frame(FrameType.CALL, number=2)
    for wrong in (second, Frame(FrameType.CALL, number=0)):
        with pytest.raises(RemoteProtocolError) as caught:
            incoming.accept(wrong)
        assert caught.value.refusal == "bad_number"
    incoming.accept(first)
    incoming.accept(second)
    with pytest.raises(RemoteProtocolError):
        incoming.accept(second)
    assert incoming.last == 2


def test_a_frame_without_a_number_must_not_have_one() -> None:
    incoming = IncomingStream()
    incoming.accept(Frame(FrameType.PING))
    with pytest.raises(RemoteProtocolError) as caught:
        incoming.accept(Frame(FrameType.PING, number=1))
    assert caught.value.refusal == "bad_number"
    assert (incoming.last, incoming.unreported_bytes) == (0, 0)


def test_bytes_that_were_not_reported_are_counted() -> None:
    incoming = IncomingStream()
    incoming.accept(Frame(FrameType.CALL, number=1, header=b"abc"))
    incoming.accept(Frame(FrameType.PING))
    assert incoming.unreported_bytes == HEAD_BYTES + 3


class Side:
    """One side of a session, which outlives its links."""

    def __init__(self) -> None:
        self.outgoing = OutgoingStream()
        self.incoming = IncomingStream()
        self.got: list[int] = []
        self.said = 0

    def say(self) -> Frame:
        """A new frame, of which the contents are a number of its own."""
        self.said += 1
        frame = Frame(FrameType.CALL, first=self.said)
        self.outgoing.number(frame, keep=True)
        frame.received = self.incoming.last
        return frame

    def hear(self, frame: Frame) -> None:
        """A frame has come over the link."""
        self.incoming.accept(frame)
        self.outgoing.arrived(frame.received)
        self.got.append(frame.first)


#: Who acts, whether it speaks or hears, or that the link breaks and what is on it is lost.
moves = st.lists(st.sampled_from(["a says", "b says", "a hears", "b hears", "breaks"]), max_size=80)


@given(moves)
def test_over_links_that_break_at_any_moment_each_frame_arrives_once_and_in_order(names: list[str]) -> None:
    sides = {"a": Side(), "b": Side()}
    under_way: dict[str, list[Frame]] = {"a": [], "b": []}

    def resume() -> None:
        received = {name: side.incoming.last for name, side in sides.items()}
        under_way["a"] = list(sides["b"].outgoing.resume(received["a"]))
        under_way["b"] = list(sides["a"].outgoing.resume(received["b"]))

    for name in names:
        if name == "breaks":
            resume()
        elif name.endswith("says"):
            other = "b" if name[0] == "a" else "a"
            under_way[other].append(sides[name[0]].say())
        elif under_way[name[0]]:
            sides[name[0]].hear(under_way[name[0]].pop(0))
        for side, other in ((sides["a"], sides["b"]), (sides["b"], sides["a"])):
            # S1: what is kept is what the other side has not reported, in order.
            kept = [frame.number for frame in side.outgoing._kept]
            assert kept == list(range(side.outgoing._arrived + 1, side.outgoing.last + 1))
            assert side.outgoing._arrived <= other.incoming.last
            assert side.outgoing.kept_bytes == len(kept) * HEAD_BYTES
    resume()
    for name, side in sides.items():
        for frame in under_way[name]:
            side.hear(frame)
    assert sides["a"].got == list(range(1, sides["b"].said + 1))
    assert sides["b"].got == list(range(1, sides["a"].said + 1))
