"""Servers that send their clients where no client may go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from meshq import BrokerBalancer, UseAnotherServerError, abc
from tests.balancers.kit import machines, node_of


class Misleading(BrokerBalancer):
    """A balancer that sends each client to one place, whatever it is."""

    def __init__(self, place: str) -> None:
        super().__init__("lb", local_target_filter="nobody")
        self._place = place
        self.asked = 0

    def route(self, facts: abc.HandshakeFacts, answer: Callable[[abc.AdmissionDecision], None]) -> Callable[[], None]:
        self.asked += 1
        answer(abc.Redirect(self._place))
        return lambda: None


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("inproc://front", "less safe"),
        ("front", "no place"),
        ("http://localhost:80", "no place"),
        ("tcp://a:99999", "no place"),
        ("(tcp://a:5000,tcp://b:5000)", "no place"),
        ("tcp://user:canary@a:5000", "no place"),
        ("tcp://a:0", "nobody can dial"),
        ("tcp://0.0.0.0:5000", "nobody can dial"),
        ("tcp://\x00:5000", "nobody can dial"),
        ("tcp://a\x1b:5000", "nobody can dial"),
        ("", "another node serves"),
        ("tcp://front:5001", "the 4th that sends this client on"),
    ],
)
async def test_a_client_does_not_follow_to_what_is_no_place(place: str, why: str) -> None:
    async with machines() as made:
        misleading = Misleading(place)
        await made.start("front", misleading, redirect_to="lb")
        began = trio.current_time()
        with pytest.raises(UseAnotherServerError, match=why) as caught:
            async with made.dial():
                raise AssertionError("it is nowhere")
        assert caught.value.outcome == "not_done" and trio.current_time() - began < 1
        assert str(caught.value).isprintable() and "canary" not in str(caught.value)
        assert misleading.asked == (4 if place == "tcp://front:5001" else 1)
        assert made.brokers["front"].statistics().sessions == 0


async def test_who_was_sent_nowhere_comes_again_by_its_own_url() -> None:
    async with machines() as made:
        misleading = Misleading("tcp://a:0")
        await made.start("front", misleading, redirect_to="lb")
        await made.start("home")
        url = "(tcp://front:5001,tcp://home:5000)"
        async with made.dial(url, load_balancing="first_element", use_topology=False) as client:
            assert node_of(client) == "home" and misleading.asked == 1
