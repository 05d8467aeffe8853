"""The deciders of the kit: sides of a partition, whether a cluster is still, and the text of a report."""

from __future__ import annotations

import random

import attrs
import pytest

from meshq.errors import UsageError
from meshq.testing import Cluster, ProcessCluster
from meshq.testing.kit._fault_plan import groups_of, pairs_between
from meshq.testing.kit._report import report_of
from meshq.testing.kit._settled_plan import LinkView, NodeView, QueueView, moving
from meshq.testing.processes._process_cluster import SIMULATED
from meshq.testing.processes._proxy_plan import LinkRules

NAMES = ["n0", "n1", "n2"]
PLACES = [*NAMES, "test"]
LINKED = LinkView("linked")


def node(name: str, *, state: str = "active", added: int = 0, **links: LinkView) -> NodeView:
    return NodeView(name, state, queues={"q": QueueView(added, 0, 0, added)}, links=links)


def never(a: str, b: str) -> bool:
    return False


def test_one_group_stands_against_all_other_nodes() -> None:
    assert groups_of([["n1"]], NAMES, PLACES) == [["n1"], ["n0", "n2"]]
    assert groups_of([["n1", "test"]], NAMES, PLACES) == [["n1", "test"], ["n0", "n2"]]
    assert groups_of([["n1"], ["n0"]], NAMES, PLACES) == [["n1"], ["n0"]]


def test_the_links_between_sides_are_cut_both_ways_and_none_within_a_side() -> None:
    pairs = pairs_between([["n0"], ["n1", "n2"]])
    assert pairs == [("n0", "n1"), ("n0", "n2"), ("n1", "n0"), ("n2", "n0")]


def test_an_unknown_name_in_a_group_is_told_the_places() -> None:
    with pytest.raises(UsageError, match="no node is named 'x'; the nodes: n0, n1, n2, test"):
        groups_of([["x"]], NAMES, PLACES)


def test_a_cluster_is_still_when_nothing_changes_and_every_link_is_there() -> None:
    nodes = [node("n0", n1=LINKED), node("n1", n0=LINKED)]
    assert moving(nodes, nodes, never) == []


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (node("n0", state="starting"), "n0 is starting"),
        (node("n0", added=1, n1=LINKED), "n0: messages of q come or go (1 ready, 0 unacked)"),
        (node("n0", n1=LinkView("away")), "n0 is not linked to n1 (away)"),
        (node("n0"), "n0 is not linked to n1 (unknown)"),
        (node("n0", n1=LinkView("linked", waiting=3, blocked=1)), "n0 has 2 messages for n1"),
    ],
)
def test_what_moves_is_said_with_its_node(now: NodeView, line: str) -> None:
    other = node("n1", n0=LINKED)
    assert moving([node("n0", n1=LINKED), other], [now, other], never) == [line]


def test_what_can_not_move_is_still() -> None:
    dead, paused = NodeView("n1", "dead"), node("n2", state="paused", added=1)
    alone = node("n0", n1=LinkView("away", waiting=5), n2=LinkView("linked", waiting=2))
    assert moving([alone, dead, node("n2", state="paused")], [alone, dead, paused], never) == []
    apart = [node("n0", n1=LinkView("away", waiting=5)), node("n1", n0=LinkView("away"))]
    assert moving(apart, apart, lambda a, b: True) == []
    full = [node("n0", n1=LinkView("linked", waiting=2, blocked=2)), node("n1", n0=LINKED)]
    assert moving(full, full, never) == []


def test_a_takeover_moves_unless_who_has_the_store_stands_still_or_was_stopped() -> None:
    def pair(first: NodeView, second: str) -> list[str]:
        nodes = [attrs.evolve(first, store="n0"), NodeView("n0b", second, "n0")]
        return moving(nodes, nodes, never)

    assert pair(NodeView("n0", "dead"), "waiting") == ["n0b has not taken over yet"]
    assert pair(NodeView("n0", "waiting"), "waiting") == ["n0 has not taken over yet", "n0b has not taken over yet"]
    for still in ("active", "paused"):
        assert pair(NodeView("n0", still), "waiting") == []
    assert pair(NodeView("n0", "dead", stopped=True), "waiting") == []
    assert pair(NodeView("n0", "dead"), "dead") == []
    # A primary does not mind that its backup was stopped.
    assert moving([], [NodeView("n0", "waiting", "n0"), NodeView("n0b", "dead", "n0", stopped=True)], never) == [
        "n0 has not taken over yet"
    ]


def test_a_report_shows_what_waits_for_another_node_and_which_links_are_cut() -> None:
    nodes = [node("n0", added=2, n1=LinkView("away", waiting=5)), NodeView("n1", "dead")]
    assert report_of(nodes, [("n0", "n1")]) == [
        "node  state     queues",
        "n0    active    q: 2 ready, 0 unacked",
        "                5 messages for n1 (away)",
        "n1    dead      -",
        "cut: n0 -> n1",
    ]


def test_a_direction_of_a_proxy_is_cut_slow_or_loses_what_is_sent_and_the_other_one_is_not() -> None:
    rules, there, back = LinkRules(random.Random(7).random), ("n0", "n1"), ("n1", "n0")
    assert rules.lateness(there) == 0 and not rules.cuts()
    rules.cut(*there)
    rules.delay(*there, 1.0, 3.0)
    assert rules.is_cut(there) and not rules.is_cut(back) and rules.cuts() == [there]
    times = [rules.lateness(there) for _ in range(100)]
    assert 1.0 <= min(times) < 1.2 and 2.8 < max(times) <= 3.0
    assert rules.lateness(back) == 0
    # What is lost once is 0.2 s late, what is lost twice 0.2 s and 0.4 s.
    rules.drop(*back, 0.5)
    late = [round(rules.lateness(back), 6) for _ in range(1000)]
    assert [400 < late.count(0) < 600, 200 < late.count(0.2) < 300, 90 < late.count(0.6) < 160] == [True] * 3
    rules.restore()
    assert rules.lateness(there) == rules.lateness(back) == 0 and not rules.cuts()


@pytest.mark.parametrize("name", SIMULATED)
def test_what_only_a_simulated_cluster_has_is_named_with_what_there_is(name: str) -> None:
    cluster = ProcessCluster.__new__(ProcessCluster)  # no process
    with pytest.raises(UsageError, match=rf"real processes has no '{name}', .* it has: alive, client, cut,"):
        getattr(cluster, name)
    assert not hasattr(cluster, name)
    with pytest.raises(AttributeError, match="no attribute 'kil'"):
        cluster.kil  # type: ignore[attr-defined]  # noqa: B018


def test_a_cluster_of_processes_names_all_that_it_lacks() -> None:
    internal = {"node", "report_lines", "until_healed"}
    lacking = {name for name in dir(Cluster) if name[0] != "_"} - set(dir(ProcessCluster)) - internal
    assert lacking <= set(SIMULATED)
