"""The suite for rules of connections: the rules of a node pass, and rules that break a promise are found."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from meshq.abc import Accept, Admission, AdmissionDecision, HandshakeFacts, Redirect, Refuse
from meshq.broker import SessionBounds
from meshq.node._waiting_node import WaitingAdmission
from meshq.testing import ADMISSION_CHECKS, NonconformanceError, check_admission

Decide = Callable[[HandshakeFacts], AdmissionDecision]


class ByUser(Admission):
    """A rule that sends clients of one user elsewhere."""

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        return Redirect("tls://two.example:61617") if facts.user == "app" else Accept()


class Bouncer(Admission):
    """A rule that counts the sessions itself."""

    def __init__(self) -> None:
        self.seen = 0

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        self.seen += 1
        return Accept() if self.seen < 10 else Refuse("too_many_sessions", "ten are enough")


class Always(Admission):
    """A rule with the same answer for all connections."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        return self._decide(facts)


class Waiting(Admission):
    """A rule that wants to look something up first."""

    async def decide(self, facts: HandshakeFacts) -> AdmissionDecision:  # type: ignore[override]
        raise AssertionError("nothing waits for a decision")


@pytest.mark.parametrize("rule", [SessionBounds, ByUser, lambda: WaitingAdmission("n")])
def test_a_rule_without_a_fault_conforms(rule: Callable[[], Admission]) -> None:
    check_admission(rule)
    assert len(ADMISSION_CHECKS) == 4


@pytest.mark.parametrize(
    ("decide", "promise"),
    [
        (lambda _: None, "a decision is Accept, Redirect or Refuse"),
        (lambda facts: facts.role == "client", "a decision is Accept, Redirect or Refuse"),
        (lambda _: Redirect("two.example:61617"), "a redirect names the URL of one node"),
        (lambda _: Redirect("(tcp://a:1,tcp://b:2)"), "a redirect names the URL of one node"),
        (lambda _: Refuse("not_today", "closed"), "a refusal has a name of the protocol"),
        (lambda _: Refuse("bad_magic", "closed"), "does not say that the connection broke the protocol"),
        (lambda _: Refuse("not_active", ""), "a refusal says why"),
        (lambda _: random.Random().choice([Accept(), Refuse("not_active", "dice")]), "a decision changes nothing"),
    ],
)
def test_a_rule_with_a_fault_does_not_conform(decide: Decide, promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        check_admission(lambda: Always(decide))


def test_a_rule_that_counts_or_waits_does_not_conform() -> None:
    with pytest.raises(NonconformanceError, match="a decision changes nothing"):
        check_admission(Bouncer)
    with (
        pytest.warns(RuntimeWarning, match="never awaited"),
        pytest.raises(NonconformanceError, match="without a wait"),
    ):
        check_admission(Waiting)
