"""Which announced places a client dials, and how long its first connection waits."""

from __future__ import annotations

import math

import pytest

from meshq.client.link._announced_plan import InitialWait, PlaceRules


@pytest.mark.parametrize(
    ("tls", "insecure", "dials"),
    [
        (False, False, ["tcp://127.0.0.1:1"]),
        (False, True, ["tcp://127.0.0.1:1", "tcp://far:1"]),
        (True, False, ["tls://far:2"]),
        (True, True, ["tls://far:2"]),
    ],
)
def test_the_settings_of_the_client_and_no_announcement_say_how_a_place_is_dialed(
    tls: bool, insecure: bool, dials: list[str]
) -> None:
    announced = ("tcp://127.0.0.1:1", "tcp://far:1", "tls://far:2")
    found = PlaceRules(tls=tls, insecure=insecure).places([announced])
    assert (list(map(str, found.dialed)), found.brokers) == (dials, 1)
    assert len(found.refused) == len(announced) - len(dials)


def test_a_place_that_two_brokers_announce_is_dialed_once_and_a_broker_without_a_place_does_not_count() -> None:
    rules = PlaceRules(tls=False, insecure=False)
    found = rules.places([("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), ("tcp://127.0.0.1:1",), ("tls://far:1",), ()])
    assert [place.port for place in found.dialed] == [1, 2] and found.brokers == 2
    assert found.refused == ("tls://far:1 is a tls:// connector, and the client has no tls= that says whom to believe",)


def test_the_first_connection_waits_from_the_making_of_its_factory_and_later_ones_never() -> None:
    wait = InitialWait(made_at=100.0, timeout=10.0, wanted=None)
    assert wait.until(known=3, used_at=100.0, waited=False) == 110.0
    assert wait.until(known=3, used_at=112.0, waited=False) == 110.0
    assert wait.until(known=3, used_at=101.0, waited=True) == -math.inf


def test_who_knows_nobody_waits_from_its_own_begin_and_until_it_knows_one() -> None:
    wait = InitialWait(made_at=100.0, timeout=10.0, wanted=None)
    assert wait.until(known=0, used_at=112.0, waited=False) == 122.0
    assert wait.until(known=1, used_at=112.0, waited=False) == 110.0
    assert wait.until(known=0, used_at=150.0, waited=True) == 160.0


def test_the_wait_is_over_when_so_many_brokers_are_known_as_are_wanted() -> None:
    wait = InitialWait(made_at=0.0, timeout=10.0, wanted=2)
    assert wait.until(known=1, used_at=0.0, waited=False) == 10.0
    assert wait.until(known=2, used_at=0.0, waited=False) == -math.inf
