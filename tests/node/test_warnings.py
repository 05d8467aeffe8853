"""Warnings: one for each cause, one a minute for what repeats, each with the stable name of its event."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, reject

from meshq import Broker, ClusterConnection
from meshq.cluster._overlaps import overlap
from meshq.errors import SettingsError
from meshq.logs import CAUSES_MAX, EVENT_RECORDS_MAX, REPEAT_S, Warnings
from meshq.testing import SimDisk
from tests.node.lives import machine


def test_what_repeats_is_told_once_a_minute_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 1_000.0
    warnings = Warnings("node", lambda: now)
    for _ in range(5):
        warnings.say("login_refused", "somebody")
    warnings.say("forbidden", "another cause")
    now += REPEAT_S - 1
    warnings.say("login_refused", "somebody")
    now += 1
    warnings.say("login_refused", "somebody")
    now += REPEAT_S
    warnings.say("login_refused", "somebody")
    assert [(record.event, record.getMessage()) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("login_refused", "somebody"),
        ("forbidden", "another cause"),
        ("login_refused", "somebody (and 5 times more since the last warning)"),
        ("login_refused", "somebody"),
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_each_cause_of_an_event_is_told_by_itself_and_only_so_many_are_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = Warnings("node", lambda: 1_000.0)
    for _ in range(3):
        for cause in ("a", "b"):
            warnings.say("duplicate_node", f"node {cause}", cause)
    assert [record.getMessage() for record in caplog.records] == ["node a", "node b"]
    for number in range(CAUSES_MAX):
        warnings.say(f"event {number % 50}", "another one", str(number))
    caplog.clear()
    warnings.say("duplicate_node", "node a", "a")
    warnings.say(f"event {(CAUSES_MAX - 1) % 50}", "the last one", str(CAUSES_MAX - 1))
    assert [record.getMessage() for record in caplog.records] == ["node a"]


def test_an_event_with_ever_new_causes_is_told_so_often_a_minute_and_its_other_causes_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1_000.0
    warnings = Warnings("discovery", lambda: now)
    assert not warnings.only_counts("announced_node_not_dialed", "next")
    for number in range(100_000):
        warnings.say("announced_node_not_dialed", f"node {number}", str(number))
    assert warnings.only_counts("announced_node_not_dialed", "next")
    assert [record.getMessage() for record in caplog.records] == [f"node {number}" for number in range(50)]
    caplog.clear()
    # Another event has a count of its own.
    warnings.say("cannot_listen", "no such directory")
    now += REPEAT_S
    assert not warnings.only_counts("announced_node_not_dialed", "next")
    warnings.say("announced_node_not_dialed", "the next one", "next")
    assert warnings.only_counts("announced_node_not_dialed", "next")
    warnings.say("announced_node_not_dialed", "the last one", "last")
    assert [record.getMessage() for record in caplog.records] == [
        "no such directory",
        f"the next one (and {100_000 - EVENT_RECORDS_MAX} times more for causes that were not named)",
        "the last one",
    ]


def events_of(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """How often which event was warned of."""
    return Counter(getattr(record, "event", "") for record in caplog.records if record.levelno >= logging.WARNING)


def mesh(name: str, connector: str, *others: str, **settings: Any) -> ClusterConnection:
    login = {"user": "u", "password": "p", "max_retry_interval": 0.1, "retry_interval": 0.1}
    return ClusterConnection(name, connector=connector, static_connectors=others, **{**login, **settings})


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("europe", "europe.news", "that begin with 'europe.news'"),
        ("", "", "both share addresses"),
        ("", "eu", "that begin with 'eu'"),
        ("us, eu.uk", "eu,!eu.de", "that begin with 'eu.uk'"),
        ("eu", "us", None),
        ("!eu", "eu", None),
        ("eu,!eu.uk", "eu.uk", None),
    ],
)
async def test_cluster_connections_that_share_addresses_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, first: str, second: str, told: str | None
) -> None:
    services = [mesh("one", "me", address=first), mesh("two", "me", address=second)]
    async with Broker("hq", data_dir=None, connectors={"me": "inproc://hq"}, services=services):
        await trio.sleep(600)
    # Only one of them pins the groups of this broker.
    assert events_of(caplog) == {"groups_not_clustered": 1, **({"cluster_addresses_overlap": 1} if told else {})}
    assert told is None or (told in caplog.text and "one and two" in caplog.text)


ADDRESSES = st.text("ab", max_size=3)
LISTS = st.lists(st.tuples(st.sampled_from(["", "!"]), ADDRESSES).map("".join), max_size=3).map(",".join)


@given(LISTS, LISTS, ADDRESSES)
def test_whatever_two_connections_both_take_is_an_overlap_and_its_beginning_is_taken_by_both(
    first: str, second: str, address: str
) -> None:
    try:
        both = [mesh("one", "me", address=first).settings, mesh("two", "me", address=second).settings]
    except SettingsError:
        # A list that excludes all of its addresses.
        reject()
    shared = overlap(*both)
    assert shared is not None or not all(one.takes(address) for one in both)
    assert shared is None or all(one.takes(shared) for one in both)


@pytest.mark.slow
@pytest.mark.parametrize("copied", [True, False], ids=["a copied store", "an id given twice"])
async def test_a_node_id_that_is_there_twice_is_warned_of_once_by_each_side(
    caplog: pytest.LogCaptureFixture, copied: bool
) -> None:
    disk = SimDisk()
    env = attrs.evolve(machine(), disk=disk.mount())
    given: dict[str, Any] = {} if copied else {"node_id": bytes(range(16))}
    connectors = {"a": "inproc://a", "b": "inproc://b"}
    if copied:
        async with Broker("a", data_dir="/data", env=env):
            pass
    other = attrs.evolve(env, disk=disk.copy().mount())
    settings: dict[str, Any] = {"data_dir": "/data", "connectors": connectors, **given}
    async with (
        Broker("a", env=env, services=[mesh("mesh", "a")], **settings) as here,
        Broker("b", env=other, services=[mesh("mesh", "b", "a")], **settings) as there,
    ):
        assert here.node_id == there.node_id
        # Many attempts, and one warning a minute.
        await trio.sleep(50)
        assert (here.cluster("mesh").nodes(), there.cluster("mesh").nodes()) == (1, 1)
    assert events_of(caplog) == {"duplicate_node": 1, "peer_lost": 1}
    assert all("'a'" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


async def test_who_does_not_keep_up_with_notifications_is_warned_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshq.limits.NOTIFICATIONS_QUEUED_MAX", 2)
    async with Broker("hq", data_dir=None) as broker, broker.client() as slow, broker.client() as client:
        async with slow.subscribe("activemq.notifications", window=1):
            for number in range(20):
                await client.create_queue(f"q{number}")
        assert broker.statistics().notifications_dropped > 10
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("notifications_dropped") == 1
