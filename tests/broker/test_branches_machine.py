"""Branches of a store-and-forward queue: who waits for room elsewhere, and who overtakes."""

from __future__ import annotations

import random

import pytest

from meshq import limits
from meshq.broker.queue import _branches_machine
from meshq.broker.queue._branches_machine import FairRound
from meshq.broker.queue._delivery_options import DeliveryOptions
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun
from tests.broker.queues import join, leave, make_run, numbers, settle

FORWARDING = "$meshq.cluster.mesh.there"


def forwarding(**credits: int) -> Queue:
    """A store-and-forward queue with a link; of these addresses so many messages may be sent."""
    queue = Queue(1, FORWARDING, FORWARDING, durable=True)
    queue.lists.high_watermark = float("inf")
    for number, (address, until) in enumerate(credits.items(), 1):
        queue.branch().granted(number, address, until)
    return queue


def put(queue: Queue, address: str, rows: int = 1, *, size: int = 10, held: bytes = b"") -> QueueRun:
    run = make_run([size] * rows)
    run.address = address
    if held:
        run.options = DeliveryOptions(0, held=held)
    view = QueueRun(run, queue.number_rows(rows))
    queue.append(view)
    return view


def sent(queue: Queue) -> list[tuple[str, list[int]]]:
    """What goes over the link now: addresses, and the numbers of their messages."""
    found = []
    while dispatches := queue.dispatch():
        found += [(dispatch.view.run.address, numbers(dispatch)) for _, dispatch in dispatches]
    queue.branch().end(queue.pending.take_emptied())
    queue.check()
    return found


def test_without_credits_a_store_and_forward_queue_is_first_in_first_out() -> None:
    queue = forwarding()
    join(queue)
    for address in "aba":
        put(queue, address, 2)
    assert sent(queue) == [("a", [1, 2]), ("b", [3, 4]), ("a", [5, 6])] and not queue.branch().active


def test_what_has_no_credit_waits_in_a_branch_and_others_overtake_it() -> None:
    queue = forwarding(a=3)
    join(queue)
    branches = queue.branch()
    for address in "abab":
        put(queue, address, 2)
    # The run that the credit ends in is divided.
    assert sent(queue) == [("a", [1, 2]), ("b", [3, 4]), ("a", [5]), ("b", [7, 8])]
    assert branches.take_changes() == (("a", False),) and branches.take_changes() == ()
    assert (branches.blocked, list(branches.waiting)) == (1, ["a"])
    put(queue, "a", 1)
    put(queue, "b", 1)
    assert sent(queue) == [("b", [10])]
    branches.granted(1, "a", 4)
    assert sent(queue) == [("a", [6])]
    branches.granted(1, "a", 100)
    assert sent(queue) == [("a", [9])] and branches.blocked == 0


def test_nothing_goes_and_nothing_is_asked_again_while_there_is_no_credit() -> None:
    queue = forwarding(a=0)
    join(queue)
    put(queue, "a", 5)
    assert sent(queue) == [] and queue.dispatch() == [] and not queue.pending.unfinished


def test_a_branch_ends_when_all_of_it_is_stored_and_begins_again() -> None:
    queue = forwarding(a=1)
    link = join(queue)
    branches = queue.branch()
    put(queue, "a", 2)
    assert sent(queue) == [("a", [1])]
    branches.granted(1, "a", 2)
    assert sent(queue) == [("a", [2])] and branches.take_changes() == (("a", False),)
    settle(link, 1, 2)
    put(queue, "b", 1)
    assert sent(queue) == [("b", [3])] and branches.take_changes() == (("a", True),)
    put(queue, "a", 1)
    assert sent(queue) == [] and branches.take_changes() == (("a", False),)
    assert branches.blocked == 1


def test_a_branch_ends_only_when_it_is_durable_that_nothing_is_left_and_nothing_has_come() -> None:
    queue = forwarding(a=0)
    link = join(queue)
    branches = queue.branch()

    def emptied(tag: int) -> dict[str, int]:
        branches.granted(1, "a", tag)
        assert [dispatch.tag for _, dispatch in queue.dispatch()] == [tag]
        settle(link, tag, tag)
        assert queue.dispatch() == []
        return queue.pending.take_emptied()

    put(queue, "a")
    assert queue.dispatch() == [] and branches.take_changes() == (("a", False),)
    first = emptied(1)
    put(queue, "a")
    second = emptied(2)
    # What the first one speaks of is durable, but not what has come since; nor is it in another session.
    branches.end(first)
    assert branches.take_changes() == ()
    branches.detach()
    branches.attach({"a": 1})
    branches.end(second)
    assert branches.take_changes() == ()
    assert queue.dispatch() == []
    branches.end(queue.pending.take_emptied())
    assert branches.take_changes() == (("a", True),) and not branches.active


def test_a_new_session_has_the_branches_that_the_other_node_knows() -> None:
    queue = forwarding(a=0)
    link = join(queue)
    branches = queue.branch()
    for address in "abab":
        put(queue, address)
    assert sent(queue) == [("b", [2]), ("b", [4])]
    leave(link)
    branches.detach()
    # The other node has lost the branch with its power, and has one that this node has ended.
    branches.attach({"c": 3})
    # What went over the branch that is lost goes with the others, in the order of placing.
    assert branches.take_changes() == ()
    view = put(queue, "c")
    assert branches.is_branch(view) and branches.stored(view) is None
    branches.answered = 9
    assert branches.stored(view) == 3 and branches.stored(put(queue, "b")) == 9
    join(queue)
    # In a session without a bound all goes, in the order of each address.
    assert [number for address, found in sent(queue) if address != "c" for number in found] == [1, 2, 3, 4, 6]


def test_changes_that_the_other_node_lost_make_no_more_branches_than_a_link_may_have() -> None:
    """It has the maximum of branches, one of which this node has ended, and another one instead."""
    count = limits.LINK_BRANCHES_MAX
    queue = forwarding(**{f"a{number}": 0 for number in range(count + 1)})
    link = join(queue)
    branches = queue.branch()
    for number in range(count):
        put(queue, f"a{number}")
    assert sent(queue) == []
    known = {address: 0 for address, _ in branches.take_changes()}
    branches.granted(1, "a0", 1)
    assert sent(queue) == [("a0", [1])]
    settle(link, 1, 1)
    assert sent(queue) == []
    put(queue, f"a{count}")
    assert sent(queue) == []
    leave(link)
    branches.detach()
    branches.attach(known)
    for number in range(count + 1):
        branches.granted(number + 1, f"a{number}", 0)
    join(queue)
    there = dict.fromkeys(known)
    put(queue, "b")
    sent(queue)
    for address, ended in branches.take_changes():
        if ended:
            del there[address]
        else:
            there[address] = None
        assert len(there) <= count


def test_a_new_session_looks_at_each_run_once_however_many_branches_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else goes on at the node meanwhile, and a store-and-forward queue may be long."""
    queue = forwarding()
    names = [f"a{number}" for number in range(limits.LINK_BRANCHES_MAX)]
    for address in (*names, "other", *names):
        put(queue, address)
    looked: list[str] = []

    def address_of(run: StoredRun) -> str:
        looked.append(run.address)
        return run.address

    monkeypatch.setattr(_branches_machine, "address_of", address_of)
    queue.branch().attach(dict.fromkeys(names, 0))
    queue.check()
    assert len(looked) == 2 * len(names) + 1
    monkeypatch.undo()
    assert len(queue.lists.main.runs()) == 1 and len(queue.lists.all) == 1 + len(names)
    join(queue)
    found = sent(queue)
    assert sorted(number for _, some in found for number in some) == [*range(1, 2 * len(names) + 2)]


def test_what_stays_when_a_branch_begins_is_given_again_in_its_order() -> None:
    """Of a run that stays and of one that goes a message was given and came back; others were never given."""
    queue = forwarding()
    link = join(queue)
    for address in "abab":
        put(queue, address, 2)
    assert sent(queue) == [("a", [1, 2]), ("b", [3, 4]), ("a", [5, 6]), ("b", [7, 8])]
    leave(link)
    put(queue, "b", 2)
    put(queue, "a", 2)
    queue.branch().attach({"a": 0})
    queue.check()
    join(queue)
    found = sent(queue)
    for address, numbered in (("a", [1, 2, 5, 6, 11, 12]), ("b", [3, 4, 7, 8, 9, 10])):
        assert [number for name, some in found for number in some if name == address] == numbered


def test_what_a_prepared_transaction_holds_needs_no_credit() -> None:
    queue = forwarding(a=0)
    join(queue)
    put(queue, "a")
    put(queue, "a", held=b"xid")
    assert sent(queue) == [("a", [2])] and queue.branch().blocked == 1


def test_a_message_that_was_not_sent_gives_its_credit_back() -> None:
    queue = forwarding(a=1)
    link = join(queue)
    put(queue, "a")
    put(queue, "a")
    assert sent(queue) == [("a", [1])]
    queue.branch().unsent(link.dispatches, 1)
    assert sent(queue) == [("a", [2])]


def test_the_credit_of_another_number_counts_from_its_beginning() -> None:
    queue = forwarding(a=1)
    join(queue)
    put(queue, "a", 4)
    assert sent(queue) == [("a", [1])]
    branches = queue.branch()
    branches.granted(7, "a", 1)
    assert sent(queue) == [("a", [2])]
    # Not bounded any more.
    branches.granted(0, "a", 0)
    assert sent(queue) == [("a", [3, 4])]


def test_with_all_branches_in_use_an_address_that_is_full_takes_more_and_holds_up_nobody() -> None:
    count = limits.LINK_BRANCHES_MAX
    queue = forwarding(**{f"a{number}": 0 for number in range(count + 1)})
    join(queue)
    for number in range(count + 1):
        put(queue, f"a{number}")
    put(queue, "b")
    assert sent(queue) == [(f"a{count}", [count + 1]), ("b", [count + 2])]


def test_turns_go_by_bytes_and_who_was_not_ready_saves_nothing_up() -> None:
    turns = FairRound()
    order = []
    for _ in range(9):
        key = turns.choose(["big", "small"])
        turns.served(key, 300 if key == "big" else 100)
        order.append(key)
    # After a big one, three small ones have had as much.
    assert order == ["big", "small", "small", "small", "big", "small", "small", "small", "big"]
    # One that comes late waits for one turn of each other one, not for what it missed.
    assert turns.choose(["big", "late", "small"]) in ("late", "small")
    turns.served("late", 10_000)
    assert turns.choose(["big", "late", "small"]) == "small"


@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_credits_and_losses_keeps_each_address_in_order(seed: int) -> None:
    rng = random.Random(seed)
    queue = forwarding()
    link = join(queue, window=40)
    until: dict[str, int] = {}
    given: dict[str, list[int]] = {address: [] for address in "abcd"}
    stored: dict[str, list[int]] = {address: [] for address in "abcd"}
    counted = dict.fromkeys("abcd", 0)
    under_way: list[tuple[str, int, int]] = []
    for _ in range(400):
        way = rng.random()
        address = rng.choice("abcd")
        if way < 0.35:
            view = put(queue, address, rng.randint(1, 5), size=rng.choice((1, 100)))
            given[address] += range(view.first, view.first + len(view.states))
        elif way < 0.55 and address != "d":
            until[address] = until.get(address, 0) + rng.randint(0, 4)
            queue.branch().granted(1, address, until[address])
        elif way < 0.75 and under_way:
            done = rng.randint(1, len(under_way))
            for one, tag, number in under_way[:done]:
                stored[one].append(number)
                settle(link, tag, tag)
            del under_way[:done]
        elif way < 0.8:
            leave(link)
            under_way.clear()
            until.clear()
            counted = dict.fromkeys("abcd", 0)
            queue.branch().detach()
            queue.branch().attach({})
            link = join(queue, window=40)
        while dispatches := queue.dispatch():
            for _, dispatch in dispatches:
                one = dispatch.view.run.address
                counted[one] += dispatch.rows if dispatch.credit else 0
                assert bool(dispatch.credit) == (one in until) and counted[one] <= until.get(one, 0)
                under_way += [(one, dispatch.tag + row, number) for row, number in enumerate(numbers(dispatch))]
        queue.check()
    for address in "abc":
        queue.branch().granted(0, address, 0)
    link.window = 1_000_000
    while dispatches := queue.dispatch():
        for _, dispatch in dispatches:
            one = dispatch.view.run.address
            under_way += [(one, dispatch.tag + row, number) for row, number in enumerate(numbers(dispatch))]
    for one, _, number in under_way:
        stored[one].append(number)
    assert stored == given
