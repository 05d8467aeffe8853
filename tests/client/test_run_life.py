"""The life of an outgoing run: its table fits what the send queue and the outbox do."""

from __future__ import annotations

from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.outgoing._run_life import RUN_TRANSITIONS, UNSENT
from meshq.wire import encode_run


def run_in(state: str) -> OutgoingRun:
    run = OutgoingRun(encode_run([b"x"]), False, 0)
    run.state = state
    return run


def test_a_run_that_waits_and_was_not_given_up_is_sent() -> None:
    # The send queue assigns this state without the table: it is the way of every message.
    assert {state: events["send"] for state, events in RUN_TRANSITIONS.items() if "send" in events} == {
        "held": "sent",
        "queued": "sent",
        "queued again": "sent",
    }


def test_each_state_is_one_of_waiting_sent_or_given_up() -> None:
    def kind(state: str) -> tuple[bool, bool, bool]:
        run = run_in(state)
        return run.unsent, run.queued, run.given_up

    assert {state: kind(state) for state in RUN_TRANSITIONS} == {
        "held": (True, False, False),
        "queued": (True, True, False),
        "sent": (False, False, False),
        "refused": (False, False, False),
        "queued again": (False, True, False),
        "given up": (True, False, True),
    }


def test_a_run_that_was_sent_is_never_given_up() -> None:
    for state in RUN_TRANSITIONS:
        run = run_in(state)
        run.on("give up")
        assert run.given_up == (state in UNSENT)


def test_a_given_up_run_stays_so_over_a_lost_session() -> None:
    run = run_in("given up")
    for event in ("hold", "queue", "queue", "hold"):
        run.on(event)
        assert run.given_up
