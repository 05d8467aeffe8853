"""The simulated mesh with a node that drains: a run of its own, and bugs planted in the transfer that it catches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from meshq.abc import TransferInventory
from meshq.broker import Core, inventory
from meshq.broker.ingress._transfer_places import TransferPlaces
from meshq.broker.session._session_calls import SessionCalls
from meshq.broker.transactions import ServerPreparedTransaction
from meshq.broker.transactions._two_phase import TwoPhaseCommit
from meshq.broker.work._closing import Closing
from meshq.cluster.gate._handover_gate_machine import HandoverGate
from meshq.wire import encode_id_list
from qa.mesh.departure import DRAINED
from qa.mesh.undecided import HELD
from tests.qa.planted import brief_seed, first_report

SEED = 3

movable, place, answering = TransferPlaces.movable, TransferPlaces.place, SessionCalls.answering


def caught(what: str, *, whole_runs: bool = False) -> None:
    """See that the checker of drains says so."""
    first_report("drain", "Q14", what=what, whole_runs=whole_runs)


@pytest.mark.slow
def test_a_mesh_with_a_node_that_drains_keeps_every_promise_in_a_run_of_its_own() -> None:
    report = brief_seed(SEED, "drain")
    assert report.passed, report.line
    assert report.counters["seen.drained"] >= sum(DRAINED.values())
    assert report.line.endswith(" -- python -m qa.simulate --seed 3 --drain")


@pytest.mark.slow
def test_a_record_that_hands_messages_over_and_does_not_remove_them_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransferPlaces, "place", lambda self, moved, queue, to, gone: place(self, moved, queue, to, ()))
    caught("messages doubled at")


@pytest.mark.slow
def test_messages_that_are_handed_over_out_of_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_other_first(self: TransferPlaces, *about: Any) -> Sequence[int] | None:
        found = movable(self, *about)
        return found and (found[1::2] or found)

    monkeypatch.setattr(TransferPlaces, "movable", every_other_first)
    report = first_report("drain", "Q7", to_the_end=True)
    assert "Q14" in report.caught_by


@pytest.mark.slow
def test_an_inventory_that_leaves_a_queue_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(core: Core) -> TransferInventory:
        found = inventory(core)
        return attrs.evolve(
            found, messages={name: left for name, left in found.messages.items() if name in (*DRAINED, HELD)}
        )

    monkeypatch.setattr("meshq.node._transfer.inventory", shortened)
    caught("in no inventory")


@pytest.mark.slow
def test_a_node_that_takes_messages_in_after_its_close_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "take_nothing_in", lambda self, why: None)
    caught("messages taken in after its close")


@pytest.mark.slow
def test_a_closed_node_that_does_not_tell_others_how_far_their_messages_are_stored_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(self: SessionCalls, frame: Any, work: Callable[[], Any], *, takes_in: bool = True) -> None:
        answering(self, frame, work)

    monkeypatch.setattr(SessionCalls, "answering", closed)
    caught("nodes that do not see it again", whole_runs=True)


@pytest.mark.slow
def test_a_client_that_is_let_in_before_everything_is_there_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HandoverGate, "missing", lambda self, *about: "")
    caught("let in before everything was there")


@pytest.mark.slow
def test_a_count_that_is_left_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.broker.settlement._message_mover.former_counts", lambda queue, span: None)
    caught("count was left behind")


@pytest.mark.slow
def test_an_id_that_is_left_behind_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_first(ids: Sequence[bytes], newer: int) -> bytes:
        return encode_id_list(ids[1:] or ids, newer)

    monkeypatch.setattr("meshq.broker.management._id_transfer.encode_id_list", without_the_first)
    caught("that were left behind")


@pytest.mark.slow
def test_what_a_transaction_holds_and_other_consumers_get_at_the_target_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its messages are ready as soon as they come.
    monkeypatch.setattr("meshq.broker.ingress._held_rows.mark_unacked", list)
    caught("messages of drained.held lost, doubled or out of order")


@pytest.mark.slow
def test_queues_without_messages_that_are_left_behind_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.node._transfer.lacking_queues", lambda core, forward: [])
    monkeypatch.setattr("meshq.broker.management._queue_transfer.lacking_queues", lambda core, forward: [])
    caught("queues without messages that are not at the target")


@pytest.mark.slow
def test_a_transaction_that_can_be_decided_at_both_nodes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # The node that leaves lists it still, and is never empty.
    def leave(self: TwoPhaseCommit, prepared: ServerPreparedTransaction, forward: int) -> None:
        prepared.forward = 0

    monkeypatch.setattr(TwoPhaseCommit, "leave", leave)
    caught("drains without an end")
