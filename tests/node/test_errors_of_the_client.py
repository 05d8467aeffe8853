"""Every error that a client names for what is wrong with a call, or refused by the broker: raised, and what it says."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import attrs
import pytest
import trio

from meshq import (
    AddressFullError,
    AddressSettings,
    Client,
    Delivery,
    FilterError,
    JournalSettings,
    MeshqError,
    MessageId,
    NotActiveError,
    NotFoundError,
    RefusedError,
    SettingsError,
    UsageError,
    limits,
)
from meshq.testing import SimDisk
from tests.documented_errors import pairs
from tests.node.lives import lives, machine

Use = Callable[[Client], Any]


async def _handler(delivery: Delivery) -> None:
    raise AssertionError("it was called")


#: Callable → how it is told of something that is not allowed, and the setting that the error names.
WRONG: dict[str, list[tuple[Use, str]]] = {
    "Client.balancer": [(lambda client: client.balancer(""), "name")],
    "Client.consumer": [
        (lambda client: client.consumer("q", window=0), "window"),
        (lambda client: client.consumer("q", ack="later"), "ack"),
        (lambda client: client.consumer("q", priority=128), "priority"),
    ],
    "Client.producer": [
        (lambda client: client.producer("q", window=0), "window"),
        (lambda client: client.producer("q", window=2**31), "window"),
        (lambda client: client.producer(""), "address"),
    ],
    "Client.subscribe": [
        (lambda client: client.subscribe("news", durable=True), "durable"),
        (lambda client: client.subscribe("news.#"), "address"),
        (lambda client: client.subscribe("*.sport", name="mine", durable=True), "address"),
        (lambda client: client.subscribe("news", name="mine", shared=1), "shared"),  # type: ignore[arg-type]
    ],
    "Client.serve": [
        (lambda client: client.serve("q", _handler, concurrency=0), "concurrency"),
        (lambda client: client.serve("q", 3), "handler"),  # type: ignore[arg-type]
        (lambda client: client.serve("", _handler), "queue"),
        (lambda client: client.serve("q", _handler, window=0), "window"),
    ],
    "Client.create_address": [(lambda client: client.create_address("a", "anycats"), "routing")],
    "Client.create_queue": [
        (lambda client: client.create_queue("q", routing="anycats"), "routing"),
        (lambda client: client.create_queue("a::q"), "name"),
        (lambda client: client.create_queue("q", durable=1), "durable"),  # type: ignore[arg-type]
    ],
    "Client.create_divert": [
        (lambda client: client.create_divert("", address="q", forwarding_address="r"), "name"),
        (lambda client: client.create_divert("d", address="q", forwarding_address="r", exclusive=1), "exclusive"),  # type: ignore[arg-type]
    ],
    "Client.explain_route": [
        (lambda client: client.explain_route("q", {"a": []}), "properties['a']"),  # type: ignore[dict-item]
        (lambda client: client.explain_route("q", priority=10), "priority"),
        (lambda client: client.explain_route("q", user=7), "user"),  # type: ignore[arg-type]
    ],
    "Client.cursor": [(lambda client: client.cursor("q", "c", lease=0), "lease")],
    "Client.stage": [
        (lambda client: client.stage("", 0), "sink"),
        (lambda client: client.stage("s", -1), "batch"),
        (lambda client: client.stage("s", 0, timeout=0.5), "timeout"),
    ],
    "Client.commit_batch": [
        (lambda client: client.commit_batch("s", 0, [0]), "stages"),
        (lambda client: client.commit_batch("s", 0, range(1, 902)), "stages"),
        (lambda client: client.commit_batch("x" * 129, 0, []), "sink"),
        (lambda client: client.commit_batch("s", 0, [], purge="news.#"), "purge"),
    ],
    "Client.abandon_batch": [(lambda client: client.abandon_batch("s", "0"), "batch")],  # type: ignore[arg-type]
    "Client.stages": [(lambda client: client.stages(""), "sink")],
    "Client.delete_sink": [(lambda client: client.delete_sink(7), "sink")],  # type: ignore[arg-type]
    "Client.cluster_queue": [(lambda client: client.cluster_queue(""), "name")],
    "Client.trace": [(lambda client: client.trace("x"), "message_id")],  # type: ignore[arg-type]
    "Client.move_messages": [
        (lambda client: client.move_messages("q", "r", limit=0), "limit"),
        (lambda client: client.move_messages("q", ""), "address"),
        (lambda client: client.move_messages("q", "r", filter="a = ="), "filter"),
    ],
    "Client.give_back": [
        (lambda client: client.give_back("b"), "node_id"),
        (lambda client: client.give_back("0" * 32, force=1), "force"),  # type: ignore[arg-type]
    ],
    "Client.redrive": [
        (lambda client: client.redrive("q", limit=0), "limit"),
        (lambda client: client.redrive("q", filter="a = ="), "filter"),
    ],
    "Client.set_address_settings": [
        (lambda client: client.set_address_settings("a..b", AddressSettings()), "address_settings"),
        (lambda client: client.set_address_settings("a", {}), "address_settings['a']"),  # type: ignore[arg-type]
    ],
    "Client.transaction": [(lambda client: client.transaction(xid=b""), "xid")],
    "Client.commit": [(lambda client: client.commit(b""), "xid"), (lambda client: client.commit("x"), "xid")],  # type: ignore[arg-type]
    "Client.rollback": [(lambda client: client.rollback(bytes(129)), "xid")],
    "Client.send": [
        (lambda client: client.send("q", b"x", priority=10), "priority"),
        (lambda client: client.send("q", "text"), "body"),  # type: ignore[arg-type]
    ],
    "Client.send_many": [
        (lambda client: client.send_many("q", b"x"), "messages"),  # type: ignore[arg-type]
        (lambda client: client.send_many("q", [b"x", 3]), "body"),  # type: ignore[list-item]
    ],
    "Client.request": [
        (lambda client: client.request("q", b"x", timeout=0), "timeout"),
        (lambda client: client.request("q", b"x", timeout=1, priority=10), "priority"),
    ],
    "Client.end_backup": [
        (lambda client: client.end_backup(cast("str", 5)), "name"),
        (lambda client: client.end_backup("b", force=cast("bool", "no")), "force"),
    ],
}
WRONG_FILTERS: dict[str, Use] = {
    "Client.consumer": lambda client: client.consumer("q", filter="a = ="),
    "Client.subscribe": lambda client: client.subscribe("news", filter="a = ="),
    "Client.serve": lambda client: client.serve("q", _handler, filter="a = ="),
    "Client.create_queue": lambda client: client.create_queue("q", filter="a = ="),
    "Client.create_divert": lambda client: client.create_divert(
        "d", address="q", forwarding_address="r", filter="a = ="
    ),
}
#: Calls about something that is not there.
ABSENT: dict[str, Callable[[Client], Awaitable[object]]] = {
    "Client.delete_queue": lambda client: client.delete_queue("nowhere"),
    "Client.end_backup": lambda client: client.end_backup("nowhere"),
    "Client.give_back": lambda client: client.give_back("0" * 32),
    "Client.cursors": lambda client: client.cursors("nowhere"),
    "Client.delete_cursor": lambda client: client.delete_cursor("nowhere", "c"),
    "Client.commit_batch": lambda client: client.commit_batch("nowhere", 0, [1]),
    "Client.delete_sink": lambda client: client.delete_sink("nowhere"),
    "Client.purge_queue": lambda client: client.purge_queue("nowhere"),
    "Client.pause_bridge": lambda client: client.pause_bridge("nowhere"),
    "Client.resume_bridge": lambda client: client.resume_bridge("nowhere"),
    "Client.pause_queue": lambda client: client.pause_queue("nowhere"),
    "Client.resume_queue": lambda client: client.resume_queue("nowhere"),
    "Client.queue": lambda client: client.queue("nowhere"),
    "Client.move_messages": lambda client: client.move_messages("nowhere", "q"),
    "Client.redrive": lambda client: client.redrive("nowhere"),
    "Client.delete_divert": lambda client: client.delete_divert("nowhere"),
    "Client.remove_address_settings": lambda client: client.remove_address_settings("nowhere"),
    "Client.unsubscribe": lambda client: client.unsubscribe("news", "nowhere"),
    "Client.request": lambda client: client.request("closed.nowhere", b"?", timeout=5),
    "Client.serve": lambda client: client.serve("closed.nowhere", _handler),
    "Consumer.__aenter__": lambda client: client.consumer("closed.nowhere").__aenter__(),
    "Cursor.__aenter__": lambda client: client.cursor("closed.nowhere", "c").__aenter__(),
}
NOTHING_IS_MADE = {"closed.#": AddressSettings(auto_create_queues=False)}


async def used(use: Use, client: Client) -> None:
    """Some of these calls wait."""
    found = use(client)
    if isinstance(found, Awaitable):
        await found


def named(error: type[MeshqError]) -> set[str]:
    """The client's own calls whose docstrings name it."""
    return {pair.callable for pair in pairs() if pair.error == error.__name__ and pair.callable.startswith("Client.")}


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_not_allowed_is_refused_by_name_and_nothing_was_done(name: str) -> None:
    async with lives() as life, life.client() as client:
        for use, setting in WRONG[name]:
            with pytest.raises(SettingsError) as caught:
                await used(use, client)
            assert caught.value.setting == setting
            assert setting in str(caught.value)
            assert caught.value.allowed
            assert caught.value.allowed in str(caught.value)
            assert caught.value.outcome == "not_done"
        # A request's own queue for its answer is no matter.
        assert [queue for queue in await client.queues() if not queue.startswith("$")] == []
        assert await client.diverts() == []


@pytest.mark.parametrize("name", WRONG_FILTERS)
async def test_a_filter_that_is_no_condition_is_refused_and_says_where(name: str) -> None:
    async with lives() as life, life.client() as client:
        with pytest.raises(FilterError, match=r"at column 5 of it") as caught:
            await used(WRONG_FILTERS[name], client)
        assert (caught.value.column, caught.value.value) == (5, "a = =")
        assert caught.value.allowed
        assert caught.value.outcome == "not_done"
        assert await client.queues() == []


@pytest.mark.parametrize("name", ABSENT)
async def test_what_is_not_there_is_told_by_its_name(name: str) -> None:
    async with lives(address_settings=NOTHING_IS_MADE) as life, life.client() as client:
        with pytest.raises(NotFoundError, match=f"nowhere|{'0' * 32}") as caught:
            await ABSENT[name](client)
        assert caught.value.outcome == "not_done"


def test_every_call_that_names_such_an_error_is_here() -> None:
    assert named(SettingsError) <= WRONG.keys()
    assert named(FilterError) <= WRONG_FILTERS.keys()
    assert named(NotFoundError) <= ABSENT.keys()


async def _other_routing(client: Client) -> None:
    await client.create_address("a", "multicast")
    await client.create_address("a", "anycast")


async def _other_queue(client: Client) -> None:
    await client.create_queue("q", durable=True)
    await client.create_queue("q", durable=False)


async def _other_address(client: Client) -> None:
    await client.create_address("a", "multicast")
    await client.create_queue("q", address="a", routing="anycast")


async def _other_divert(client: Client) -> None:
    await client.create_divert("d", address="q", forwarding_address="r")
    await client.create_divert("d", address="q", forwarding_address="s")


async def _a_loop(client: Client) -> None:
    await client.create_divert("there", address="q", forwarding_address="r")
    await client.create_divert("back", address="r", forwarding_address="q")


async def _one_temporary_queue_more(client: Client) -> None:
    for _ in range(limits.CHANNELS_MAX + 1):
        await client.create_temporary_queue()


async def _one_pattern_more(client: Client) -> None:
    for number in range(limits.ADDRESS_SETTINGS_MAX + 1):
        await client.set_address_settings(f"a{number}", AddressSettings(max_delivery_attempts=2))


OTHERWISE: dict[str, tuple[str, Callable[[Client], Awaitable[None]], str]] = {
    "an address of the other routing type": ("Client.create_address", _other_routing, "'a' .*multicast"),
    "a queue that is otherwise": ("Client.create_queue", _other_queue, "'q' .*durable"),
    "a queue on an address of the other type": ("Client.create_queue", _other_address, "'a' .*multicast"),
    "a divert that is otherwise": ("Client.create_divert", _other_divert, "'d'"),
    "a divert that closes a loop": ("Client.create_divert", _a_loop, "loop|back"),
    "too many temporary queues": ("Client.create_temporary_queue", _one_temporary_queue_more, "at most 3 temporary"),
    "too many patterns": ("Client.set_address_settings", _one_pattern_more, "its 3 patterns"),
}


@pytest.mark.parametrize("case", OTHERWISE)
async def test_what_does_not_go_with_what_is_there_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("CHANNELS_MAX", "ADDRESS_SETTINGS_MAX"):
        monkeypatch.setattr(limits, bound, 3)
    _, use, says = OTHERWISE[case]
    async with lives() as life, life.client() as client:
        with pytest.raises(UsageError, match=says) as caught:
            await use(client)
        assert caught.value.outcome == "not_done"


async def test_a_consumer_is_refused_where_it_does_not_fit_and_says_why() -> None:
    async with lives() as life, life.client() as client, life.client() as other:
        await client.create_address("news", "multicast")
        with pytest.raises(UsageError, match="multicast") as usage:
            await client.consumer("news").__aenter__()
        assert usage.value.outcome == "not_done"
        name = await client.create_temporary_queue()
        with pytest.raises(RefusedError, match="only the session that made it") as refused:
            await other.consumer(name).__aenter__()
        assert refused.value.outcome == "not_done"
        async with client.subscribe("news", name="mine", durable=True) as mine:
            with pytest.raises(RefusedError, match="consumes from"):
                await other.subscribe("news", name="mine", durable=True).__aenter__()
            with pytest.raises(RefusedError, match="consumes from") as held:
                await client.unsubscribe("news", "mine")
            assert held.value.outcome == "not_done"
            assert mine.statistics().state == "open"
        assert await client.unsubscribe("news", "mine") == 0


async def test_what_a_full_address_does_not_take_is_not_done_and_each_message_is_told() -> None:
    settings = {"full": AddressSettings(full_policy="fail", max_size_messages=2)}
    async with lives(address_settings=settings) as life, life.client() as client:
        await client.send_many("full", [b"1", b"2"])
        for call in (
            lambda: client.send("full", b"3"),
            lambda: client.send_many("full", [b"3"]),
            lambda: client.request("full", b"3", timeout=5),
        ):
            with pytest.raises(AddressFullError, match="'full' has 2 messages") as caught:
                await call()
            assert caught.value.outcome == "not_done"
        with pytest.raises(AddressFullError) as several:
            await client.send_many("full", [b"3"] * 300)
        assert [type(error) for error in several.value.results] == [AddressFullError] * 300
        assert {error.outcome for error in several.value.results if error is not None} == {"not_done"}
        assert (await client.queue("full")).ready == 2


@pytest.mark.parametrize("call", ["move_messages", "redrive"])
async def test_a_full_disk_ends_a_move_and_what_was_not_moved_is_where_it_was(call: str) -> None:
    disk = SimDisk(random.Random(0), capacity_bytes=2_000_000)
    env = attrs.evolve(machine(), disk=disk.mount())
    settings: dict[str, Any] = {
        "journal": JournalSettings(segment_bytes=limits.SEGMENT_BYTES_MIN),
        "address_settings": {"q": AddressSettings(max_delivery_attempts=1, dead_letter_address="dead")},
    }
    async with lives(env=env, **settings) as life, life.client() as client:
        await client.create_queue("dead")
        source = "dead"
        await client.send_many("q", [bytes(1000)] * 200)
        assert await client.move_messages("q", "dead") == 200
        with pytest.raises(AddressFullError):
            while True:
                await client.send("filling", bytes(10_000))
        with pytest.raises(AddressFullError, match="room") as caught:
            await (client.redrive(source) if call == "redrive" else client.move_messages(source, "else"))
        assert caught.value.outcome == "not_done"
        await trio.sleep(1)
        there = [await client.queue(name) for name in await client.queues() if name in ("q", "dead", "else")]
        assert sum(queue.ready for queue in there) == 200


@pytest.mark.parametrize("call", ["move_messages", "redrive"])
async def test_what_no_queue_takes_is_not_moved_and_that_is_said(call: str) -> None:
    settings = {"picky": AddressSettings(dead_letter_address="dead", max_delivery_attempts=1)}
    async with lives(address_settings=settings) as life, life.client() as client:
        await client.create_queue("small", address="picky", filter="size < 2")
        await client.send_many("picky", [b"1", b"2"])
        assert await client.move_messages("small", "dead") == 2
        await client.delete_queue("small")
        await client.create_queue("none", address="picky", filter="size > 2")
        with pytest.raises(UsageError, match="0 messages were moved; no queue of 'picky' takes"):
            await (client.redrive("dead") if call == "redrive" else client.move_messages("dead", "picky"))
        assert (await client.queue("dead")).ready == 2


@pytest.mark.parametrize("call", ["move_messages", "redrive"])
async def test_what_is_moved_in_part_is_neither_done_nor_not_done(call: str) -> None:
    settings = {"picky": AddressSettings(dead_letter_address="dead")}
    async with lives(address_settings=settings) as life, life.client() as client:
        for name, filter in (("small", "size < 2"), ("big", "size > 1")):
            await client.create_queue(name, address="picky", filter=filter)
        for body in (b"1", b"2", b"33"):
            await client.send("picky", body)
        assert [await client.move_messages(name, "dead") for name in ("small", "big")] == [2, 1]
        await client.delete_queue("big")
        for moved, outcome in ((2, "unknown"), (0, "not_done")):
            with pytest.raises(UsageError, match=f"{moved} messages were moved; no queue of 'picky'") as caught:
                await (client.redrive("dead") if call == "redrive" else client.move_messages("dead", "picky"))
            assert caught.value.outcome == outcome
            assert [(await client.queue(name)).ready for name in ("small", "dead")] == [2, 1]


async def test_a_move_that_is_broken_off_by_the_stop_of_its_node_is_unknown() -> None:
    async with lives() as life, life.client(reconnect_attempts=0) as client, trio.open_nursery() as nursery:
        for _ in range(40):
            await client.send_many("q", [b"x"] * 256)
        told: list[MeshqError] = []

        async def move() -> None:
            with pytest.raises(MeshqError) as caught:
                await client.move_messages("q", "other")
            told.append(caught.value)

        nursery.start_soon(move)
        assert life.broker._node is not None
        core = life.broker._node.core
        while "other" not in core.router.queues:
            await trio.lowlevel.checkpoint()
        core.closing.begin("the node 'hq' is stopping")
        await trio.sleep(1)
        assert [(type(error), error.outcome) for error in told] == [(NotActiveError, "unknown")]
        core.closing.why = None
        assert 0 < (await client.queue("other")).ready < 40 * 256


async def test_an_id_that_is_none_is_refused() -> None:
    for text in ("", "1-2", "x" * 32 + "-1", "0" * 32 + "-01"):
        with pytest.raises(ValueError):
            MessageId.parse(text)
