"""Stages beside other features: what priorities, ids, filters, topics and operators mean for these."""

from __future__ import annotations

from meshq.broker.management._held_messages import held_messages, waiting_queues
from meshq.wire import KIND_PROPERTIES, Envelope, encode_map
from tests.broker.kit import with_ids
from tests.broker.staging import Staged, Time, bodies, commit, left, next_life, refusal, start, two_parts


def test_costly_filters_are_asked_in_turns_before_a_stage_is_placed() -> None:
    house, client = start()
    client.call("create_address", name="news", routing="multicast")
    for number in range(40):
        text = f"a LIKE '%x{number}%' OR b LIKE '%y{number}%'"
        client.call("create_queue", name=f"n{number}", address="news", routing="multicast", filter=text)
    part = Staged(client)
    for _ in range(8):
        bodies_of = [b"%d" % row for row in range(256)]
        properties = encode_map({"a": "z" * 400, "b": "y7" + "z" * 400})
        part.send("news", *bodies_of, envelopes=[Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", properties)] * 256)
    stage = part.prepare()
    turns: list[None] = []
    house.host.wake = lambda: turns.append(None)
    commit(client, 0, stage)
    rounds = 0
    while left(house.core):
        house.core.resume()
        house.rest()
        rounds += 1
        assert rounds < 1_000
    assert rounds > 8, "each run has to wait for its turn"
    assert len(bodies(house.core, "n7")) == 8 * 256 and bodies(house.core, "n8") == []


def test_what_is_staged_is_not_said_to_be_stuck_or_on_its_way_to_a_node() -> None:
    house, client, _ = two_parts()
    assert [name for name in waiting_queues(house.core) if name.startswith("$meshq.")] == []
    stage = next(name for name in house.core.router.queues if name.startswith("$meshq.stage."))
    assert list(held_messages(house.core, stage)) == []
    assert [key for key in client.call("node_queue", name="q") or {} if key.startswith("kind")] == []


def test_users_can_look_at_the_queue_of_a_stage_and_do_nothing_else_with_it() -> None:
    _, client, stages = two_parts()
    name = f"$meshq.stage.{stages[0]}"
    assert (client.call("queue", name=name) or {})["ready"] == 1
    for operation in ("purge_queue", "delete_queue", "pause_queue"):
        client.call(operation, name=name)
        assert refusal(client) == "usage", operation
    client.consume(name)
    assert refusal(client) == "usage"


def test_a_queue_of_an_address_and_a_topic_get_what_was_staged_for_these() -> None:
    house, client = start()
    client.call("create_address", name="news", routing="multicast")
    for name in ("n1", "n2"):
        client.call("create_queue", name=name, address="news", routing="multicast")
    part = Staged(client)
    part.send("news", b"both")
    part.send("news::n2", b"one")
    stage = part.prepare()
    later, client = next_life(house)
    commit(client, 0, stage)
    assert (bodies(later.core, "n1"), bodies(later.core, "n2")) == ([b"both"], [b"both", b"one"])


def test_what_messages_ask_for_begins_at_the_commit() -> None:
    time = Time()
    house, client = start(now_ms=time)
    part = Staged(client)
    low = [Envelope(4 << 8, b"", b"", b""), Envelope(9 << 8, b"", b"", b"")]
    part.send("q", b"low", b"high", envelopes=low)
    commit(client, 0, part.prepare())
    assert bodies(house.core) == [b"high", b"low"]


def test_duplicate_ids_count_from_the_placing_on_also_in_the_next_life() -> None:
    house, client = start()
    sender = client.produce()
    first, second = Staged(client, 1), Staged(client, 2, batch=1)
    first.send("q", b"a", b"b", envelopes=with_ids("x", "y"))
    second.send("q", b"again", b"c", envelopes=with_ids("x", "z"))
    client.put(sender, b"before", envelopes=with_ids("y"))
    numbers = [first.prepare(), second.prepare()]
    later, again = next_life(house)
    assert bodies(later.core) == [b"before"], "what is staged makes no id known"
    commit(again, 0, numbers[0])
    assert bodies(later.core) == [b"before", b"a"]
    last, client = next_life(later)
    commit(client, 1, numbers[1])
    assert bodies(last.core) == [b"before", b"a", b"c"]
