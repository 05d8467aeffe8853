"""The conformance suite for ``abc.Admission``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from meshq.abc import Accept, Admission, HandshakeFacts, Redirect, Refuse
from meshq.endpoint import Endpoint
from meshq.errors import RemoteProtocolError, SettingsError
from meshq.limits import SESSIONS_MAX
from meshq.testing.conformance._assertions import expect, expect_equal
from meshq.wire import BY_NAME

#: How often each question is asked again: an answer by chance is the same each time with a chance below one in a
#: million.
_REPEATS: Final = 3
#: The facts of connections of all kinds: clients and peers, with a login and without, known and unknown.
_FACTS: Final = tuple(
    HandshakeFacts(
        role=role,
        user=user,
        label=label,
        address=address,
        server_name=server_name,
        resumes=resumes,
        sessions=sessions,
        user_sessions=sessions if role == "client" else 0,
    )
    for role, user, label, (address, server_name), resumes, sessions in itertools.product(
        ("client", "peer"),
        ("", "app"),
        ("", "till-7", "ä" * 100),
        (("192.0.2.7", ""), ("192.0.2.7", "node.example"), ("2001:db8::7", ""), ("", "")),
        (False, True),
        (0, 1, SESSIONS_MAX),
    )
)


def check_admission(make_admission: Callable[[], Admission]) -> None:
    """Check that a rule for connections keeps the contract of ``meshq.abc.Admission``.

    ``make_admission`` is called once for each check of ``ADMISSION_CHECKS``; its rule decides by the facts and by a
    state that does not change during the check.

    Raises:
        NonconformanceError: the rule breaks a promise.
    """
    for check in ADMISSION_CHECKS:
        check(make_admission())


def _every_connection_gets_a_decision(admission: Admission) -> None:
    for facts in _FACTS:
        decision: object = admission.decide(facts)
        expect(
            isinstance(decision, Accept | Redirect | Refuse), "a decision is Accept, Redirect or Refuse, without a wait"
        )


def _a_redirect_names_one_node(admission: Admission) -> None:
    for facts in _FACTS:
        decision = admission.decide(facts)
        if isinstance(decision, Redirect):
            expect(_is_endpoint(decision.url), "a redirect names the URL of one node")


def _is_endpoint(url: str) -> bool:
    try:
        Endpoint.parse(url)
    except SettingsError:
        return False
    return True


def _a_refusal_is_one_of_the_protocol(admission: Admission) -> None:
    for facts in _FACTS:
        decision = admission.decide(facts)
        if isinstance(decision, Refuse):
            known = BY_NAME.get(decision.refusal)
            expect(known is not None, "a refusal has a name of the protocol")
            if known is not None:
                broken = issubclass(known.error, RemoteProtocolError)
                expect(not broken, "a refusal does not say that the connection broke the protocol")
            expect(type(decision.text) is str and decision.text, "a refusal says why")


def _the_same_facts_have_the_same_answer(admission: Admission) -> None:
    first = [admission.decide(facts) for facts in _FACTS]
    for _ in range(_REPEATS):
        for facts, decision in zip(reversed(_FACTS), reversed(first), strict=True):
            expect_equal(admission.decide(facts), decision, "a decision changes nothing, and has no chance")


#: Every check of the suite, each of which examines a rule of its own.
ADMISSION_CHECKS: Final[tuple[Callable[[Admission], None], ...]] = (
    _every_connection_gets_a_decision,
    _a_redirect_names_one_node,
    _a_refusal_is_one_of_the_protocol,
    _the_same_facts_have_the_same_answer,
)
