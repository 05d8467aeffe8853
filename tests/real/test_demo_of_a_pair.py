"""The demos of backups: nodes that serve are killed and stopped, and every flight is accounted for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import attrs
import pytest
import trio

from meshq import SettingsError
from meshq.demo import _main
from meshq.demo._paired import Change, PairOptions, PairTally, ReplicaTally, account_table, parse_paired
from meshq.demo._paired._shared import PairDemo
from meshq.demo._process import DemoError, ungrouped

LINES = [
    b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    b"2013,1,1,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z",
]
REASONS = ("started", "crash", "failback", "lease_lost")


def changes(*reasons: str) -> list[Change]:
    return [Change(node="first", epoch=at, reason=reason, without_service=0.5) for at, reason in enumerate(reasons, 1)]


def test_the_account_names_what_differs() -> None:
    good = PairTally(lines=LINES, changes=changes(*REASONS))
    good.settled.update([good.came(line) for line in LINES])
    assert good.differences == []
    assert account_table(good).endswith("2 of 2 flights: 0 lost, 0 came twice, each as in the file.")
    good.came(LINES[0])
    assert good.differences == ["1 flights came twice"]
    lost = PairTally(lines=LINES, changes=changes(*REASONS))
    lost.came(LINES[0])
    # One whose acknowledgement was not confirmed may come again.
    lost.came(LINES[0])
    assert lost.differences == ["1 flights were lost"]
    altered = PairTally(lines=LINES, changes=changes(*REASONS))
    for line in (LINES[0], LINES[1].replace(b"850", b"851")):
        altered.came(line)
    assert altered.differences == ["1 flights are not those of the file"]
    for missing in REASONS[1:]:
        partial = PairTally(lines=LINES, changes=changes(*(one for one in REASONS if one != missing)))
        for line in LINES:
            partial.came(line)
        assert partial.differences == [f"no node has taken over because of {missing}"]


def differences(*reasons: str, node: str = "first", epochs: Sequence[int] = ()) -> list[str]:
    tally = PairTally(lines=[], changes=changes(*reasons))
    tally.changes = [
        attrs.evolve(one, node=node if one.epoch == 4 else one.node, epoch=epoch)
        for one, epoch in zip(tally.changes, epochs or range(1, len(reasons) + 1), strict=True)
    ]
    return tally.differences


def test_only_those_changes_of_role_are_good_that_the_demo_causes() -> None:
    assert differences(*REASONS) == differences(*REASONS[:3], "superseded") == []
    assert differences(*REASONS, "failback", node="second") == []
    again = "nodes have taken over because of started, crash, failback, lease_lost, failback; expected: started, "
    assert differences(*REASONS, "failback") == [again + "crash, failback, lease_lost"]
    assert len(differences("started", "crash", "lease_lost", "failback")) == 1
    assert differences(*REASONS, epochs=[1, 2, 3, 13]) == ["the epochs of nodes that served are 1, 2, 3, 13"]


def replicated(*reasons: str) -> list[Change]:
    nodes = ("first", "second", "first")
    return [attrs.evolve(one, node=f"-{node}") for one, node in zip(changes(*reasons), nodes, strict=False)]


def two_pairs(lines: Sequence[bytes] = LINES, *, missed: str = "", steps_back: str = "superseded") -> ReplicaTally:
    """An account of two pairs; one of them lacks a change of role for this reason."""
    stepped_back = [("west-first", "superseded")]
    tally = ReplicaTally(lines=LINES, meanwhile=1, stepped_back=stepped_back, steps_back=steps_back)
    tally.changes = {
        pair: [attrs.evolve(one, node=pair + one.node) for one in replicated("started", "crash", "failback")]
        for pair in ("east", "west")
    }
    tally.changes["west"] = [one for one in tally.changes["west"] if one.reason != missed]
    tally.settled.update([tally.came(line) for line in lines])
    return tally


def test_the_account_of_two_pairs_names_what_differs() -> None:
    assert two_pairs().differences == []
    assert account_table(two_pairs()).splitlines()[1:] == [
        "east       1 east-first   started                0.50 s",
        "east       2 east-second  crash                  0.50 s",
        "east       3 east-first   failback               0.50 s",
        "west       1 west-first   started                0.50 s",
        "west       2 west-second  crash                  0.50 s",
        "west       3 west-first   failback               0.50 s",
        "west-first has stepped back: superseded",
        "1 flights were confirmed while a node copied what it had missed",
        "2 of 2 flights: 0 lost, 0 came twice, each as in the file.",
    ]
    assert two_pairs(missed="failback").differences == ["west-first has not taken over because of failback"]
    assert two_pairs(missed="crash").differences == [
        "west-second has not taken over because of crash",
        "the epochs of nodes that served at west are 1, 3",
    ]
    turned = two_pairs()
    turned.changes["east"].append(turned.changes["east"][1])
    assert turned.differences[0].startswith("nodes of east served in another order: east-first (started), ")
    assert turned.differences[1] == "the epochs of nodes that served at east are 1, 2, 3, 2"
    bold = two_pairs()
    bold.stepped_back.clear()
    assert bold.differences == ["the node that was stopped has not stepped back when it went on"]
    # With a quorum the lock runs out, and nobody has to tell.
    told = two_pairs(steps_back="lease_lost")
    assert told.differences == bold.differences
    told.stepped_back.append(("west-first", "lease_lost"))
    assert told.differences == []
    assert "west-first has stepped back: lease_lost" in account_table(told)
    idle = two_pairs()
    idle.meanwhile = 0
    assert idle.differences == ["no flight was confirmed while a node copied what it had missed"]


@pytest.mark.parametrize(
    ("lines", "said"), [(LINES[:1], "1 flights were lost"), ([*LINES, LINES[0]], "1 flights came")]
)
def test_a_flight_that_is_lost_or_comes_twice_ends_the_demo_with_status_1(
    lines: list[bytes], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(options: PairOptions) -> ReplicaTally:
        assert options == PairOptions("replication", 2_000)
        tally = two_pairs(lines[:2])
        for line in lines[2:]:
            tally.came(line)
        return tally

    monkeypatch.setattr("meshq.demo._paired.run_paired", run)
    assert _main.main(["--ha", "replication", "--rows", "2000"]) == 1
    assert said in capsys.readouterr().out


async def test_a_node_that_ends_by_itself_ends_the_demo_with_its_error_and_one_that_was_killed_does_not() -> None:
    with (
        pytest.raises(DemoError, match=r"^the second ended with status 1:\n(.|\n)*KeyError: 'no such role'"),
        ungrouped(),
    ):
        async with trio.open_nursery() as nursery:
            demo = PairDemo("unused", [], nursery)
            first = demo.start("first", "replica")
            demo.kill(first)
            await first.ended.wait()
            demo.start("second", "no such role")
            await trio.sleep_forever()


def test_a_number_of_flights_may_be_said() -> None:
    assert parse_paired(["--ha", "shared-store"]) == PairOptions("shared-store", None)
    assert parse_paired(["--ha", "replication", "--rows", "2000"]) == PairOptions("replication", 2_000)
    assert parse_paired(["--ha", "quorum", "--rows", "2000"]) == PairOptions("quorum", 2_000)
    with pytest.raises(SettingsError, match="from 2,000"):
        parse_paired(["--ha", "shared-store", "--rows", "1999"])


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_the_demo_of_a_pair_runs_and_leaves_no_process() -> None:
    command = [sys.executable, "-m", "meshq", "demo", "--ha", "shared-store", "--rows", "4000"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "4,000 of 4,000 flights: 0 lost, 0 came twice" in found.stdout
    assert all(reason in found.stdout for reason in ("crash", "failback"))


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_demo_of_two_pairs_by_replication_runs_and_leaves_no_process() -> None:
    command = [sys.executable, "-m", "meshq", "demo", "--ha", "replication", "--rows", "4000"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "4,000 of 4,000 flights: 0 lost, 0 came twice" in found.stdout
    assert "west-first has stepped back: superseded" in found.stdout


@pytest.mark.demo
@pytest.mark.timeout(240)
def test_the_demo_of_two_pairs_with_witnesses_runs_and_leaves_no_process() -> None:
    command = [sys.executable, "-m", "meshq", "demo", "--ha", "quorum", "--rows", "33677"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "33,677 of 33,677 flights: 0 lost, 0 came twice" in found.stdout
    assert "west-first has stepped back: lease_lost" in found.stdout
