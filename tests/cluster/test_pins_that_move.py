"""Pins of message groups that move while messages wait for them."""

from __future__ import annotations

import pytest

from meshq import AddressSettings, Message
from meshq.cluster.grouping._arbiter_machine import HOLD, Said
from meshq.cluster.grouping._letter import written
from tests.cluster.kit import until
from tests.cluster.test_clustered_groups import body_of_next, group_of, grouping, grouping_of


async def test_what_was_to_go_to_a_node_that_has_given_its_pin_up_is_asked_for_anew() -> None:
    async with grouping("ab") as nodes, nodes.client("a") as here:
        group = group_of(nodes, "a")
        await here.send("q", Message(b"1", group=group))
        pins, groups = nodes.brokers["a"]._node.core.router.pins, grouping_of(nodes, "a")._groups
        groups.ask("q", group)
        # It cannot go yet: the link is gone, say.
        groups.told("q", group, bytes(nodes.brokers["b"].node_id).hex())
        assert pins.away and not pins.open()
        groups.freed("q", group)
        assert not pins.away and pins.open() == [("q", group)]


async def test_a_pin_that_comes_when_the_consumer_has_left_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=0.0)}}
    async with grouping("ab", broker=settings) as nodes, nodes.client("a") as here, nodes.client("b") as there:
        group = group_of(nodes, "a")
        groups = grouping_of(nodes, "a")._groups
        async with there.consumer("q") as consumer:
            await nodes.joined(queue="q", consumers=1)
            with monkeypatch.context() as patch:
                # The arbiter was asked when there was a consumer here, and takes its time.
                patch.setattr(groups, "wanted", list)
                await here.send("q", Message(b"1", group=group))
                assert await consumer.receive(timeout=5) is None
            own = bytes(nodes.brokers["a"].node_id).hex()
            grouping_of(nodes, "a").arbiter.pins["q", group] = own
            groups.ask("q", group)
            groups.told("q", group, own)
            assert await body_of_next(consumer) == b"1"


async def test_who_is_not_the_arbiter_any_more_passes_on_what_it_is_told() -> None:
    async with grouping() as nodes:
        group = group_of(nodes, "c")
        ids = {name: bytes(broker.node_id).hex() for name, broker in nodes.brokers.items()}
        teller, former = grouping_of(nodes, "b"), grouping_of(nodes, "a")
        await until(lambda: all(grouping_of(nodes, name).settled for name in "abc"))
        teller._serial += 1
        letter = {
            "node_id": ids["b"],
            "instance": teller._instance,
            "serial": teller._serial,
            "members": " ".join(sorted(ids.values())),
            "names": written([Said(HOLD, "q", group)]),
            "begins": False,
            "complete": False,
            "lacks": False,
        }
        former.hear(letter)
        assert former.arbiter.pins == {("q", group): ids["b"]}
        await until(lambda: not former.arbiter.pins)
        assert grouping_of(nodes, "c").arbiter.pins == {("q", group): ids["b"]}
