"""A producer whose address is full waits by itself: nobody else of its session does, and its order is kept."""

from __future__ import annotations

import pytest

from meshq.client.outgoing._outbox import Outbox, OutgoingRun
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientSettings
from meshq.errors import ClosedError, InvariantError
from meshq.wire import COUNTER_MAX, Frame, FrameType, encode_one
from tests.client.test_runs_in_process import Line, Unheard


def two() -> tuple[ClientSession, Line, Outbox, Outbox]:
    """A session with two producers."""
    session, line = ClientSession(ClientSettings.build({}), lambda: 1.0), Line()
    session.stream.link = line
    session.send_queue.credit(1 << 20)
    found = []
    for name in ("full", "open"):
        outbox = Outbox(name, bytes(16), Unheard())
        outbox.ask(session.channels.new(outbox))
        outbox.opened(COUNTER_MAX)
        session.send_queue.outboxes[outbox] = None
        found.append(outbox)
    return session, line, *found


def submit(session: ClientSession, outbox: Outbox, body: bytes = b"x") -> OutgoingRun:
    run = OutgoingRun(encode_one(body), False, 0, plain=True)
    session.send_queue.submit(outbox, run)
    session.pump()
    return run


def bodies(line: Line) -> list[bytes]:
    return [bytes(frame.body) for frame in line.sent if frame.type is FrameType.SEND]


def allow(session: ClientSession, outbox: Outbox, credit_until: int) -> None:
    session._credit(Frame(FrameType.CREDIT, channel=outbox.channel, first=credit_until))
    session.pump()


def test_one_producer_waits_and_the_other_does_not() -> None:
    session, line, full, other = two()
    allow(session, full, 1)
    for body in (b"1", b"2", b"3"):
        submit(session, full, body)
    submit(session, other, b"free")
    assert bodies(line) == [b"1", b"free"] and full.queued == 2
    allow(session, full, 2)
    assert bodies(line) == [b"1", b"free", b"2"]
    submit(session, full, b"4")
    allow(session, full, 9)
    assert bodies(line)[3:] == [b"3", b"4"] and full.queued == 0


def test_who_waits_stands_aside_at_once_and_not_when_the_line_moves_next() -> None:
    """Nothing may come for a long time that moves the line: the others do not wait for it."""
    session, line, full, other = two()
    allow(session, full, 1)
    runs = [OutgoingRun(encode_one(body), False, 0, plain=True) for body in (b"1", b"2", b"3", b"free")]
    for run, outbox in zip(runs, (full, full, full, other), strict=True):
        session.send_queue.submit(outbox, run)
    assert bodies(line) == [b"1", b"free"] and full.queued == 2
    allow(session, full, 9)
    assert bodies(line) == [b"1", b"free", b"2", b"3"] and full.queued == 0


def test_a_mark_stands_behind_what_waits() -> None:
    session, _, full, _ = two()
    allow(session, full, 0)
    early = session.send_queue.add_barrier(full)
    session.pump()
    assert early.done
    submit(session, full)
    late = session.send_queue.add_barrier(full)
    session.pump()
    assert not late.done
    allow(session, full, 1)
    assert late.done


def test_what_waits_is_not_given_up_while_there_is_a_link() -> None:
    session, _, full, _ = two()
    allow(session, full, 0)
    run = submit(session, full)
    session.deadlines.timed[run] = None
    assert session.end_overdue(1e9) == float("inf") and not run.done


def test_in_a_new_session_what_waited_goes_before_what_came_later() -> None:
    session, line, full, _ = two()
    allow(session, full, 1)
    for body in (b"1", b"2", b"3"):
        submit(session, full, body)
    session.send_queue.renew()
    assert not full.awaiting_credit and [run.content.body for run in full.awaiting_channel] == [b"2", b"3"]
    session.send_queue.credit(1 << 20)
    session.send_queue._produced(full, 0, 2)
    session.pump()
    assert bodies(line) == [b"1", b"1", b"2"]
    allow(session, full, 3)
    assert bodies(line)[3:] == [b"3"]


def test_numbers_that_a_new_session_knows_nothing_of_take_no_room() -> None:
    session, line, full, _ = two()
    full.next = 201
    session.send_queue.renew()
    session.send_queue.credit(1 << 20)
    session.send_queue._produced(full, 100, 0)
    for body in (b"1", b"2", b"3"):
        submit(session, full, body)
    assert bodies(line) == []
    allow(session, full, 1)
    assert [frame.first for frame in line.sent if frame.type is FrameType.SEND] == [201]
    allow(session, full, 3)
    assert bodies(line) == [b"1", b"2", b"3"] and not full.queued


def test_what_another_node_grants_is_not_used_up_by_numbers_that_it_never_gets() -> None:
    session, line, full, _ = two()
    session.facts.node_id = full.node_id = b"one"
    allow(session, full, 9)
    runs = [submit(session, full, body) for body in (b"1", b"2", b"3")]
    session.facts.node_id = b"two"
    session.send_queue.renew()
    session.send_queue.credit(1 << 20)
    session.send_queue._produced(full, 0, 1)
    assert all(run.done for run in runs)
    for body in (b"4", b"5"):
        submit(session, full, body)
    assert bodies(line)[3:] == [b"4"] and full.queued == 1
    allow(session, full, 2)
    assert bodies(line)[3:] == [b"4", b"5"]


def test_what_the_node_said_before_its_answer_holds() -> None:
    session, _, full, _ = two()
    session.send_queue.renew()
    allow(session, full, 7)
    assert full.credit_until == 0
    session.send_queue._produced(full, 0, 3)
    assert full.credit_until == 7


def test_nothing_is_given_to_a_producer_that_has_left() -> None:
    session, line, full, _ = two()
    session.send_queue.close(full)
    session.send_queue.close(full)
    assert full not in session.send_queue.outboxes and full.life.ended
    with pytest.raises(InvariantError, match="has left"):
        submit(session, full)
    assert bodies(line) == []


def test_a_session_that_ends_fails_what_waits() -> None:
    session, _, full, _ = two()
    allow(session, full, 0)
    run = submit(session, full)
    session.fail(ClosedError("the end"))
    with pytest.raises(ClosedError):
        run.result()


def test_a_word_to_a_producer_that_has_left_is_for_nobody() -> None:
    session, _, full, _ = two()
    full.channel = 99
    allow(session, full, 1)
    assert full.credit_until > 1
