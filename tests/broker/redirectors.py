"""Balancers for tests of what a broker does with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq.abc import AdmissionDecision, BalancerTarget, HandshakeFacts, Redirector


class ToNowhere(Redirector):
    """A balancer without a target."""

    def route(self, facts: HandshakeFacts, answer: Callable[[AdmissionDecision], None]) -> Callable[[], None]:
        raise AssertionError(f"no acceptor has this balancer, and {facts} came")

    def find_target(self, key: str, answer: Callable[[BalancerTarget | None], None]) -> None:
        answer(None)

    def explain(self, key: str) -> dict[str, Any]:
        return {"key": key, "steps": []}

    def set_filter(self, setting: str, text: str | None) -> None:
        """Have no filter to set."""

    def describe(self) -> dict[str, Any]:
        return {"name": "lb"}

    def describe_targets(self) -> list[dict[str, Any]]:
        return []
