"""Links: frames in the order in which they were sent, no frame lost by a close, and nothing after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq import abc, limits
from meshq.errors import ConnectionBrokenError, InvariantError, RemoteProtocolError
from meshq.wire import (
    FLAG_BODY_CHECKED,
    HEAD_BYTES,
    DirectLink,
    Frame,
    FrameType,
    ReceiveBuffer,
    StreamLink,
    encode,
    encode_run,
)

RUN = encode_run([b"one", b"two"])


def numbered(number: int) -> Frame:
    return Frame(FrameType.CALL, first=number)


def send() -> Frame:
    return Frame(FrameType.SEND, channel=1, first=1, count=RUN.rows, table=RUN.table, body=RUN.body)


class End:
    """What one end of a link has heard; ``then`` is done with each frame."""

    def __init__(self, link: DirectLink | StreamLink) -> None:
        self.link = link
        self.heard: list[int] = []
        self.batches: list[int] = []
        self.closed = 0
        self.then: Callable[[Frame], None] = lambda frame: None
        self.depth = 0
        self.backlogs = 0
        link.start(self)

    def frames(self, frames: list[Frame]) -> None:
        self.depth += 1
        assert self.depth == 1, "a batch is handled to its end before the next"
        self.batches.append(len(frames))
        for frame in frames:
            self.heard.append(frame.first)
            self.then(frame)
        self.depth -= 1

    def lost(self) -> None:
        self.closed += 1

    def backlogged(self) -> None:
        self.backlogs += 1

    def say(self, *numbers: int) -> None:
        for number in numbers:
            self.link.send(numbered(number))
        self.link.flush()


def pair() -> tuple[End, End]:
    client, server = DirectLink.pair("a client", "a node")
    return End(client), End(server)


def test_each_end_of_a_direct_link_knows_the_others_name() -> None:
    client, server = DirectLink.pair("a client", "a node")
    assert (client.peer, server.peer) == ("a node", "a client")
    assert client.lossless
    assert client.local
    client.admit()


def test_frames_go_over_at_the_flush_in_one_batch_as_the_objects_they_are() -> None:
    client, server = pair()
    frame = send()
    client.link.send(frame)
    client.link.send(numbered(2))
    assert server.heard == []
    seen: list[Frame] = []
    server.then = seen.append
    client.link.flush()
    client.link.flush()
    assert seen[0] is frame
    assert server.batches == [2]


def test_an_answer_comes_back_within_the_senders_turn() -> None:
    client, server = pair()
    server.then = lambda frame: server.say(frame.first + 100)
    client.say(1, 2)
    assert server.heard == [1, 2]
    assert client.heard == [101, 102]


def test_what_is_said_while_being_heard_comes_after_it_and_in_order() -> None:
    client, server = pair()

    def echo(frame: Frame) -> None:
        server.say(frame.first)

    def count_down(frame: Frame) -> None:
        if frame.first:
            # The server is in the middle of hearing: this waits until it has heard all of its batch.
            client.say(frame.first - 1)

    server.then, client.then = echo, count_down
    client.say(5, 3)
    # Breadth first: the answers to one batch make the next; nobody is interrupted by what is said meanwhile.
    assert server.heard == [5, 3, 4, 2, 3, 1, 2, 0, 1, 0]
    assert client.heard == server.heard


@pytest.mark.slow
def test_a_long_exchange_does_not_deepen_the_stack() -> None:
    client, server = pair()
    server.then = lambda frame: server.say(frame.first)
    client.then = lambda frame: client.say(frame.first - 1) if frame.first else None
    client.say(20_000)
    assert len(client.heard) == 20_001


def test_closing_is_told_to_the_other_side_once_and_never_to_oneself() -> None:
    client, server = pair()
    client.link.close()
    client.link.close()
    server.link.close()
    assert (client.closed, server.closed) == (0, 1)


def test_both_sides_that_close_hear_nothing_of_it() -> None:
    client, server = pair()
    server.then = lambda frame: server.link.close()
    client.link.send(numbered(1))
    client.link.close()
    assert (client.closed, server.closed) == (0, 0)


def test_what_is_in_line_goes_over_before_a_close() -> None:
    client, server = pair()
    client.link.send(numbered(1))
    client.link.send(numbered(2))
    client.link.close()
    assert server.heard == [1, 2]
    assert server.closed == 1


def test_a_close_within_a_hand_over_still_hands_over_what_is_in_line() -> None:
    client, server = pair()
    server.then = lambda frame: server.say(frame.first)

    def good_bye(frame: Frame) -> None:
        # The server is still in the middle of the batch that it answers.
        client.link.send(numbered(99))
        client.link.close()
        assert server.closed == 0
        client.link.send(numbered(100))

    client.then = good_bye
    client.say(1)
    assert server.heard == [1, 99]
    assert server.closed == 1
    assert client.heard == [1]
    assert client.closed == 0


def test_who_closes_hears_nothing_more() -> None:
    client, server = pair()

    def answer_twice(frame: Frame) -> None:
        server.say(1)
        server.say(2)

    server.then = answer_twice
    client.then = lambda frame: client.link.close()
    client.say(7)
    assert client.heard == [1]
    assert server.closed == 1


def test_what_the_other_side_had_in_line_goes_nowhere() -> None:
    client, server = pair()
    server.link.send(numbered(1))
    client.link.close()
    server.link.flush()
    assert client.heard == []
    assert server.link._out == []


def test_what_the_other_side_says_to_a_close_goes_nowhere() -> None:
    client, server = pair()
    server.then = lambda frame: server.say(2)
    client.link.send(numbered(1))
    client.link.close()
    server.say(3)
    assert server.heard == [1]
    assert client.heard == []


def test_a_side_that_is_closed_while_it_speaks_stops() -> None:
    client, server = pair()
    server.then = lambda frame: server.link.close()
    client.link.send(numbered(1))
    client.link.flush()
    client.say(2)
    assert server.heard == [1]
    assert client.closed == 1
    assert server.closed == 0
    assert client.link._out == []


def test_the_last_words_of_a_side_that_closes_while_it_is_spoken_to_are_heard() -> None:
    client, server = pair()

    def refuse(frame: Frame) -> None:
        server.link.send(numbered(66))
        server.link.close()

    server.then = refuse
    client.say(1)
    assert client.heard == [66]
    assert client.closed == 1


class FakeStream(abc.Stream):
    """A stream that writes what it is given down."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = 0
        self.waiting = 0
        self.broken = False

    def send_nowait(self, data: abc.Buffer) -> int:
        if self.broken:
            raise ConnectionBrokenError("broken")
        assert not self.closed
        self.written.append(bytes(data))
        return self.waiting

    async def flush(self) -> None:
        raise AssertionError("the owner's business")

    async def receive(self, size_max: int) -> bytes:
        raise AssertionError("the owner's business")

    def close(self) -> None:
        self.closed += 1

    @property
    def peer(self) -> str:
        return "127.0.0.1:5"


def test_frames_of_a_stream_link_go_out_together_at_the_flush() -> None:
    stream = FakeStream()
    link = StreamLink(stream, local=True)
    frames = [send(), numbered(2), Frame(FrameType.PING)]
    for frame in frames:
        link.send(frame)
    assert stream.written == []
    link.flush()
    link.flush()
    assert stream.written == [b"".join(map(encode, frames))]
    assert (link.peer, link.lossless, link.local) == ("127.0.0.1:5", False, True)


def test_bodies_are_not_checked_again_under_tls() -> None:
    class TlsLike(FakeStream):
        binding = bytes(32)

    stream = TlsLike()
    link = StreamLink(stream, local=False)
    frame = send()
    link.send(frame)
    link.flush()
    assert (frame.flags & FLAG_BODY_CHECKED, link.local, link.binding) == (0, True, bytes(32))
    assert StreamLink(FakeStream(), local=False).binding == b""


def test_bodies_are_checked_on_links_that_nothing_else_protects() -> None:
    for local, flags in ((True, 0), (False, FLAG_BODY_CHECKED)):
        stream = FakeStream()
        link = StreamLink(stream, local=local)
        empty = encode_run([b""])
        for frame in (
            send(),
            numbered(2),
            Frame(FrameType.SEND, channel=1, first=1, count=1, table=empty.table),
        ):
            link.send(frame)
        link.flush()
        found = ReceiveBuffer().feed(stream.written[0])
        assert [frame.flags for frame in found] == [flags, 0, 0]


def test_views_of_a_body_are_written_as_they_are() -> None:
    stream = FakeStream()
    link = StreamLink(stream, local=True)
    frame = send()
    frame.body = memoryview(RUN.body)
    link.send(frame)
    link.flush()
    assert stream.written == [encode(send())]


def test_a_backlog_is_told_whenever_bytes_wait() -> None:
    stream = FakeStream()
    link = StreamLink(stream, local=True)
    end = End(link)
    link.send(numbered(1))
    link.flush()
    stream.waiting = 5
    link.flush()
    assert end.backlogs == 0
    link.send(numbered(2))
    link.flush()
    assert end.backlogs == 1


def test_a_link_is_started_once() -> None:
    for link in (StreamLink(FakeStream(), local=True), DirectLink("far")):
        end = End(link)
        with pytest.raises(InvariantError, match="a link is started once"):
            link.start(end)


def test_a_broken_stream_is_no_error_of_the_flush() -> None:
    stream = FakeStream()
    stream.broken = True
    link = StreamLink(stream, local=True)
    link.send(numbered(1))
    link.flush()
    link.close()
    assert stream.closed == 1


def test_a_stream_link_sends_what_is_in_line_and_closes_once() -> None:
    stream = FakeStream()
    link = StreamLink(stream, local=True)
    end = End(link)
    link.send(numbered(1))
    link.close()
    link.close()
    link.send(numbered(2))
    link.flush()
    link.feed(encode(numbered(3)))
    assert stream.written == [encode(numbered(1))]
    assert stream.closed == 1
    assert (end.heard, end.closed, link._out) == ([], 0, [])


def test_a_stream_link_hands_over_what_one_feed_completes_as_one_batch() -> None:
    link = StreamLink(FakeStream(), local=True)
    end = End(link)
    data = b"".join(encode(numbered(number)) for number in (1, 2, 3))
    link.feed(data[:10])
    assert end.batches == []
    link.feed(data[10 : HEAD_BYTES * 2 + 5])
    link.feed(data[HEAD_BYTES * 2 + 5 :])
    link.end()
    assert end.heard == [1, 2, 3]
    assert end.batches == [2, 1]


def test_a_stream_that_ends_inside_a_frame_is_truncated() -> None:
    link = StreamLink(FakeStream(), local=True)
    End(link)
    link.feed(encode(numbered(1))[:-1])
    with pytest.raises(RemoteProtocolError) as caught:
        link.end()
    assert caught.value.refusal == "truncated"


def test_large_frames_are_refused_until_the_other_side_is_admitted() -> None:
    body = bytes(limits.UNAUTHENTICATED_BYTES_MAX + 1)
    run = encode_run([body])
    data = encode(Frame(FrameType.SEND, channel=1, first=1, count=1, table=run.table, body=run.body))
    link = StreamLink(FakeStream(), local=True)
    End(link)
    with pytest.raises(RemoteProtocolError) as caught:
        link.feed(data)
    assert caught.value.refusal == "too_large"
    link = StreamLink(FakeStream(), local=True)
    end = End(link)
    link.admit()
    link.feed(data)
    assert end.heard == [1]
