"""Making, finding and deleting addresses and queues."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.address import Target, parse_target
from meshq.broker import Core
from meshq.errors import AddressFullError, MeshqError, NotFoundError, SettingsError, UsageError
from meshq.settings import AddressSettings
from tests.broker.kit import FakeLog, make_core

MULTICAST = {"#": AddressSettings(default_routing="multicast")}


def queue(core: Core, name: str, address: str | None = None, routing: str = "anycast", durable: bool = True) -> None:
    core.definitions.create_queue(name, address=address, routing=routing, durable=durable)


def names(core: Core) -> tuple[list[str], list[str]]:
    return list(core.router.addresses), list(core.router.queues)


def again(log: FakeLog) -> Core:
    return make_core(log.after_crash(), records=log.recovered())


def test_what_exists_is_given_back_and_not_made_again() -> None:
    log = FakeLog()
    core = make_core(log)
    address = core.definitions.create_address("news", "multicast")
    queue(core, "a", "news", "multicast")
    before = log.last
    assert core.definitions.create_address("news", "multicast") is address
    queue(core, "a", "news", "multicast")
    assert log.last == before


def test_an_address_keeps_its_routing_type_and_a_queue_its_address_and_durability() -> None:
    core = make_core()
    core.definitions.create_address("news", "multicast")
    queue(core, "a", "work")
    cases = (
        lambda: core.definitions.create_address("news", "anycast"),
        lambda: queue(core, "x", "news"),
        lambda: queue(core, "a", "work", "multicast"),
        lambda: queue(core, "a", "news", "multicast"),
        lambda: queue(core, "a", "work", durable=False),
        lambda: queue(core, "a"),
    )
    for case in cases:
        with pytest.raises(UsageError):
            case()
    assert names(core) == (["news", "work"], ["a"])


@pytest.mark.parametrize(("name", "address", "routing"), [("", None, "anycast"), ("a::b", None, "anycast")])
def test_names_and_routing_types_are_checked_before_anything_is_made(
    name: str, address: str | None, routing: str
) -> None:
    core = make_core()
    with pytest.raises(SettingsError):
        queue(core, name, address, routing)
    with pytest.raises(SettingsError):
        queue(core, "fine", "a\n", routing)
    with pytest.raises(SettingsError):
        queue(core, "fine", None, "unicast")
    assert names(core) == ([], [])


# -- on first use


def test_the_first_message_to_an_address_makes_it_and_its_queue() -> None:
    core = make_core()
    address, bound = core.definitions.address_for(Target("orders", None))
    assert (address.name, bound, names(core)) == ("orders", None, (["orders"], ["orders"]))
    address, bound = core.definitions.address_for(Target("orders", "side"))
    assert bound is core.router.queues["side"] and len(address.queues) == 2


def test_settings_say_what_an_address_is_on_first_use() -> None:
    core = make_core(settings={"news.#": AddressSettings(default_routing="multicast")})
    core.definitions.address_for(Target("news.x", None))
    core.definitions.address_for(Target("news.y", "mine"))
    core.definitions.address_for(Target("work", None))
    assert names(core) == (["news.x", "news.y", "work"], ["mine", "work"])
    assert core.router.addresses["news.y"].routing == "multicast"


def test_a_consumer_of_a_multicast_address_needs_a_queue_of_it() -> None:
    core = make_core(settings=MULTICAST)
    for _ in range(2):
        with pytest.raises(UsageError, match="multicast"):
            core.definitions.queue_for(Target("news", None))
        assert names(core)[1] == []
        core.definitions.address_for(Target("news", None))
    assert core.definitions.queue_for(Target("news", "mine")).name == "mine"
    assert core.definitions.queue_for(Target("mine", None)).name == "mine"


def test_a_queue_is_found_by_its_own_name_and_on_its_own_address_only() -> None:
    core = make_core()
    queue(core, "a", "work")
    assert core.definitions.queue_for(parse_target("a")).name == "a"
    assert core.definitions.queue_for(parse_target("work::a")).name == "a"
    for find in (core.definitions.queue_for, core.definitions.address_for):
        with pytest.raises(NotFoundError):
            find(parse_target("other::a"))
    assert names(core) == (["work"], ["a"])


def test_a_name_that_another_queue_has_is_refused_and_leaves_no_address_behind() -> None:
    core = make_core(FakeLog())
    queue(core, "a", "work")
    # The queue "a" is on "work", so a message to the address "a" can't have a queue of that name.
    with pytest.raises(UsageError):
        core.definitions.address_for(Target("a", None))
    assert names(core) == (["work"], ["a"])


@pytest.mark.parametrize("target", [Target("x", None), Target("x", "y")])
def test_nothing_is_made_where_settings_forbid_it(target: Target) -> None:
    core = make_core(settings={"#": AddressSettings(auto_create_queues=False)})
    for find in (core.definitions.queue_for, core.definitions.address_for):
        with pytest.raises(NotFoundError):
            find(target)
    assert names(core) == ([], [])
    core.definitions.create_address("x", "anycast")
    for find in (core.definitions.queue_for, core.definitions.address_for):
        with pytest.raises(NotFoundError):
            find(target)
    assert names(core) == (["x"], [])


def test_what_a_full_disk_refuses_is_not_there() -> None:
    log = FakeLog(full=True)
    core = make_core(log)
    makers = (
        lambda: core.definitions.create_address("a", "anycast"),
        lambda: queue(core, "a"),
        lambda: core.definitions.address_for(Target("a", None)),
        lambda: core.definitions.address_for(Target("a", "b")),
        lambda: core.definitions.queue_for(Target("a", None)),
    )
    for make in makers:
        with pytest.raises(AddressFullError):
            make()
    assert names(core) == ([], [])
    assert core.router.last_number == 0


def test_an_address_has_so_many_queues_that_a_run_for_all_is_still_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUES_PER_ADDRESS_MAX", 2)
    core = make_core()
    queue(core, "a", "news", "multicast")
    queue(core, "b", "news", "multicast")
    for error in (MeshqError, UsageError):
        with pytest.raises(error, match="has its 2 queues"):
            queue(core, "c", "news", "multicast")
    queue(core, "c", "other")


# -- numbers, and what survives


def test_definitions_survive_a_crash_and_what_was_deleted_stays_so() -> None:
    log = FakeLog()
    core = make_core(log)
    for name in ("a", "b", "c"):
        queue(core, name)
    core.definitions.create_address("news", "multicast")
    core.definitions.delete_queue(core.router.queues["b"])
    queue(core, "fleeting", durable=False)
    found = again(log)
    assert names(found) == (["a", "b", "c", "news", "fleeting"], ["a", "c"])
    assert [found.router.queues[name].number for name in ("a", "c")] == [1, 3]
    assert found.router.addresses["news"].routing == "multicast"


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("c", "a"), ("b", "c")])
def test_the_number_of_a_queue_is_never_given_again(order: tuple[str, ...]) -> None:
    log = FakeLog()
    core = make_core(log)
    for name in ("a", "b", "c"):
        queue(core, name)
    for name in order:
        core.definitions.delete_queue(core.router.queues[name])
    found = again(log)
    queue(found, "new")
    assert found.router.queues["new"].number == 4
    # One record says so, and it kills the one before.
    assert len([record for record in log.living() if b"last" in record.payload]) == 1


def test_the_number_of_a_queue_that_goes_with_its_life_is_never_given_again() -> None:
    log = FakeLog()
    core = make_core(log)
    most = limits.QUEUE_NUMBERS_RESERVE
    for index in range(most):
        queue(core, f"fleeting {index}", durable=False)
    numbers = [*core.router.by_number]
    assert len(log.living()) == most + 1, "the addresses, and one record for all numbers"
    for _ in range(2):
        core = again(log)
        assert not core.router.queues
        for durable in (False, True, False):
            queue(core, f"in the next life {len(numbers)}", durable=durable)
            numbers.append(core.router.last_number)
        core.definitions.delete_queue(core.router.by_number[numbers[-2]])
        log = core.release_queue.log  # type: ignore[assignment]
    assert len(dict.fromkeys(numbers)) == len(numbers)


def test_a_durable_queue_stays_paused_over_a_crash_and_one_record_says_so() -> None:
    log = FakeLog()
    core = make_core(log)
    for name in ("a", "b"):
        queue(core, name)
    queue(core, "fleeting", durable=False)
    for name in ("a", "b", "fleeting"):
        core.definitions.pause(core.router.queues[name], True)
    core.definitions.pause(core.router.queues["b"], False)
    before = log.last
    core.definitions.pause(core.router.queues["a"], True)
    assert log.last == before
    found = again(log)
    assert {name: queue.paused for name, queue in found.router.queues.items()} == {"a": True, "b": False}
    assert len([record for record in log.living() if b"address" in record.payload and b"number" in record.payload]) == 2
    found.definitions.pause(found.router.queues["a"], False)
    found.definitions.delete_queue(found.router.queues["b"])
    last = again(found.release_queue.log)  # type: ignore[arg-type]
    assert [(queue.name, queue.number, queue.paused) for queue in last.router.queues.values()] == [("a", 1, False)]


def test_a_queue_can_be_paused_and_resumed_on_a_full_disk() -> None:
    log = FakeLog()
    core = make_core(log)
    queue(core, "a")
    log.full = True
    core.definitions.pause(core.router.queues["a"], True)
    assert again(log).router.queues["a"].paused


def test_a_queue_can_be_deleted_on_a_full_disk() -> None:
    log = FakeLog()
    core = make_core(log)
    queue(core, "a")
    log.full = True
    core.definitions.delete_queue(core.router.queues["a"])
    assert names(again(log)) == (["a"], [])
