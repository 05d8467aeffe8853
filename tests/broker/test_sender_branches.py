"""Branches at the node that sends: what it may tell the other node, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from meshq import abc
from meshq.broker.ingress import _redistribution
from meshq.broker.ingress._redistribution import has_room
from meshq.node._local_broker import ForwardQueue
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import bind


class Credits(abc.AddressCredits):
    """The credits that the other node would tell."""

    def __init__(self, marks: Mapping[str, int] = {}, **known: int) -> None:
        self._marks = marks
        self.known = known
        self.granted: Callable[[int, str, int], None]

    @property
    def marks(self) -> Mapping[str, int]:
        return self._marks

    def watch(self, granted: Callable[[int, str, int], None]) -> None:
        self.granted = granted
        for address, until in self.known.items():
            granted(1, address, until)


class Sender:
    """A node whose queues ``q`` and ``r`` are at another one."""

    def __init__(self) -> None:
        self.house: House = make_house(FakeLog())
        bind(self.house)
        self.forward = bind(self.house, number=8, name="r", address="r")
        self.link = ForwardQueue(self.house.core, self.forward)
        self.given: list[abc.ForwardRun] = []

    def attach(self, credits: Credits) -> Credits:
        self.link.attach(self.given.append, 0, credits=credits)
        self.house.rest()
        return credits

    def put(self, *addresses: str) -> None:
        client = self.house.client()
        for number, address in enumerate(addresses):
            client.put(client.produce(address, b"%16d" % number), b"x")

    def sent(self) -> list[tuple[str, tuple[tuple[str, bool], ...]]]:
        """Addresses of what was given since, and what the other node has to be told before."""
        found = [(run.address, run.entry.way.changes) for run in self.given]
        self.given.clear()
        return found


def test_what_waits_in_a_branch_keeps_messages_of_its_own_address_here_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_redistribution, "AHEAD_MAX", 3)
    sender = Sender()
    sender.attach(Credits(q=0))
    sender.put("q", "q", "q", "r")
    forward = sender.forward
    assert (has_room(forward, "q"), has_room(forward, "r")) == (False, True)
    # There is credit, and the link has not taken them yet.
    forward.branch().granted(1, "q", 9)
    assert forward.branch().has_credit("q")
    assert (has_room(forward, "q"), has_room(forward, "r")) == (False, True)


@pytest.mark.parametrize("way", ["stored", "removed"])
def test_the_other_node_hears_of_the_end_of_a_branch_only_when_a_crash_can_bring_nothing_back(way: str) -> None:
    """Without a branch the link's mark would say that what came back is stored; or that what was stored is not."""
    sender = Sender()
    credits = sender.attach(Credits(q=0))
    sender.put("q", "r")
    assert sender.sent() == [("r", (("q", False),))]
    sender.link.done(1, 1)
    sender.house.rest()
    sender.house.auto = False
    sender.put("r")
    placed = sender.house.log.last
    if way == "stored":
        credits.granted(1, "q", 1)
        assert sender.sent() == [("q", ())]
        sender.link.done(2, 2)
    else:
        assert sender.house.core.acknowledger.purge(sender.forward) == 1
    assert sender.forward.counts.ready == 0 and sender.house.log.last > placed
    # What was placed before becomes visible, and that nothing is left in the branch is not durable.
    sender.house.log.sync(placed)
    assert sender.sent() == [("r", ())]
    sender.house.auto = True
    sender.house.rest()
    sender.put("r")
    assert sender.sent() == [("r", (("q", True),))]
