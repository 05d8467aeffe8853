"""What decides about a shared store: turns, leases, epochs, hints, fencing and isolation; without a disk or a clock."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from meshq.errors import ConnectionBrokenError, SettingsError, caused
from meshq.ha._epochs_plan import PARTS, ActivationPlan, epoch_name, epoch_of, newest_epoch, plan_activation
from meshq.ha._fence_plan import OwnerWatch, check_fence_command, fence_argv
from meshq.ha._host_questions import any_answers
from meshq.ha._hosts_plan import Isolation, check_hosts_of, place_of
from meshq.ha._lease_machine import Lease
from meshq.ha._owner_format import Owner, decode_owner, decode_registration, encode_hint
from meshq.ha._role_life import ROLE_TRANSITIONS
from meshq.ha._turns_plan import Registration, TurnFacts, WaitingNodes, may_try, registers

PERIOD = 0.1
OWNER = Owner(name="a", url="tcp://a:1", host="h", pid=7, node_id="00ff", epoch=3, lease_until=5_000, lease_ms=5_000)


# -- whose turn it is


def test_every_combination_of_facts_has_the_answer_of_the_rules() -> None:
    others = [Registration(name="p", role="primary"), Registration(name="b", role="backup")]
    flags = list(product((False, True), repeat=4))
    rooms = [[], others[:1], others[1:], others]
    for role, waiting, (stopped, forced, yielding, isolated) in product(("primary", "backup"), rooms, flags):
        facts = TurnFacts(
            name="me",
            role=role,  # type: ignore[arg-type]
            waiting=waiting,
            stopped=stopped,
            forced=forced,
            yielding=yielding,
            isolated=isolated,
        )
        primary_waits = others[0] in waiting
        expected = not isolated and (forced or (not yielding and (role == "primary" or not (stopped or primary_waits))))
        assert may_try(facts) == expected, facts
        assert registers(facts) == (not isolated and not yielding)


def test_a_backup_alone_tries_and_its_own_registration_is_no_rival() -> None:
    mine = Registration(name="b", role="primary")
    assert may_try(TurnFacts(name="b", role="backup", waiting=[mine]))


def test_a_registration_counts_for_four_periods_after_it_was_last_seen_to_change() -> None:
    waiting = WaitingNodes(PERIOD)
    waiting.look([Registration(name="p", role="primary", beat=1)], 10.0)
    assert waiting.fresh(10.0) and not waiting.proved(10.0)
    waiting.look([Registration(name="p", role="primary", beat=1)], 10.39)
    assert waiting.fresh(10.39)
    assert not waiting.fresh(10.4)
    waiting.look([Registration(name="p", role="primary", beat=2)], 10.4)
    assert [one.name for one in waiting.proved(10.79)] == ["p"]
    assert not waiting.fresh(10.81)
    waiting.look([], 10.81)
    assert not waiting.fresh(10.81)


def test_those_who_wait_are_listed_in_the_order_in_which_they_came() -> None:
    waiting = WaitingNodes(PERIOD)
    second, first = Registration(name="a", role="backup"), Registration(name="z", role="backup")
    waiting.look([first], 1.0)
    waiting.look([attrs.evolve(first, beat=1), second], 1.1)
    assert [one.name for one in waiting.fresh(1.2)] == ["z", "a"]


# -- leases


def test_a_lease_is_counted_from_before_the_renewal_and_never_comes_back() -> None:
    lease = Lease(5.0, 100.0)
    assert lease.holds(104.999)
    assert lease.renew(104.0, 104.9)
    assert lease.until == 109.0
    assert lease.holds(108.999)
    assert not lease.holds(109.0)
    assert not lease.renew(109.5, 109.6)
    assert not lease.holds(0.0)


def test_a_renewal_that_began_early_does_not_shorten_a_lease_and_one_that_ends_late_does_not_save_it() -> None:
    lease = Lease(5.0, 100.0)
    assert lease.renew(102.0, 102.1)
    assert lease.renew(101.0, 102.2)
    assert lease.until == 107.0
    assert not lease.renew(106.9, 107.0)
    assert not lease.holds(106.0)


def test_a_lease_that_was_given_up_holds_no_more() -> None:
    lease = Lease(5.0, 0.0)
    lease.end()
    assert not lease.holds(0.0) and not lease.renew(0.0, 0.0)


# -- epochs


def test_names_of_epochs_are_read_as_they_are_written_and_nothing_else_is() -> None:
    for epoch in (1, 9, 10, 2**53 - 1):
        assert epoch_of(epoch_name(epoch)) == epoch
    for name in (
        "epoch-",
        "epoch-0",
        "epoch-01",
        "epoch--1",
        "epoch-1x",
        "epoch",
        "Epoch-1",
        f"epoch-{2**53}",
        "epoch-²",
    ):
        assert epoch_of(name) is None
    assert newest_epoch(["epoch-9", "lock", "epoch-10", "epoch-x"]) == 10
    assert newest_epoch(["lock"]) == 0


def test_a_plain_store_is_moved_once_at_whatever_moment_a_crash_interrupts_the_move() -> None:
    for count in range(len(PARTS) + 1):
        for parts in combinations(PARTS, count):
            # A crash may come after any of the renames.
            for moved in range(count + 1):
                inside, outside = parts[:moved], parts[moved:]
                names = {"lock", "owner", *outside} | ({"epoch-0"} if moved else set())
                plan = plan_activation(names, {0: inside} if moved else {}, where="/d")
                assert plan == ActivationPlan(epoch=1, move=outside)


def test_an_activation_begins_the_epoch_after_the_newest() -> None:
    assert plan_activation({"epoch-7", "lock", "waiting"}, {7: PARTS}, where="/d") == ActivationPlan(epoch=8, rename=7)


@pytest.mark.parametrize(
    ("names", "within"),
    [
        ({"epoch-2", "journal"}, {2: ["journal"]}),
        ({"epoch-0", "journal"}, {0: ["journal"]}),
        ({"places-0", "journal"}, {}),
        ({"epoch-3"}, {3: ["journal", "places-1"]}),
    ],
    ids=["a plain store beside an epoch", "a part twice", "parts elsewhere", "parts of an epoch elsewhere"],
)
def test_what_is_not_one_whole_store_is_refused(names: set[str], within: dict[int, list[str]]) -> None:
    with pytest.raises(SettingsError, match="data_dir='/d' is not allowed") as caught:
        plan_activation(names, within, where="/d")
    assert caught.value.setting == "data_dir"


# -- hints


def test_hints_are_read_as_they_were_written() -> None:
    waiting = Registration(name="n\u00f6de", role="primary", url="tcp://b:2", beat=12)
    assert decode_owner(encode_hint(OWNER)) == OWNER
    assert decode_registration(encode_hint(waiting)) == waiting


def test_a_hint_of_which_any_byte_is_missing_or_of_another_kind_says_nothing() -> None:
    whole = encode_hint(OWNER)
    for end in range(len(whole) - 1):
        assert decode_owner(whole[:end]) is None
    assert decode_owner(encode_hint(Registration(name="a", role="backup"))) is None
    wrong = encode_hint(Registration(name="a", role="backup")).replace(b'"backup"', b'"judge"')
    for data in (wrong, b"", b"[]", b"null", b"\xff", b"[" * 100_000, encode_hint(OWNER).replace(b": 7", b': "7"')):
        assert decode_registration(data) is None
        assert decode_owner(data) is None


# -- fencing


def test_a_fence_command_gets_the_words_for_the_node() -> None:
    command = check_fence_command(["fence", "{host}", "--pid={pid}", "{name}/{node_id}", "{epoch}", "plain"])
    assert command is not None
    assert fence_argv(command, OWNER) == ("fence", "h", "--pid=7", "a/00ff", "3", "plain")
    # What stands in a name is no word.
    assert fence_argv(["{name}"], attrs.evolve(OWNER, name="{pid}")) == ("{pid}",)


@pytest.mark.parametrize("command", ["fence", [], [""], ["a", 1], [b"a"], ["a\0"], ["a", "{user}"], 5])
def test_a_command_that_is_none_is_refused(command: object) -> None:
    with pytest.raises(SettingsError) as caught:
        check_fence_command(command)
    assert caught.value.setting == "fence_command"


def test_an_owner_hangs_when_its_word_was_the_same_for_a_lease_whatever_its_clock_shows() -> None:
    watch = OwnerWatch()
    assert not watch.look(OWNER, 100.0)
    assert not watch.look(OWNER, 105.0)
    assert watch.look(OWNER, 105.001)
    renewed = attrs.evolve(OWNER, lease_until=6_000)
    assert not watch.look(renewed, 106.0)
    assert watch.look(renewed, 111.1)
    released = attrs.evolve(renewed, released=True)
    assert not watch.look(released, 111.1) and not watch.look(released, 200.0)
    assert not watch.look(None, 200.0) and not watch.look(None, 300.0)


# -- isolation


@pytest.mark.parametrize(("numbers", "answers"), [([111], True), ([99, 111], True), ([99], False), ([113, 101], False)])
async def test_a_host_of_whose_addresses_one_refuses_has_answered(numbers: list[int], answers: bool) -> None:
    """Of a host with two families one may not be there at all: EADDRNOTAVAIL beside ECONNREFUSED."""

    async def fail(host: str, port: int) -> None:
        await trio.lowlevel.checkpoint()
        group = ExceptionGroup("all", [OSError(number, "no") for number in numbers])
        raise caused(ConnectionBrokenError("no"), caused(OSError("all attempts have failed"), group))

    network: Any = SimpleNamespace(connect=fail)
    assert await any_answers(network, ["there:1"], 1.0) is answers


def test_a_node_is_isolated_by_two_rounds_without_an_answer_in_a_row_and_not_after_an_answer() -> None:
    for rounds in product((False, True), repeat=6):
        isolation, missed = Isolation(), 0
        for answered in rounds:
            missed = 0 if answered else missed + 1
            assert isolation.round(answered=answered) == isolation.isolated == (missed >= 2)


def test_hosts_are_places_or_urls() -> None:
    assert check_hosts_of(["a:1", "tcp://b:2"]) == ("a:1", "tcp://b:2")
    assert place_of("a:1") == ("a", 1)
    assert place_of("tls://b:2") == ("b", 2)
    for wrong in ("a", "a:0", "a:x", "inproc://a", "", 5):
        with pytest.raises(SettingsError) as caught:
            check_hosts_of([wrong])
        assert caught.value.setting == "check_hosts"
    with pytest.raises(SettingsError):
        check_hosts_of("a:1")


# -- the table


def test_a_node_gets_the_lock_from_waiting_alone_and_serves_only_with_the_lock() -> None:
    takes = [state for state, legal in ROLE_TRANSITIONS.items() if "take" in legal]
    serves = [state for state, legal in ROLE_TRANSITIONS.items() if "active" in legal.values()]
    assert (takes, serves) == (["waiting"], ["activating"])
