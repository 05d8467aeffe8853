"""Runs that are much work for the filters where they go: they are put to these in steps, before they are placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshq import limits
from meshq.broker.access._access import Access
from meshq.broker.queue import _verdicts
from meshq.broker.queue._run_messages import RunMessages
from meshq.permissions import Permissions
from meshq.selector import parse_filter
from meshq.selector._message_view import HEADERS
from meshq.settings import AddressSettings, Security
from meshq.wire import (
    FLAG_DURABLE,
    FLAG_LARGE,
    FLAG_LAST,
    FLAG_RESENT,
    FrameType,
    Send,
    encode_run,
)
from tests.broker.costly import (
    BUDGET,
    FILTER,
    ROWS,
    WANTED,
    Steps,
    fill,
    numbered,
    read,
    sieve,
    with_k,
)
from tests.broker.kit import House, make_core, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import bind, peer_of
from tests.broker.test_disk_space_for_moves import BusyLog


@pytest.mark.parametrize("kind", ["queue", "divert"])
def test_a_run_is_put_to_filters_in_steps_and_nobody_else_waits(steps: Steps, kind: str) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    target = sieve(client, kind)
    plain = other.produce("elsewhere", b"another producer")
    channel = fill(client, "in")
    client.put(channel, b"13")
    assert not client.confirmed and not house.queue(target).counts.added
    other.put(plain, b"1")
    assert other.confirmed, "who sends elsewhere goes on"
    assert steps.all(house) >= 2
    assert client.confirmed[-1] == (channel, 13)
    assert read(house, target) == WANTED
    # Each was put to the filter once.
    assert steps.looks <= ROWS + 2


def test_what_other_nodes_want_is_asked_in_steps_and_so_is_what_they_forward(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    client.call("create_queue", name="q")
    forward = bind(house, mode="on_demand", consumers=1)
    there = house.core.router.bindings("q")[0]
    house.core.router.bind(forward.number.to_bytes(8, "big"), there._replace(filters=(parse_filter(FILTER),)))
    fill(client, "q")
    assert steps.looks == 0 and steps.all(house) >= 2
    assert read(house, forward.name) == WANTED and len(read(house, "q")) == ROWS - 4
    # The other way round.
    house = steps.watch(make_house(FakeLog()))
    sieve(house.client())
    peer = peer_of(house)
    steps.looks = 0
    peer.forward(peer.open(), 1, *numbered(), queues=(house.queue("some").number,), address="in", envelopes=with_k())
    assert steps.looks == 0 and steps.all(house) >= 2
    assert read(house, "some") == WANTED


@pytest.mark.parametrize("waits", ["for filters", "for filters that go", "for room", "for room alone"])
def test_what_another_node_forwards_is_delayed_from_when_it_came_whatever_it_waits_for_here(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    now = [1_000_000]
    house = steps.watch(House(make_core(BusyLog(), now_ms=lambda: now[0])))
    client = house.client()
    sieve(client)
    client.call("create_queue", name="all", address="in", routing="multicast")
    queues = house.queue("some").number, house.queue("all").number
    if waits == "for room alone":
        client.call("delete_queue", name="some")
    if waits.startswith("for room"):
        monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 1_000)
        house.log.large_bytes = house.core.release_queue.large_bytes = 10
    peer = peer_of(house)
    about: dict[str, Any] = {"queues": queues, "address": "in", "envelopes": with_k(d=5_000), "arrival": now[0]}
    peer.forward(peer.open(), 1, *numbered(), **about)
    now[0] += 2_000
    if waits.startswith("for room"):
        house.log.answer()
    elif waits == "for filters that go":
        steps.one(house)
        client.call("delete_queue", name="some")
    steps.all(house)
    house.rest()
    assert house.queue("all").scheduled.messages == ROWS
    now[0] += 3_000
    house.core.clock_moved()
    house.rest()
    assert read(house, "all") == numbered() and not house.queue("all").scheduled.messages


@pytest.mark.parametrize("large", [False, True])
def test_filters_see_before_it_is_placed_what_is_placed(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    seen: list[dict[str, Any]] = []
    told: list[Any] = []
    now = [1_000_000]
    house = steps.watch(House(make_core(FakeLog(), now_ms=lambda: now[0])))
    client = house.client()
    for number, name in enumerate(HEADERS):
        text = f"{name} IS NOT NULL AND k >= 0"
        client.call("create_queue", name=f"q{number}", address="in", routing="multicast", filter=text)
    client.call("create_queue", name="all", address="in", routing="multicast")
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 2)
    sources = dict.fromkeys(header.source for header in HEADERS.values())
    judging = _verdicts.judging

    def spying(run: Any, *arguments: Any) -> Any:
        messages = RunMessages(run)
        told.append(run)
        for row in range(run.content.rows):
            messages.move(row, properties=True)
            seen.append({source: messages.header(source) for source in sources})
        return judging(run, *arguments)

    monkeypatch.setattr("meshq.broker.ingress._filters_at.judging", spying)
    channel = client.produce("in")
    envelopes = with_k(
        1 if large else ROWS, x=60_000, c="an id", t="text/plain", g="group", p=f"{'a' * 32} a", b=bytes(16)
    )
    if large:
        client.channels += 1
        client.calls += 1
        client.send(FrameType.BLOCK, flags=FLAG_LAST, channel=client.channels, first=client.calls, body=bytes(300))
        run = encode_run([b""], envelopes)
        client.numbers[channel] = 1
        client.send(
            FrameType.SEND,
            Send(upload=client.channels),
            flags=FLAG_DURABLE | FLAG_LARGE,
            channel=channel,
            first=1,
            stamp=77,
            count=1,
            table=run.table,
            body=run.body,
        )
    else:
        client.put(channel, *numbered(), envelopes=envelopes)
    assert told and not client.confirmed
    # It takes its time.
    now[0] += 5_000
    steps.all(house)
    (view,) = house.queue("all").runs()
    assert (view.run.origin or view.run) is told[0]
    messages = RunMessages(view.run)
    placed = []
    for row in range(view.run.content.rows):
        messages.move(row, properties=True)
        placed.append({source: messages.header(source) for source in sources})
    assert placed == seen and None not in [*placed[0].values()]
    assert placed[0]["size"] == (300 if large else 1) and placed[0]["expiration"] == 1_060_000
    assert all(house.queue(f"q{number}").counts.added == view.run.content.rows for number in range(len(HEADERS)))


def test_one_step_of_one_run_is_done_at_a_time_and_users_take_turns(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    clients = [house.client() for _ in range(6)]
    sieve(clients[0])
    for number, client in enumerate(clients):
        assert client.attached is not None
        house.sessions.by_number[client.attached.session].principal.owner = ("client", "one" if number == 5 else "many")
    for number, client in enumerate(clients):
        fill(client, "in", producer=b"%16d" % number)
    done = 0
    while not clients[5].confirmed:
        steps.one(house)
        done += 1
    assert done <= 2 * 4, "however many runs somebody else has"
    assert sum(bool(client.confirmed) for client in clients) <= 2
    steps.all(house)
    assert all(client.confirmed for client in clients)


def test_many_cheap_runs_of_one_user_are_together_no_more_than_a_step(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    channel = client.produce("in")
    frames = [encode_run([b"x"], with_k(1)) for _ in range(40)]
    for number, run in enumerate(frames, 1):
        client.send(
            FrameType.SEND,
            flush=number == len(frames),
            channel=channel,
            first=number,
            flags=FLAG_DURABLE,
            count=1,
            table=run.table,
            body=run.body,
        )
    assert steps.looks <= BUDGET
    steps.all(house)
    assert client.confirmed[-1] == (channel, 40)


def test_a_filter_that_comes_meanwhile_is_asked_in_steps_too(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    sieve(client)
    fill(client, "in")
    steps.one(house)
    other.call("create_queue", name="late", address="in", routing="multicast", filter="k = 1 OR k = 2")
    steps.all(house)
    assert read(house, "some") == WANTED == read(house, "late")


def test_what_comes_behind_was_granted_or_is_a_violation(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    channel = fill(client, "in")
    client.put(channel, bytes(client.granted))
    assert client.server.deferred._held_granted_bytes > client.granted and not client.closed
    client.put(channel, b"one too many")
    assert client.closed and not house.core.pending.fair_scheduler and client.server.deferred.frames == []
    assert house.queue("some").counts.added == 0


def test_a_link_that_goes_leaves_nothing_and_what_it_said_comes_again(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    channel = fill(client, "in")
    steps.one(house)
    session = client.server.session
    assert session is not None and session.producers._judged is not None and len(house.core.pending.fair_scheduler) == 1
    client.drop()
    assert not house.core.pending.fair_scheduler and session.producers._judged is None
    client.resume()
    steps.all(house)
    assert client.confirmed == [(channel, ROWS)] and read(house, "some") == WANTED


def test_who_says_good_bye_behind_a_run_that_waits_and_goes_has_no_session_any_more(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    fill(client, "in")
    client.close()
    assert len(house.sessions.by_number) == 1
    client.drop()
    assert not house.sessions.by_number and not house.core.pending.fair_scheduler


def test_what_is_refused_whatever_is_in_it_is_put_to_nothing(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    security = Security(users={"app": "x"}, roles={"app": {"r"}}, permissions={"#": Permissions(send={"r"})})
    full = AddressSettings(max_size_messages=1, full_policy="fail")
    house = steps.watch(House(make_core(FakeLog(), security=security, settings={"full": full})))
    boss, client = house.client(), house.client()
    sieve(boss)
    boss.call("create_queue", name="narrow", address="full", routing="multicast", filter=FILTER)
    boss.put(boss.produce("full", b"z" * 16), b"1", envelopes=with_k(1))
    assert client.attached is not None
    session = house.sessions.by_number[client.attached.session]
    session.principal.owner = ("client", "app")
    session.principal.rights = house.core.access.of(session.principal.owner)
    steps.looks = 0
    # Answers where it may not take them; a full address; what is stored already.
    fill(client, "in", r="in")
    (told,) = house.host.warnings
    assert client.refused() and "'consume'" in told[1] and house.core.access.refused == 1
    house.core.resume()
    fill(client, "full", producer=b"y" * 16)
    assert len(client.refused()) == 2 and steps.looks == 0
    channel = fill(boss, "in")
    steps.all(house)
    steps.looks = 0
    boss.put(channel, *numbered(), envelopes=with_k(), first=1, flags=FLAG_RESENT)
    assert steps.looks == 0 and not house.core.pending.fair_scheduler and isinstance(house.core.access, Access)


def test_room_is_asked_for_behind_the_filters_and_new_filters_behind_that(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    sieve(client)
    channel = client.produce("in")
    client.server.deferred.large_bytes = 0
    asked: list[Callable[[], None]] = []
    looked: list[int] = []

    def ask(space: Any, frame: Any, then: Callable[[], None]) -> bool:
        asked.append(then)
        looked.append(steps.looks)
        return True

    monkeypatch.setattr("meshq.broker.session._disk_space.DiskSpace.must_wait", ask)
    client.put(channel, *numbered(), envelopes=with_k())
    assert not asked
    steps.all(house)
    assert looked == [ROWS] and not client.confirmed
    other.call("create_queue", name="late", address="in", routing="multicast", filter="k = 1 OR k = 2")
    asked.pop()()
    assert steps.looks == ROWS and not client.confirmed, "a filter is asked in steps, and then for room again"
    steps.all(house)
    assert looked == [ROWS, 2 * ROWS]
    asked.pop()()
    house.after_frame()
    assert client.confirmed == [(channel, ROWS)]
    assert read(house, "some") == WANTED == read(house, "late") and steps.looks == 2 * ROWS


def test_a_run_that_was_judged_for_a_link_which_another_session_has_by_then_is_forgotten(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    sieve(house.client())
    peer = peer_of(house)
    peer.forward(peer.open(), 1, *numbered(), queues=(house.queue("some").number,), address="in", envelopes=with_k())
    steps.one(house)
    session = peer.server.session
    assert session is not None and session.peering is not None and session.peering._judged is not None
    peer_of(house).open()
    steps.all(house)
    assert session.peering._judged is None and not house.queue("some").counts.added
