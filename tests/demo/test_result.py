"""The result: both sides of every number, and what differs."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from meshq.demo._result_format import NodeCount, Result, Steps, as_json, as_table, conclude
from meshq.demo._steps._step_result_format import KillResult, LeaveResult, MoveResult
from tests.demo.kit import Story

KILLS = (
    KillResult(
        when="while the producer sends",
        node=1,
        delivered_unacknowledged=1_800,
        ready=5_400,
        waiting=0,
        sent_unconfirmed=3_872,
        seconds_down=0.71234,
    ),
    KillResult(
        when="after the producer has finished",
        node=1,
        delivered_unacknowledged=2_100,
        ready=16_000,
        waiting=0,
        sent_unconfirmed=0,
        seconds_down=0.4,
    ),
)


def good() -> Result:
    """A run in which all went well."""
    story = Story(1_000)
    story.acknowledged("consumer 1", *range(1_000))
    return conclude(
        story.tally,
        confirmed=1_000,
        steps=Steps(list(KILLS)),
        left=[0],
        phases={"start": 1.25, "the rest": 2.5},
    )


def clustered(left: int = 0) -> Result:
    """Three nodes, of which the second was killed; one flight came to it again, one came to the third as well."""
    story = Story(9, consumer_1="node-1", consumer_2="node-2", consumer_3="node-3")
    story.acknowledged("consumer 1", 0, 3, 6)
    story.settled("consumer 2", story.delivered("consumer 2", 1, 4, 7), True, True, False)
    story.acknowledged("consumer 2", 7, marked=True)
    story.acknowledged("consumer 3", 2, 5, 8)
    if left:
        story.acknowledged("consumer 3", 4, marked=True)
    kills = [attrs.evolve(KILLS[0], when="while node 1 forwards to it", node=2, ready=0, waiting=700)]
    return conclude(story.tally, confirmed=9, steps=Steps(kills), left=[left, 0, 0], phases={"all": 1.0})


def bad() -> Result:
    """A run in which a flight was lost and another came twice."""
    story = Story(1_000)
    story.acknowledged("consumer 1", *range(999))
    story.acknowledged("consumer 1", 5)
    return story.result(left=1)


def test_the_table_has_both_sides_of_each_carrier_and_of_all() -> None:
    lines = as_table(good()).splitlines()
    assert " ".join(lines[0].split()) == (
        "carrier flights in the file with delay in the file sum of dep_delay in the file"
    )
    assert [line.split()[0] for line in lines[2:5]] == ["AA", "B6", "UA"]
    assert lines[2].split() == ["AA", "333", "333", "300", "300", "-6", "-6"]
    assert lines[6].split()[:5] == ["all", "1,000", "1,000", "900", "900"]
    assert len({len(line) for line in lines[:7]}) == 1


def test_the_table_says_what_each_kill_caught() -> None:
    text = as_table(good())
    assert (
        "SIGKILL 1, while the producer sends: caught 1,800 delivered and not acknowledged, 5,400 ready, "
        "3,872 sent and not confirmed; back after 0.7 s\n"
        "SIGKILL 2, after the producer has finished: caught 2,100 delivered and not acknowledged, 16,000 ready; "
        "back after 0.4 s\n"
    ) in text
    assert text.endswith("All 1,000 flights in 3.8 s: nothing lost, no duplicate, numbers equal.")


def test_the_table_names_what_differs() -> None:
    text = as_table(bad())
    assert "The broker was not killed." in text
    assert text.partition("This differs:\n")[2].splitlines() == [
        "  lost: 1, first of them 2013-1-8 XX 999 EWR",
        "  duplicate: 1, first of them 2013-1-6 XX 5 EWR",
        "  still in the queue at the end: 1",
        "  UA: 333 flights delivered, 334 in the file",
    ]


def test_no_more_than_three_flights_are_named() -> None:
    result = Story(5).result()
    assert result.differences[0] == ("lost: 5, first of them 2013-1-1 XX 0 EWR, 2013-1-2 XX 1 EWR, 2013-1-3 XX 2 EWR")
    assert as_table(result).count("EWR") == 3


def test_programs_read_the_same_as_json() -> None:
    values = json.loads(as_json(good()))
    assert values["ok"] is True
    assert values["differences"] == []
    assert values["seconds"] == 3.75
    assert values["phases"] == {"start": 1.25, "the rest": 2.5}
    assert values["kills"][0]["delivered_unacknowledged"] == 1_800
    assert values["kills"][0]["seconds_down"] == 0.712
    assert values["carriers"]["AA"] == {
        "delivered": {"flights": 333, "delays": 300, "delay_sum": -6},
        "in_the_file": {"flights": 333, "delays": 300, "delay_sum": -6},
    }
    assert [values[name] for name in ("rows", "confirmed", "delivered", "lost", "redelivered", "duplicates")] == [
        *(1_000, 1_000, 1_000, 0, 0, 0)
    ]
    values = json.loads(as_json(bad()))
    assert values["ok"] is False
    assert len(values["differences"]) == 4


def test_each_node_of_a_cluster_has_its_own_count() -> None:
    result = clustered(left=2)
    assert result.nodes == [
        NodeCount(node=1, delivered=3, redelivered=0, duplicates=0, left=2),
        NodeCount(node=2, delivered=3, redelivered=1, duplicates=0, left=0),
        NodeCount(node=3, delivered=3, redelivered=0, duplicates=1, left=0),
    ]
    assert result.differences == ["duplicate: 1, first of them 2013-1-5 XX 4 EWR", "still in the queue at the end: 2"]
    text = as_table(result)
    assert (
        "node 1          3 flights, 0 redelivered, 0 duplicates, 2 left\n"
        "node 2          3 flights, 1 redelivered, 0 duplicates\n"
        "node 3          3 flights, 0 redelivered, 1 duplicates\n"
    ) in text
    nodes = json.loads(as_json(result))["nodes"]
    assert nodes[1] == {"node": 2, "delivered": 3, "redelivered": 1, "duplicates": 0, "left": 0}


def test_a_kill_in_a_cluster_says_which_node_and_what_waited_for_it() -> None:
    assert (
        "SIGKILL 1 of node 2, while node 1 forwards to it: caught 1,800 delivered and not acknowledged, "
        "700 waiting for it, 3,872 sent and not confirmed; back after 0.7 s\n"
    ) in as_table(clustered())
    kill = json.loads(as_json(clustered()))["kills"][0]
    assert (kill["node"], kill["waiting"]) == (2, 700)


def test_a_cluster_in_which_nobody_was_killed_says_so() -> None:
    result = attrs.evolve(clustered(), kills=())
    assert "No node was killed." in as_table(result)


def test_a_single_broker_has_no_lines_for_nodes() -> None:
    assert "\nnode 1" not in as_table(good())
    assert [count.delivered for count in good().nodes] == [1_000]


MOVE = MoveResult(node=2, to_node=3, consumers=1, stranded=700, redistributed=900, seconds=0.25)
LEAVE = LeaveResult(
    node=3,
    target=1,
    delivered=1_200,
    ready=600,
    held=1_800,
    moved=768,
    large=2,
    prepared=1,
    prepared_flights=500,
    decided=True,
    went_on_at=(1,),
    left=0,
    seconds=1.25,
)


def moving(*, kill: KillResult = KILLS[0], move: MoveResult = MOVE, leave: LeaveResult = LEAVE) -> Result:
    """A run in which consumers moved and a node left."""
    story = Story(3)
    story.acknowledged("consumer 1", 0, 1, 2)
    return conclude(story.tally, confirmed=3, steps=Steps([kill], [move], leave), left=[0, 0, 0], phases={"all": 1.0})


def test_each_step_is_a_line_with_its_numbers() -> None:
    kill = attrs.evolve(KILLS[0], places=("tcp://h:1", "tcp://h:2"))
    result = moving(kill=kill, move=attrs.evolve(MOVE, consumers=2))
    assert result.differences == []
    text = as_table(result)
    assert "back after 0.7 s at another place, tcp://h:2\n" in text
    assert "MOVE 1, 2 consumers of node 2 to node 3: 700 stranded, 900 redistributed in 0.2 s\n" in text
    assert (
        "DRAIN of node 3: 1,800 messages, 1,200 of them delivered and not acknowledged, 2 large, 768 to node 1; "
        "1 prepared transaction of 500 flights, committed there; consumers went on at node 1; 1.2 s\n"
    ) in text
    values = json.loads(as_json(result))
    assert values["moves"][0]["redistributed"] == 900
    assert (values["leave"]["large"], values["leave"]["went_on_at"], values["leave"]["seconds"]) == (2, [1], 1.25)
    assert json.loads(as_json(good()))["leave"] is None


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"kill": {"places": ("tcp://h:1", "tcp://h:1")}}, "node 1 came back at the same place, tcp://h:1"),
        ({"move": {"redistributed": 0}}, "of 700 messages stranded on node 2 0 were redistributed"),
        ({"move": {"redistributed": 699}}, "of 700 messages stranded on node 2 699 were redistributed"),
        ({"move": {"stranded": 0}}, "of 0 messages stranded on node 2 900 were redistributed"),
        ({"leave": {"ready": 0}}, "node 3 left without a backlog"),
        ({"leave": {"held": 1_799}}, "node 3 left without a backlog"),
        ({"leave": {"moved": 0}}, "nothing of node 3 went to node 1"),
        ({"leave": {"large": 0}}, "node 3 left without a large message"),
        ({"leave": {"prepared": 0}}, "node 3 left without a prepared transaction"),
        ({"leave": {"decided": False}}, "the prepared transaction was not found at node 1"),
        ({"leave": {"left": 2}}, "node 3 left with 2 messages that no other node has"),
        ({"leave": {"went_on_at": ()}}, "no consumer of node 3 went on at another node"),
    ],
)
def test_a_step_that_did_not_show_what_it_is_there_for_is_a_difference(
    changed: dict[str, dict[str, Any]], difference: str
) -> None:
    whole: dict[str, Any] = {"kill": KILLS[0], "move": MOVE, "leave": LEAVE}
    result = moving(**{name: attrs.evolve(whole[name], **values) for name, values in changed.items()})
    assert result.differences == [difference]
    assert f"This differs:\n  {difference}" in as_table(result)
