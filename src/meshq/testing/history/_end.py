"""Promises about the end of a run: the books balance, the system works again, recovery is a fixed point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from meshq.errors import InvariantError
from meshq.testing.history._cluster_promises import (
    q9_one_node_acts,
    q10_copies_are_equal,
    q12_one_holder,
    q13_one_fate,
    q16_nothing_is_left,
    q17_counters_are_right,
)
from meshq.testing.history._delivery import (
    Checker,
    Violation,
    q1_nothing_confirmed_is_lost,
    q2_nothing_from_nowhere,
    q3_all_or_nothing,
    q4_exactly_once,
    q5_no_more_often_than_failures_explain,
    q6_consumed_is_final,
)
from meshq.testing.history._history import History, queue_of
from meshq.testing.history._order import q7_first_in_first_out

#: What a message that was added may have become.
FATES: Final = (
    "acknowledged",
    "rejected",
    "expired",
    "dead_lettered",
    "moved",
    "redistributed",
    "purged",
    "dropped",
    "ready",
    "delivering",
    "delayed",
)
#: Simulated seconds after healing in which all has to work again.
HEALING_S: Final = 10.0


def q8_conservation(history: History) -> Iterator[Violation]:
    """Q8: the counters of a queue balance, and agree with a recount from the journal.

    added = the sum of ``FATES``; ready + delivering + delayed + scheduled = the messages found in the journal.
    A counter that is not given is 0, but for ``added``: without it there is nothing to check.
    """
    for queue, counters in history.final.statistics.items():
        added = counters.get("added")
        fates = {fate: counters.get(fate, 0) for fate in FATES}
        if added is not None and added != sum(fates.values()):
            listed = " + ".join(f"{number} {fate}" for fate, number in fates.items() if number)
            yield Violation("Q8", f"{queue}: {added} added, but {listed or 'nothing'} of them accounted for")
        if min(counters.values(), default=0) < 0:
            yield Violation("Q8", f"{queue} has a negative counter: {counters}")
        if queue in history.final.remaining:
            # What is not due is there, and has not been added yet.
            here = fates["ready"] + fates["delivering"] + fates["delayed"] + counters.get("scheduled", 0)
            found = len(history.final.remaining[queue])
            if here != found:
                yield Violation("Q8", f"{queue} counts {here} messages, its journal holds {found}")


def q14_works_again(history: History) -> Iterator[Violation]:
    """Q14: within ten simulated seconds of healing a barrier send is confirmed (the client may try several times; on
    a mesh one at each node), a queue with a willing consumer has nothing ready or delivering at the end, and nothing
    is left over that should not be.  Not judged before healing."""
    if history.healed_s is None:
        return
    barriers = [send for send in history.sends.values() if send.barrier]
    for node in dict.fromkeys(send.node for send in barriers) or ("",):
        there = [send for send in barriers if send.node == node]
        at = f" at {node}" if node else ""
        confirmed = [send.ended_s for send in there if send.outcome == "done" and send.ended_s is not None]
        if not confirmed:
            ends = ", ".join(str(send.outcome) for send in there) or "none was sent"
            yield Violation("Q14", f"no barrier send was confirmed after healing{at}: {ends}")
        elif min(confirmed) > history.healed_s + HEALING_S:
            late = f"{min(confirmed) - history.healed_s:.1f} s after healing{at}"
            yield Violation("Q14", f"the barrier send took until {late}")
    for place, counters in history.final.statistics.items():
        waiting = counters.get("ready", 0) + counters.get("delivering", 0)
        if waiting and queue_of(place) in history.expected.willing:
            yield Violation("Q14", f"{place} has a willing consumer and still {waiting} messages: {counters}")
    for what, number in history.final.leftovers.items():
        if number:
            yield Violation("Q14", f"{number} {what} left over")


def q15_recovery_is_a_fixed_point(history: History) -> Iterator[Violation]:
    """Q15: recovering again, or after a crash inside recovery, comes to the same state as recovering once."""
    first: dict[str, tuple[str, object]] = {}
    for recovery in history.final.recoveries:
        way, state = first.setdefault(recovery.subject, (recovery.way, recovery.state))
        if state != recovery.state:
            what = f"{recovery.subject} recovered to {recovery.state!r} {recovery.way}, to {state!r} {way}"
            yield Violation("Q15", what)


#: The checkers of promises that every test can look at, by their names.
CHECKERS: Final[dict[str, Checker]] = {
    "Q1": q1_nothing_confirmed_is_lost,
    "Q2": q2_nothing_from_nowhere,
    "Q3": q3_all_or_nothing,
    "Q4": q4_exactly_once,
    "Q5": q5_no_more_often_than_failures_explain,
    "Q6": q6_consumed_is_final,
    "Q7": q7_first_in_first_out,
    "Q8": q8_conservation,
    "Q14": q14_works_again,
    "Q15": q15_recovery_is_a_fixed_point,
}
#: Those of promises for which a test has to look at its nodes, or knows that nobody has given messages back by force.
NODE_CHECKERS: Final[dict[str, Checker]] = {
    "Q9": q9_one_node_acts,
    "Q10": q10_copies_are_equal,
    "Q12": q12_one_holder,
    "Q13": q13_one_fate,
    "Q16": q16_nothing_is_left,
    "Q17": q17_counters_are_right,
}


class HistoryError(InvariantError):
    """Promises were broken: ``violations`` lists how, ``checkers`` names which, sorted."""

    def __init__(self, violations: Sequence[Violation], story: str) -> None:
        shown = [str(violation) for violation in violations[:20]]
        if len(violations) > len(shown):
            shown.append(f"... and {len(violations) - len(shown)} more")
        super().__init__("\n".join([*shown, story]).rstrip())
        self.violations: tuple[Violation, ...] = tuple(violations)
        self.checkers: tuple[str, ...] = tuple(sorted({violation.checker for violation in violations}))


def found_by(checkers: Iterable[Checker], history: History) -> list[Violation]:
    """Return the violations that these checkers find, in the order of the checkers."""
    return [violation for checker in checkers for violation in checker(history)]


def judge(checkers: Iterable[Checker], history: History) -> None:
    """Raise ``HistoryError`` if a promise is broken, with the story of the first message concerned."""
    violations = found_by(checkers, history)
    if violations:
        uid = next((violation.uid for violation in violations if violation.uid is not None), None)
        raise HistoryError(violations, "" if uid is None else f"the story of message {uid}:\n{history.story(uid)}")
