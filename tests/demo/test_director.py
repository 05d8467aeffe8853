"""The run gives up when nothing gets ahead any more, and says what it was waiting for."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq.demo import _report_format as report
from meshq.demo._director import Director
from meshq.demo._options import Options
from meshq.demo._processes import STALL_SECONDS, StalledError
from meshq.demo._progress import PlainProgress


class Somebody:
    """A process that only has a name, and keeps what it is told."""

    def __init__(self, name: str = "producer") -> None:
        self.name = name
        self.told: list[report.Report] = []
        self.status = 0
        self.ended = trio.Event()

    async def tell(self, command: report.Report) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append(command)

    async def end(self) -> None:
        await trio.lowlevel.checkpoint()
        self.ended.set()


def director(nursery: trio.Nursery, **options: Any) -> Director:
    """A director without processes."""
    return Director(Options(**options), Path("f"), "d", nursery=nursery, view=PlainProgress(io.StringIO()))


def answering(run: Director, monkeypatch: pytest.MonkeyPatch, *answers: report.Report) -> list[tuple[str, ...]]:
    """Each process that is started says the next of these as soon as somebody waits; returns how they were started."""
    started: list[tuple[str, ...]] = []
    left = iter(answers)

    def start(name: str, role: str, *arguments: str) -> Any:
        started.append(arguments)
        child = Somebody(name)
        run.processes._nursery.start_soon(say, child, next(left))
        return child

    async def say(child: Any, answer: report.Report) -> None:
        await trio.lowlevel.checkpoint()
        run.processes.heard(child, answer)

    monkeypatch.setattr(run.processes, "start", start)
    return started


async def test_a_port_that_is_taken_after_a_kill_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery, nodes=2)
        started = answering(run, monkeypatch, report.PortTaken(), report.PortTaken(), report.Ready("tcp://h:7"))
        member = run.nodes.members[1]
        run.nodes.members[0].port, member.port = 6, 7
        await run.nodes.restart(member)
        assert member.url == "tcp://h:7"
        assert started == [("d/node-2", "2", "6", "7")] * 3


@pytest.mark.parametrize(("discover", "place"), [("multicast", r"multicast:\d+"), ("directory", "directory:d/members")])
async def test_nodes_that_discover_are_told_one_place_and_their_own_ports_of_which_one_changes(
    monkeypatch: pytest.MonkeyPatch, discover: str, place: str
) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery, nodes=3, discover=discover)
        run.nodes.members.pop()
        started = answering(run, monkeypatch, report.Ready("tcp://h:1"), report.PortTaken(), report.Ready("tcp://h:2"))
        await run.nodes.choose_ports()
        for member in run.nodes.members:
            run.nodes.start_broker(member)
        await run.nodes.restart(run.nodes.members[1])
        first, second, again = started
        assert re.fullmatch(place, first[2]) and first[2] == second[2]
        assert [first[1:2], second[1:2]] == [("1",), ("2",)]
        assert (len(first), len({*first[3:], *second[3:]})) == (5, 4)
        # It took two attempts; for clients it is where it was, for other nodes never where it was before.
        assert again[:4] == second[:4] and again[4] != second[4]


async def test_a_port_that_stays_taken_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery, nodes=1)
        answering(run, monkeypatch, *[report.PortTaken()] * 1_000)
        with pytest.raises(StalledError, match="port 7 of node 1 has been taken by somebody else"):
            run.nodes.members[0].port = 7
            await run.nodes.restart(run.nodes.members[0])


async def test_all_nodes_start_anew_on_other_ports_if_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery, nodes=2)
        ready = report.Ready("tcp://h:1")
        started = answering(run, monkeypatch, ready, report.PortTaken(), ready, ready)
        for member in run.nodes.members:
            run.nodes.start_broker(member)
        taken = run.nodes.members[1].broker
        taken.ended.set()
        await run.nodes.all_ready()
        assert taken in run.processes._leaving
        assert started[0][2:] == started[1][2:] == ("0", "0")
        ports = started[2][2:]
        assert started[3][2:] == ports
        assert len({"0", *ports}) == 3


async def test_the_producers_node_is_asked_before_those_to_which_it_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery, nodes=3)
        asked: list[int] = []

        for member in run.nodes.members:
            member.process = member.number  # type: ignore[assignment]

        async def ask(broker: int) -> report.Numbers:
            await trio.lowlevel.checkpoint()
            asked.append(broker)
            return report.Numbers(0, 0, broker, {})

        monkeypatch.setattr(run.processes, "ask", ask)
        assert await run.nodes.ask_all() == [1, 2, 3]
        assert asked == [1, 2, 3]


def test_a_single_node_keeps_its_data_in_the_directory_itself() -> None:
    nursery: Any = None
    assert [member.data_dir for member in director(nursery, nodes=1).nodes.members] == ["d"]
    assert [member.data_dir for member in director(nursery, nodes=2).nodes.members] == ["d/node-1", "d/node-2"]


async def test_a_run_in_which_nothing_moves_ends_and_says_what_it_waited_for() -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)
        began = trio.current_time()
        with pytest.raises(StalledError, match="nothing has moved for 60 s while waiting until the cows come home"):
            await run.processes.until(lambda: False, "the cows come home")
        assert trio.current_time() - began == pytest.approx(STALL_SECONDS)


async def test_what_gets_ahead_slowly_is_waited_for() -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)

        async def creep() -> None:
            for rows in range(1, 11):
                await trio.sleep(STALL_SECONDS * 0.9)
                run.processes.heard(Somebody(), report.Progress(rows, rows))  # type: ignore[arg-type]

        nursery.start_soon(creep)
        began = trio.current_time()
        await run.processes.until(lambda: run.processes.states.progress.confirmed == 10, "all is confirmed")
        assert trio.current_time() - began == pytest.approx(STALL_SECONDS * 9)


async def test_a_question_whose_answer_never_changes_ends_the_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)

        async def idle() -> None:
            while True:
                await trio.sleep(0.25)
                run.processes.heard(Somebody(), report.Idle())  # type: ignore[arg-type]

        async def ask(broker: Any) -> report.Numbers:
            await trio.lowlevel.checkpoint()
            return report.Numbers(7, 0, 7, {})

        monkeypatch.setattr(run.processes, "ask", ask)
        nursery.start_soon(idle)
        began = trio.current_time()
        with pytest.raises(StalledError, match="while waiting until nothing is left, not 7"):
            await run.processes.ask_until(
                Somebody(),  # type: ignore[arg-type]
                lambda numbers: not numbers.ready,
                lambda numbers: f"nothing is left, not {numbers.ready}",
            )
        assert trio.current_time() - began == pytest.approx(STALL_SECONDS, abs=1)
        nursery.cancel_scope.cancel()


async def test_a_run_with_a_message_that_stays_somewhere_ends_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)

        async def idle() -> None:
            while True:
                await trio.sleep(0.25)
                run.processes.heard(Somebody(), report.Idle())  # type: ignore[arg-type]

        async def ask_all() -> list[int]:
            await trio.lowlevel.checkpoint()
            return [0, 1, 0]

        monkeypatch.setattr(run.nodes, "ask_all", ask_all)
        nursery.start_soon(idle)
        run.processes.states.progress = report.Progress(1, 1, finished=True)
        assert await run._finish() == [0, 1, 0]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("discover", "rounds"), [(None, 1), ("multicast", 2)])
async def test_where_messages_go_both_ways_all_nodes_are_empty_twice(
    monkeypatch: pytest.MonkeyPatch, discover: str | None, rounds: int
) -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery, nodes=3, discover=discover)
        asked: list[int] = []

        async def ask_all() -> list[int]:
            await trio.lowlevel.checkpoint()
            asked.append(1)
            return [0, 0, 0]

        monkeypatch.setattr(run.nodes, "ask_all", ask_all)
        run.processes.states.progress = report.Progress(1, 1, finished=True)
        assert await run._finish() == [0, 0, 0]
        assert len(asked) == rounds


async def test_idle_reports_do_not_keep_a_run_alive_that_gets_nowhere() -> None:
    async with trio.open_nursery() as nursery:
        run = director(nursery)

        async def idle() -> None:
            while True:
                await trio.sleep(0.25)
                run.processes.heard(Somebody(), report.Idle())  # type: ignore[arg-type]

        nursery.start_soon(idle)
        with pytest.raises(StalledError):
            await run.processes.until(lambda: False, "something comes")
        nursery.cancel_scope.cancel()
