"""The simulated mesh through a minute of faults: a seed is one run, and its history is accounted for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from meshq.testing.history._history import History, body_of
from qa.checkers.end import violations_of
from qa.mesh.accounts import recount_mesh
from qa.seeds import STAGES
from qa.simulate import failed_seeds_of, main, recorded
from tests.qa.planted import brief, brief_seed

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_seed_of_the_mesh_is_always_the_same_run_and_not_that_of_a_single_broker() -> None:
    here = brief_seed(3, "mesh")
    assert here.trace == brief_seed(3, "mesh").trace
    assert here.trace != brief_seed(3, "broker").trace


@pytest.mark.slow
def test_a_failing_seed_prints_the_one_line_that_runs_it_again_on_the_mesh(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Nothing can be confirmed so soon.
    monkeypatch.setattr("qa.simulation.accounts.HEALING_S", 0.0)
    seeds = tmp_path / "seeds.txt"
    with brief("mesh"):
        assert main(["--mesh", "--seeds", "1", "--first", "5", "--jobs", "1", "--hunt", "--record", str(seeds)]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("seed 5 Q14: Q14: no barrier send was confirmed after healing at ")
    assert line.endswith(" -- python -m qa.simulate --seed 5 --mesh")
    assert recorded(seeds) == [5]
    assert len({failed_seeds_of(stage) for stage in STAGES}) == len(STAGES)


# -- the history of a mesh -----------------------------------------------------------------------------------------


def history_of_a_mesh() -> History:
    """Message 1 was sent to a, forwarded, and acknowledged at b; 2 still stands there."""
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    for uid in (1, 2):
        history.send_ok(history.sent("s", "q", uid, duplicate_id=f"d{uid}", node="a"))
    number = history.delivered("r", "r", "q", body_of(1), sequence=1, node="b")
    history.settle_ok(history.settling([number]))
    history.final.recounted("q@a", [])
    history.final.recounted("q@b", [(2, 2)])
    return history


def found(history: History) -> set[str]:
    return {violation.checker for violation in violations_of(history)}


def test_a_message_may_stand_in_any_place_of_its_queue_but_in_one_only() -> None:
    assert found(history_of_a_mesh()) == set()
    lost = history_of_a_mesh()
    lost.final.recounted("q@b", [])
    assert found(lost) == {"Q1"}
    doubled = history_of_a_mesh()
    doubled.final.recounted("q@c", [(2, 7)])
    assert found(doubled) == {"Q4", "Q5"}
    on_its_way = history_of_a_mesh()
    on_its_way.final.recounted("q@b", [])
    on_its_way.final.recounted("q@a>b", [(2, 2)])
    assert found(on_its_way) == set()


def test_numbers_are_those_of_a_place() -> None:
    history = history_of_a_mesh()
    history.send_ok(history.sent("t", "q", 3, node="c"))
    history.final.recounted("q@c", [(3, 1)])
    assert found(history) == set()
    history.send_ok(history.sent("u", "q", 4, node="c"))
    history.final.recounted("q@b", [(2, 2), (4, 2)])
    assert found(history) == {"Q7"}


def test_order_is_promised_to_those_that_sent_to_the_same_node() -> None:
    for node, broken in (("a", {"Q7"}), ("c", set[str]())):
        history = history_of_a_mesh()
        history.send_ok(history.sent("t", "q", 3, node=node))
        history.final.recounted("q@b", [(3, 2), (2, 3)])
        assert found(history) == broken


def test_each_node_has_to_confirm_a_send_after_healing() -> None:
    history = history_of_a_mesh()
    history.healed()
    history.send_ok(history.sent("barrier@a", "kept", 8, barrier=True, node="a"))
    assert found(history) == set()
    history.send_failed(history.sent("barrier@b", "kept", 9, barrier=True, node="b"), "unknown")
    assert found(history) == {"Q14"}


def test_what_a_peer_has_stored_and_its_sender_still_holds_counts_once() -> None:
    ids = {"a": b"a" * 16, "b": b"b" * 16}
    stores = {"a": b"A" * 16, "b": b"B" * 16}
    link = hashlib.sha256(stores["a"] + (9).to_bytes(8, "big")).digest()[:16]

    def state(name: str, **parts: object) -> dict[str, object]:
        empty = {"queues": {}, "forwarding": {}, "decided": [], "numbers": {"q": 5}, "links": {}}
        return {"store": stores[name].hex(), **empty, **parts}

    rows = [(1, 1, (5,)), (2, 2, (5,)), (3, 3, (5,))]
    states = {
        "a": state("a", forwarding={f"$meshq.cluster.mesh.{ids['b'].hex()}": (9, rows)}),
        "b": state("b", queues={"q": ([(1, 4), (2, 5)], 5)}, links={link.hex(): 2}),
    }
    history = History(lambda: 0.0)
    recount_mesh(history, states, {value.hex(): name for name, value in ids.items()})
    assert history.final.remaining == {"q@b": [(1, 4), (2, 5)], "q@a>b": [(3, 3)]}


def test_what_stands_in_a_stage_counts_once_its_batch_is_committed() -> None:
    state = {"store": "", "queues": {"$meshq.stage.1": ([(1, 1), (2, 2)], 2)}, "forwarding": {}, "decided": [("q", 2)]}
    history = History(lambda: 0.0)
    recount_mesh(history, {"a": state}, {})
    assert history.final.remaining == {"q@a": [(2, 0)]}
