"""The decision which announced nodes are dialed: what is dialed now and what is announced go in, a plan comes out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from meshq.cluster._dial_plan import AnnouncedNode, DialedConnector, DialRules
from meshq.endpoint import Endpoint

OWN = "tcp://a:5000?insecure=true"


def node(name: str, *urls: str) -> AnnouncedNode:
    return AnnouncedNode(name.encode().ljust(16, b"."), name, urls)


def dialed(*urls: str, static: bool = False, needed: bool = False) -> list[DialedConnector]:
    return [DialedConnector(url, static, needed) for url in urls]


def begun(rules: DialRules, nodes: Sequence[AnnouncedNode], now: Sequence[DialedConnector] = ()) -> list[str]:
    return rules.plan(nodes, now).begin


def test_a_node_is_dialed_with_the_options_of_this_node_and_none_of_its_own() -> None:
    assert begun(DialRules(OWN), [node("b", "tcp://b:5000")]) == ["tcp://b:5000?insecure=true"]
    assert begun(DialRules("tls://a:1"), [node("b", "tls://b:1")]) == ["tls://b:1"]


def test_a_node_with_several_connectors_is_dialed_as_one() -> None:
    nodes = [node("b", "tcp://b:1", "tcp://b.example:2")]
    assert begun(DialRules(OWN), nodes) == ["(tcp://b:1,tcp://b.example:2)?insecure=true"]


@pytest.mark.parametrize(
    ("own", "announced"), [("tls://a:1", "tcp://b:1"), ("tls://a:1?x=1", "tcp://127.0.0.1:1"), (OWN, "tls://b:1")]
)
def test_no_announcement_changes_the_scheme_of_a_link(own: str, announced: str) -> None:
    plan = DialRules(own).plan([node("b", announced)], [])
    assert (plan.begin, plan.end) == ([], [])
    (refused,) = plan.refused
    assert (
        refused.text.startswith("the node 'b' (622e2e") and f"{announced} is no {own[:3]}:// connector" in refused.text
    )


def test_of_connectors_with_both_schemes_those_are_dialed_that_are_as_the_own_one() -> None:
    plan = DialRules("tls://a:1").plan([node("b", "tcp://b:1", "tls://b:2")], [])
    assert (plan.begin, plan.refused) == (["tls://b:2"], [])


def test_no_connector_leads_to_oneself_and_the_node_that_announces_it_is_named() -> None:
    plan = DialRules(OWN).plan([node("b", "tcp://a:5000"), node("c", "tcp://a:5000", "tcp://c:5000")], [])
    assert plan.begin == ["tcp://c:5000?insecure=true"]
    assert [("'b'" in one.text, "'c'" in one.text) for one in plan.refused] == [(True, False), (False, True)]
    assert all("tcp://a:5000 is this node's own connector" in one.text for one in plan.refused)


def test_with_the_default_password_nothing_beyond_this_machine_is_dialed() -> None:
    rules = DialRules("tcp://127.0.0.1:1", loopback_only=True)
    plan = rules.plan([node("b", "tcp://b:1"), node("c", "tcp://127.0.0.1:2")], [])
    assert plan.begin == ["tcp://127.0.0.1:2"]
    assert ["is beyond this machine" in one.text for one in plan.refused] == [True]


def test_a_node_that_the_settings_name_is_not_dialed_twice() -> None:
    rules = DialRules(OWN, [Endpoint.parse("tcp://b:5000?check_period=5"), Endpoint.parse("tcp://b:5001")])
    nodes = [node("b", "tcp://b:5001", "tcp://b:5000"), node("c", "tcp://b:5000", "tcp://c:5000")]
    plan = rules.plan(nodes, dialed("tcp://b:5000?check_period=5", "tcp://b:5001", static=True))
    assert plan.begin == ["(tcp://b:5000,tcp://c:5000)?insecure=true"]
    assert (plan.end, plan.refused) == ([], [])


@pytest.mark.parametrize(("static", "needed", "announced"), list(itertools.product((False, True), repeat=3)))
def test_a_connector_is_forgotten_if_no_setting_no_announcement_and_no_message_needs_it(
    static: bool, needed: bool, announced: bool
) -> None:
    url = "tcp://b:5000?insecure=true"
    nodes = [node("b", "tcp://b:5000")] if announced else []
    plan = DialRules(OWN).plan(nodes, dialed(url, static=static, needed=needed))
    assert (plan.begin, plan.end) == ([], [] if static or needed or announced else [url])


def test_a_node_that_has_moved_is_dialed_at_its_new_place_and_not_at_the_old_one() -> None:
    plan = DialRules(OWN).plan([node("b", "tcp://b:5001")], dialed("tcp://b:5000?insecure=true"))
    assert (plan.begin, plan.end) == (["tcp://b:5001?insecure=true"], ["tcp://b:5000?insecure=true"])


def test_a_plan_that_was_carried_out_leaves_nothing_to_do() -> None:
    rules = DialRules(OWN)
    nodes = [node("b", "tcp://b:1"), node("c", "tcp://c:1", "tcp://c:2"), node("d", "tcp://b:1")]
    plan = rules.plan(nodes, dialed("tcp://old:1?insecure=true"))
    again = rules.plan(nodes, dialed(*plan.begin))
    assert (len(plan.begin), again.begin, again.end) == (2, [], [])


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("tcp://b:5000?insecure=true", True),
        ("(tcp://b:1,tcp://b:2)?insecure=true", True),
        ("tcp://b:5000", False),
        ("tls://b:5000?insecure=true", False),
        ("tcp://a:5000?insecure=true", False),
        ("(tcp://b:1,tls://b:2)?insecure=true", False),
        ("inproc://b", False),
        ("nonsense", False),
    ],
)
def test_of_the_connectors_of_an_earlier_life_those_fit_that_an_announcement_could_lead_to(
    url: str, fits: bool
) -> None:
    assert DialRules(OWN).fits(url) is fits


def test_what_was_decided_for_a_node_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = DialRules(OWN)
    nodes = [node(f"n{number}", f"tcp://n{number}:1", "tls://n:1") for number in range(1_024)]
    first = rules.plan([*nodes, node("own", "tcp://a:5000")], [])

    def parse(url: str) -> Endpoint:
        raise AssertionError("an announcement that has not changed was read again")

    monkeypatch.setattr(Endpoint, "parse", parse)
    again = rules.plan([*nodes, node("own", "tcp://a:5000")], dialed(*first.begin))
    assert (len(first.begin), again.begin, again.refused) == (1_024, [], first.refused)
