"""The demo of a network: consumers move, a hub is killed, and every flight is accounted for, with its way."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest
import trio

from meshq import SettingsError
from meshq.demo import _main
from meshq.demo._networked import NetworkAccount, parse_network
from meshq.demo._networked._slow_link import SlowLink
from meshq.demo._paired import account_table
from meshq.env import TcpNetwork

LINES = [
    b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    b"2013,1,1,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z",
]
EASTWARD = ("west-3", "hub-west", "hub-east", "east-1")
WESTWARD = ("east-2", "hub-east", "hub-west", "west-1")
DELAY_S = 0.05


def account(*lines: bytes) -> NetworkAccount:
    """A good account, but for the flights that came."""
    found = NetworkAccount(lines=LINES, sent_meanwhile=7, away_s=1.5, waited=3, moves=[("EWR", "west-1", "east-1")])
    found.ways = Counter({EASTWARD: 1, WESTWARD: 1})
    for line in lines:
        found.came(line)
    return found


def test_the_account_names_the_ways_and_what_differs() -> None:
    assert account(*LINES).differences == []
    assert account_table(account(*LINES)).splitlines() == [
        "  flights  way",
        "        1  east-2 > hub-east > hub-west > west-1",
        "        1  west-3 > hub-west > hub-east > east-1",
        "consumer of EWR: from west-1 to east-1",
        "3 flights waited where a consumer had left, and were taken when it came back",
        "hub-west was killed: 7 flights were confirmed meanwhile, and after 1.50 s flights crossed it again",
        "2 of 2 flights: 0 lost, 0 came twice, each as in the file.",
    ]
    turned = account(*LINES)
    turned.ways = Counter({("east-2", "hub-east", "east-2"): 2, EASTWARD: 1})
    circle = "2 flights went in a circle: east-2 > hub-east > east-2"
    assert turned.differences == [circle, "no flight went from hub-east to hub-west"]
    still = NetworkAccount(lines=[], ways=account().ways)
    assert still.differences == [
        "no consumer has moved",
        "no flight was sent while hub-west was away",
        "no flight has crossed hub-west since it came back",
    ]


LOST_AND_TWICE = [(LINES[:1], "1 flights were lost"), ([*LINES, LINES[0]], "1 flights came twice")]


@pytest.mark.parametrize(("lines", "said"), LOST_AND_TWICE)
def test_a_flight_that_is_lost_or_comes_twice_ends_the_demo_with_status_1(
    lines: list[bytes], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(rows: int | None) -> NetworkAccount:
        assert rows == 2_000
        return account(*lines)

    monkeypatch.setattr("meshq.demo._networked.run_networked", run)
    assert _main.main(["--network", "--rows", "2000"]) == 1
    assert said in capsys.readouterr().out


def test_a_number_of_flights_may_be_said() -> None:
    assert parse_network(["--network"]) is None
    with pytest.raises(SettingsError, match="from 2,000"):
        parse_network(["--network", "--rows", "1999"])


async def test_a_slow_link_delays_and_narrows_and_loses_nothing() -> None:
    sent, network = bytes(range(250)) * 100, TcpNetwork()
    with closing(await network.listen("127.0.0.1", 0)) as listener:
        link = SlowLink(network, listener.port, delay_s=DELAY_S, bits_per_s=8 * len(sent) / DELAY_S)
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + 10
            near = await network.connect("127.0.0.1", await nursery.start(link.run))
            far = await listener.accept()
            began, got = trio.current_time(), b""
            near.send_nowait(sent)
            while len(got) < len(sent):
                got += await far.receive(len(sent))
            assert got == sent
            # Its rate takes as long as its delay.
            assert trio.current_time() - began >= 2 * DELAY_S
            began = trio.current_time()
            far.send_nowait(b"!")
            assert await near.receive(1) == b"!"
            assert trio.current_time() - began >= DELAY_S
            assert link.carried == len(sent) + 1
            far.close()
            assert await near.receive(1) == b"", "what ends at one end ends at the other one"
            near.close()
            listener.close()
            again = await network.connect("127.0.0.1", await nursery.start(link.run))
            assert await again.receive(1) == b"", "nobody listens at the far end"
            again.close()
            nursery.cancel_scope.cancel()


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_demo_of_a_network_runs_and_leaves_no_process() -> None:
    command = [sys.executable, "-m", "meshq", "demo", "--network", "--rows", "4000"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    assert "4,000 of 4,000 flights: 0 lost, 0 came twice" in found.stdout
    assert "east-2 > hub-east > hub-west > west-1" in found.stdout
