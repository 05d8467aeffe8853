"""Message groups in the simulated mesh: a bug planted in their pins that it catches."""

from __future__ import annotations

import pytest

from meshq.broker.catalog._pins_machine import PinsMachine
from tests.qa.planted import first_report


@pytest.mark.slow
def test_a_node_that_dispatches_a_group_without_its_pin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for question in ("may_offer", "claim"):
        monkeypatch.setattr(PinsMachine, question, lambda self, address, queue, group: True)
    first_report("mesh", "Q14", what="group")
