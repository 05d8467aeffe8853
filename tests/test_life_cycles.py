"""Life cycles are tables: what the tables lack is illegal, and the page is drawn from them."""

from __future__ import annotations

import ast

import pytest
from tools import draw_life_cycles

from meshq.client.outgoing._run_life import RUN_TRANSITIONS
from meshq.errors import InvariantError
from meshq.lifecycle import LifeCycle
from tests.tidy.sources import python_files

#: What may change its state again and again.
WITHOUT_END = {"Consumers of a queue", "Channel of a cluster link", "Bridge", "NetworkLink"} | {
    "Peer of a cluster connection"
}
#: Files that name a state themselves: a run is made and sent so often that it has no engine of its own, and
#: ``test_a_run_that_is_sent_is_in_the_state_of_its_table`` sees to it that the table says the same.
OWN_STATE = {"src/meshq/client/outgoing/_outbox.py", "src/meshq/client/outgoing/_send_queue.py"}
TABLE = {"new": {"open": "open"}, "open": {"read": "open", "close": "closed"}, "closed": {}}


def test_an_event_leads_to_the_state_of_the_table_and_an_illegal_one_changes_nothing() -> None:
    life = LifeCycle("the file 'x'", TABLE)
    assert (life.state, life.ended) == ("new", False)
    with pytest.raises(InvariantError) as caught:
        life.on("close")
    assert str(caught.value) == "the file 'x': the event 'close' is illegal in state 'new'; legal: open"
    assert life.on("open") == life.on("read") == life.state == "open"
    assert not life.ended
    assert life.on("close") == "closed"
    assert life.ended
    with pytest.raises(InvariantError, match="legal: none"):
        life.on("open")
    assert repr(life) == "<LifeCycle of the file 'x': closed>"


@pytest.mark.parametrize("name", draw_life_cycles.TABLES)
def test_every_state_of_a_table_is_a_row_and_can_be_reached_from_the_first(name: str) -> None:
    _, transitions = draw_life_cycles.TABLES[name]
    reached = [next(iter(transitions))]
    for state in reached:
        reached += [one for one in dict.fromkeys(transitions[state].values()) if one not in reached]
    assert sorted(reached) == sorted(transitions)
    ends = [state for state, legal in transitions.items() if set(legal.values()) <= {state}]
    assert bool(ends) != (name in WITHOUT_END)


@pytest.mark.rules
def test_every_table_is_drawn() -> None:
    tables = {
        source.path.removeprefix("src/meshq/")
        for source in python_files("src")
        if source.name != "lifecycle.py" and ": Final[Transitions] = " in source.text
    }
    assert tables == {file for file, _ in draw_life_cycles.TABLES.values()}
    assert draw_life_cycles.PAGE.read_text(encoding="utf-8") == draw_life_cycles.page()


@pytest.mark.rules
def test_only_the_engine_assigns_the_state_of_a_life_cycle() -> None:
    assigned = [
        f"{source.path}:{node.lineno}"
        for source in python_files("src")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if node.attr == "state" and ast.unparse(node.value).endswith("life")
    ]
    assert assigned == []


def test_a_run_that_is_sent_is_in_the_state_of_its_table() -> None:
    after = {RUN_TRANSITIONS[state]["send"] for state in ("held", "queued", "queued again")}
    assert after == {"sent"}
    assert next(iter(RUN_TRANSITIONS)) == "held"


@pytest.mark.rules
def test_no_word_is_assigned_to_a_state_past_its_table() -> None:
    assigned = set()
    for source in python_files("src"):
        for node in ast.walk(source.tree):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            states = [
                target
                for whole in targets
                for target in ast.walk(whole)
                if isinstance(target, ast.Attribute) and target.attr.lstrip("_") == "state"
            ]
            words = [one for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if states and words:
                assigned.add(source.path)
    assert assigned == OWN_STATE
