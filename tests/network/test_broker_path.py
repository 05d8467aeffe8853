"""The path of a message through a network of brokers, as brokers and filters see it."""

from __future__ import annotations

import pytest

from meshq import Message, SettingsError, limits
from meshq.client import BridgedMessage, send_bridged
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.network import _direction
from meshq.wire import BrokerPath, PathStep, decode_map, decode_path, encode_path, path_of, without_names
from tests.network.kit import consuming, known, start, take, world

HERE, THERE = "a" * 32, "b" * 32
STEPS = (PathStep(HERE, "east"), PathStep(THERE, "west"))
TEXT = encode_path(STEPS)


def test_a_path_counts_only_beside_the_mark_of_a_broker_that_forwards() -> None:
    assert path_of({"b": b"", "p": TEXT}).steps == STEPS
    assert path_of({"b": b"own", "p": TEXT}).steps == STEPS
    assert path_of({"p": TEXT}).steps == ()
    assert path_of({"b": b""}).steps == ()


NO_PATHS = [7, "", "no path", "C" * 32 + " name", "\n".join([TEXT] * 9)]
NO_RETURNS = ["<0", "<17", "<x", f"<1 {HERE} x", "\n<1"]


@pytest.mark.parametrize("text", NO_PATHS + NO_RETURNS)
def test_what_is_no_path_is_none(text: object) -> None:
    assert path_of({"b": b"", "p": text}).steps == ()


def test_a_path_tells_of_where_a_message_has_gone_back() -> None:
    here, there = STEPS
    third, fourth = PathStep("c" * 32, "c"), PathStep("d" * 32, "")
    been = path_of({"b": b"", "p": TEXT})
    onward = been.beyond(third, fourth.node_id)
    assert onward == ((*STEPS, third), (), 0)
    back = onward.beyond(fourth, there.node_id)
    assert back == ((here,), (third.node_id, fourth.node_id), 1)
    assert back.ids == (third.node_id, fourth.node_id, HERE)
    assert decode_path(encode_path(*back)) == back
    # From there it goes on as ever, also to one that it has left; and all the way back nothing is left of the way.
    again = back.beyond(there, fourth.node_id)
    assert again == (STEPS, (third.node_id, fourth.node_id), 1)
    home = again.beyond(fourth, HERE)
    assert home == ((), (third.node_id, there.node_id, fourth.node_id), 2)
    assert decode_path(encode_path(*home)) == home and path_of({"p": encode_path(*home)}).ids == ()


def test_the_oldest_brokers_that_a_message_has_left_are_forgotten_where_there_is_no_room() -> None:
    ids = [f"{number:032x}" for number in range(limits.NETWORK_HOPS_MAX)]
    steps = tuple(PathStep(one, "name") for one in ids[:10])
    been = BrokerPath(steps, tuple(ids[10:]), limits.NETWORK_RETURNS_MAX)
    onward = been.beyond(PathStep(HERE, ""), THERE)
    assert (len(onward.steps), onward.left) == (11, tuple(ids[11:]))
    assert len(without_names(encode_path(*onward)).encode()) <= limits.PATH_BYTES_MAX
    assert decode_path(encode_path(*onward)) == onward


@pytest.mark.parametrize(
    ("filter", "count"),
    [
        (f"AMQBrokerPath LIKE '%{HERE}%'", 1),
        (f"AMQBrokerPath LIKE '%{THERE}%'", 0),
        (f"AMQBrokerPath = '{HERE}'", 1),
        ("AMQBrokerHops = 1", 1),
        ("AMQBrokerPath IS NULL", 1),
    ],
)
async def test_a_filter_sees_the_ids_of_a_path_and_no_names(filter: str, count: int) -> None:
    """A broker may have the id of another one as its name."""
    async with world() as made:
        await made.start("a")
        async with made.here("a") as client:
            path = encode_path([PathStep(HERE, THERE)])
            await send_bridged(client, "q", [BridgedMessage(Message(b"forwarded"), b"", path)])
            await client.send("q", b"own")
        async with consuming(made, "a", filter=filter) as (_, consumer):
            got = await take(consumer, count)
            assert all(one.path == ((THERE,) if one.body == b"forwarded" else ()) for one in got)


def largest(**about: object) -> Message:
    """A message that has all the properties that one may have."""
    low, high = 0, limits.PROPERTIES_BYTES_MAX
    encoder = EnvelopeEncoder()
    while low < high:
        middle = (low + high + 1) // 2
        try:
            BridgedMessage(Message(b"x", properties={"p": "y" * middle}, **about), b"").row(encoder)  # type: ignore[arg-type]
            low = middle
        except SettingsError:
            high = middle - 1
    return Message(b"x", properties={"p": "y" * low}, **about)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [None, b"i" * limits.DUPLICATE_ID_BYTES_MAX])
def test_the_longest_path_fits_beside_the_largest_message_if_need_be_without_names(own: bytes | None) -> None:
    steps = [PathStep(f"{number:032x}", "n" * 200) for number in range(limits.NETWORK_HOPS_MAX)]
    message = BridgedMessage(largest(duplicate_id=own), b"i" * 32, encode_path(steps))
    _, _, headers, properties = message.row(EnvelopeEncoder())
    assert len(properties) > limits.PROPERTIES_BYTES_MAX - 64
    told = path_of(decode_map(headers, limits.ENVELOPE_BYTES_MAX, lists=False)).steps
    assert told == tuple(step._replace(name="") for step in steps)
    _, _, headers, _ = message._replace(message=Message(b"x")).row(EnvelopeEncoder())
    assert path_of(decode_map(headers, limits.ENVELOPE_BYTES_MAX, lists=False)).steps == tuple(steps)


async def test_the_largest_message_is_forwarded_over_brokers_with_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = _direction.path_beyond
    monkeypatch.setattr(_direction, "path_beyond", lambda one, node_id, name, to: beyond(one, node_id, name * 250, to))
    async with world() as made:
        await start(made, {"d": "", "c": "d", "b": "c", "a": "b"}, network_ttl=3)
        async with consuming(made, "d") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", [largest()])
            await take(there, 1)
