"""The demo as a user runs it: whole, sabotaged, and interrupted."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshq
from meshq.demo._kill_plan import CLUSTER_WINDOW, CONSUMERS, WINDOW
from meshq.demo._main import STOP_SECONDS
from meshq.demo._move_plan import MOVING_NODES, MOVING_NODES_MIN, moving_rows_min

#: Long enough for a machine that is busy with other tests.
PATIENCE_SECONDS = 90.0
SOURCE = str(Path(meshq.__file__).parents[1])
#: As few rows as both kills allow: for three nodes, and for one, which starts faster.
SMALL = ("--rows", "20000")
ONE = ("--nodes", "1", *SMALL)
TWO = ("--nodes", "2", *SMALL)


class Demo:
    """A demo under way, with a directory of its own for everything temporary, by which its processes are known."""

    def __init__(self, scratch: Path, *arguments: str, sabotage: str = "") -> None:
        self.scratch = scratch / "temporary"
        self.scratch.mkdir()
        # Every interpreter imports this module as it starts, the demo's children too.
        (scratch / "sitecustomize.py").write_text(sabotage)
        path = os.pathsep.join([str(scratch), SOURCE])
        environment = os.environ | {"TMPDIR": str(self.scratch), "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshq", "demo", *arguments],
            env=environment,
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def wait(self) -> tuple[int, str, str]:
        """Status, output and errors, once it has ended; nothing of it may be left."""
        output, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.processes() == []
        assert list(self.scratch.iterdir()) == []
        return self.process.returncode, output, errors

    def processes(self) -> list[int]:
        """Every process of it that runs, the first one included."""
        mark = b"TMPDIR=" + str(self.scratch).encode() + b"\0"
        return [
            int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and mark in _environment(path)
        ]

    def said(self, text: str) -> None:
        """Return once it has said this."""
        assert self.process.stderr is not None
        seen = ""
        while text not in seen:
            line = self.process.stderr.readline()
            assert line, seen
            seen += line


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes() + b"\0"
    except OSError:
        return b""


def _until(condition: Any) -> None:
    """Return once it holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def result_of(scratch: Path, *arguments: str, rows: int = 20_000) -> tuple[dict[str, Any], str]:
    """The result of a demo in which all is well, and what it said meanwhile."""
    with Demo(scratch, *arguments, "--json", "--data-dir", "kept") as demo:
        status, output, errors = demo.wait()
    assert status == 0, errors
    result: dict[str, Any] = json.loads(output)
    assert result["ok"] is True
    assert (result["rows"], result["confirmed"], result["delivered"]) == (rows, rows, rows)
    assert (result["lost"], result["duplicates"], result["differences"]) == (0, 0, [])
    for sides in result["carriers"].values():
        assert sides["delivered"] == sides["in_the_file"]
    assert "\x1b" not in errors
    return result, errors


def check_store(scratch: Path, directory: str) -> None:
    """What was to be kept is kept, and whole."""
    command = [sys.executable, "-m", "meshq.store", "check", directory]
    environment = os.environ | {"PYTHONPATH": SOURCE}
    checked = subprocess.run(
        command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.demo
def test_in_a_cluster_both_kills_catch_enough_and_nothing_is_lost(tmp_path: Path) -> None:
    result, errors = result_of(tmp_path, *SMALL)
    first, second = result["kills"]
    for kill in (first, second):
        # No more than the consumer's window, and what came in place of the one batch that was acknowledged.
        assert 500 <= kill["delivered_unacknowledged"] <= 2 * CLUSTER_WINDOW
    assert (first["node"], second["node"]) == (2, 1)
    assert first["waiting"] >= 500
    assert second["sent_unconfirmed"] > 0
    # What was delivered and not acknowledged comes again, and where it was.
    one, two, three = result["nodes"]
    assert 500 <= two["redelivered"] <= first["delivered_unacknowledged"]
    assert 500 <= one["redelivered"] <= second["delivered_unacknowledged"]
    assert three["redelivered"] == 0
    assert result["redelivered"] == one["redelivered"] + two["redelivered"]
    # All three were dealt a share, and each flight came to one of them.
    assert all(node["delivered"] >= 4_000 and not node["left"] for node in (one, two, three))
    assert sum(node["delivered"] for node in (one, two, three)) == 20_000
    assert "SIGKILL of node 2 while node 1 forwards to it" in errors
    for number in (1, 2, 3):
        check_store(tmp_path, f"kept/node-{number}")


@pytest.mark.demo
@pytest.mark.parametrize(
    ("discover", "nodes", "moves"),
    [("multicast", MOVING_NODES, [(2, 3, 1), (3, 2, 2)]), ("directory", MOVING_NODES_MIN, [(2, 1, 1), (1, 2, 2)])],
    ids=["multicast", "directory"],
)
def test_nodes_that_are_told_nothing_lose_two_are_left_by_consumers_and_leave_and_nothing_is_lost(
    tmp_path: Path, discover: str, nodes: int, moves: list[tuple[int, int, int]]
) -> None:
    rows = moving_rows_min(nodes)
    arguments = () if nodes == MOVING_NODES else ("--nodes", str(nodes))
    result, errors = result_of(tmp_path, "--discover", discover, "--rows", str(rows), *arguments, rows=rows)
    assert f"{nodes} nodes that found each other by {discover}" in errors
    assert [kill["node"] for kill in result["kills"]] == [2, 1]
    for kill in result["kills"]:
        before, after = kill["places"]
        assert before != after
    for move, (node, to_node, consumers) in zip(result["moves"], moves, strict=True):
        assert (move["node"], move["to_node"], move["consumers"]) == (node, to_node, consumers)
        assert move["redistributed"] >= move["stranded"] >= 500
    leave = result["leave"]
    assert leave["node"] == nodes and leave["target"] in range(1, nodes)
    assert set(leave["went_on_at"]) <= set(range(1, nodes)) and leave["went_on_at"]
    assert leave["held"] >= leave["delivered"] + leave["ready"] >= 600
    assert leave["large"] and leave["moved"] and leave["decided"]
    assert (leave["prepared"], leave["prepared_flights"], leave["left"]) == (1, 500, 0)
    assert sum(node["delivered"] for node in result["nodes"]) == rows
    for number in range(1, nodes + 1):
        check_store(tmp_path, f"kept/node-{number}")


@pytest.mark.demo
def test_with_one_node_both_kills_catch_enough_and_nothing_is_lost(tmp_path: Path) -> None:
    result, errors = result_of(tmp_path, *ONE)
    first, second = result["kills"]
    for kill in (first, second):
        # No more than the consumers' windows, and what came in place of the one batch that was acknowledged.
        assert 500 <= kill["delivered_unacknowledged"] <= (CONSUMERS + 1) * WINDOW
        assert kill["ready"] >= 5_000
    assert first["sent_unconfirmed"] > 0
    assert second["sent_unconfirmed"] == 0
    caught = first["delivered_unacknowledged"] + second["delivered_unacknowledged"]
    # What was delivered and not acknowledged comes again; an acknowledgement that was under way may have arrived.
    assert 1_000 <= result["redelivered"] <= caught
    assert "SIGKILL while the producer sends" in errors
    check_store(tmp_path, "kept")


MEMORY_ONLY = """
import meshq.demo._broker_process as role
broker = role.Broker
role.Broker = lambda name, data_dir, **settings: broker(name, data_dir=None, **settings)
"""
UNMARKED = """
from meshq.client import Delivery
Delivery.redelivered = False
"""
GIVES_BACK = """
import meshq.demo._consumer_process as role
acknowledge = role.acknowledge
async def give_back(consumer, deliveries):
    role.acknowledge = acknowledge
    await consumer.nack(*deliveries)
    return bytes([1]) * len(deliveries)
role.acknowledge = give_back
"""


# Each ring has a share of its own of every run: here all of them get the whole of it.
DEALS_TWICE = """
import meshq.broker.ingress._distribution as sharing
plan = sharing.plan
def twice(rings, rows, **options):
    return [share._replace(rows=range(rows[0], rows[-1] + 1)) for share in plan(rings, rows, **options)]
sharing.plan = twice
"""


FEW = ("--rows", "500", "--no-kill")
LEAVING = ("--discover", "--nodes", str(MOVING_NODES_MIN), "--rows", str(moving_rows_min(MOVING_NODES_MIN)))
# The nodes say that nothing was redistributed.
NEVER_REDISTRIBUTES = """
import meshq.demo._broker_process as role
numbers = role.numbers
async def without(*arguments):
    import attrs
    return attrs.evolve(await numbers(*arguments), redistributed=0)
role.numbers = without
"""
STAYS_AT_ITS_PORT = """
import meshq.demo._nodes as nodes
restart = nodes.Nodes.restart
async def at_its_port(self, member):
    port = member.port_for_nodes
    member.port_for_nodes = 0
    self.start_broker = lambda one: (setattr(one, "port_for_nodes", port), type(self).start_broker(self, one))
    await restart(self, member)
    del self.start_broker
nodes.Nodes.restart = at_its_port
"""
NOTHING_IS_LARGE = """
import meshq.demo._discovery as discovery
discovery.LARGE_BYTES = 102_400
"""


@pytest.mark.demo
@pytest.mark.parametrize(
    ("sabotage", "arguments", "named"),
    [
        pytest.param(MEMORY_ONLY, ONE, ["lost: "], id="a-broker-without-a-disk"),
        pytest.param(UNMARKED, ONE, ["duplicate: "], id="redelivery-without-a-mark"),
        pytest.param(GIVES_BACK, ("--nodes", "1", *FEW), ["duplicate: "], id="again-after-the-confirm"),
        pytest.param(
            NEVER_REDISTRIBUTES + STAYS_AT_ITS_PORT + NOTHING_IS_LARGE,
            LEAVING,
            [
                "messages stranded on node 2 0 were",
                "came back at the same place",
                "left without a large message",
            ],
            id="what-is-stranded-and-a-port-stay-and-nothing-is-large",
        ),
        pytest.param(DEALS_TWICE, ("--nodes", "2", *FEW), ["duplicate: "], id="dealt-to-two-nodes"),
    ],
)
def test_a_planted_fault_is_named_and_is_status_1(
    tmp_path: Path, sabotage: str, arguments: tuple[str, ...], named: list[str]
) -> None:
    with Demo(tmp_path, *arguments, sabotage=sabotage) as demo:
        status, output, errors = demo.wait()
    assert status == 1, errors
    differs = output.partition("This differs:")[2]
    assert [text for text in named if text not in differs] == []


CONSUMER_FAILS = """
import meshq.demo._consumer_process as role
def describe(*_):
    raise RuntimeError("a fault was planted here")
role.describe = describe
"""


@pytest.mark.demo
def test_a_process_that_fails_ends_the_demo_and_its_error_is_shown(tmp_path: Path) -> None:
    with Demo(tmp_path, "--nodes", "1", "--rows", "500", "--no-kill", sabotage=CONSUMER_FAILS) as demo:
        status, output, errors = demo.wait()
    assert (status, output) == (1, "")
    assert "ended with status 1" in errors
    assert "a fault was planted here" in errors


@pytest.mark.demo
@pytest.mark.parametrize("moment", ["while processes start", "after the first kill"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, moment: str) -> None:
    with Demo(tmp_path, *TWO) as demo:
        if moment == "while processes start":
            _until(lambda: len(demo.processes()) >= 2 or demo.process.poll() is not None)
        else:
            demo.said("SIGKILL of node 2 while")
        demo.process.send_signal(signal.SIGINT)
        status, output, errors = demo.wait()
    assert (status, output) == (130, "")
    assert "Traceback" not in errors


BROKER_DOES_NOT_COME_BACK = """
import pathlib
import meshq.demo._broker_process as role
start = role.run_broker
async def run_broker(parent, data_dir, *arguments):
    if not any(pathlib.Path(data_dir).iterdir()):
        return await start(parent, data_dir, *arguments)
    pathlib.Path("down").touch()
    await parent.hear()
role.run_broker = run_broker
"""


@pytest.mark.demo
def test_ctrl_c_while_the_broker_is_down_leaves_nothing(tmp_path: Path) -> None:
    with Demo(tmp_path, *ONE, sabotage=BROKER_DOES_NOT_COME_BACK) as demo:
        _until(lambda: (tmp_path / "down").exists() or demo.process.poll() is not None)
        demo.process.send_signal(signal.SIGINT)
        status, _, errors = demo.wait()
        assert status == 130, errors


@pytest.mark.demo
def test_a_second_ctrl_c_does_not_wait_for_a_process_that_hangs(tmp_path: Path) -> None:
    with Demo(tmp_path, *ONE) as demo:
        demo.said("at work")
        children = [pid for pid in demo.processes() if pid != demo.process.pid]
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        demo.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert demo.process.poll() is None
        demo.process.send_signal(signal.SIGINT)
        status, _, errors = demo.wait()
        assert status == 130, errors
    assert time.monotonic() - began < 8.0


@pytest.mark.demo
def test_sigterm_ends_it_as_well_and_keeps_what_was_to_be_kept(tmp_path: Path) -> None:
    with Demo(tmp_path, *ONE, "--data-dir", "kept") as demo:
        demo.said("at work")
        demo.process.terminate()
        assert demo.wait()[0] == 143
    assert any((tmp_path / "kept").iterdir())


@pytest.mark.demo
def test_no_process_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL, "--data-dir", "kept") as demo:
        demo.said("at work")
        demo.process.kill()
        demo.process.wait()
        _until(lambda: demo.processes() == [])


# Enough never waits for the node that stands still: it does so for good.
STAYS_FROZEN = """
import pathlib
import meshq.demo._broker_process as role
import meshq.demo._kill_plan as plan
plan.WAITING_MIN = 1_000_000
freeze = role.freeze
def frozen():
    pathlib.Path("frozen").touch()
    freeze()
role.freeze = frozen
"""


@pytest.mark.demo
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_node_that_stands_still_ends_with_the_demo(tmp_path: Path, ending: signal.Signals) -> None:
    with Demo(tmp_path, *TWO, "--data-dir", "kept", sabotage=STAYS_FROZEN) as demo:
        _until(lambda: (tmp_path / "frozen").exists() or demo.process.poll() is not None)
        began = time.monotonic()
        demo.process.send_signal(ending)
        if ending == signal.SIGINT:
            status, _, errors = demo.wait()
            assert status == 130, errors
        else:
            demo.process.wait()
            _until(lambda: demo.processes() == [])
    # Nobody had to be killed because the patience of the demo was at its end.
    assert time.monotonic() - began < STOP_SECONDS


# The first choice of ports has one that is not free any more.
PORT_IS_TAKEN = """
import socket
import meshq.demo._nodes as nodes
free = nodes.free_ports
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
async def free_ports(count):
    nodes.free_ports = free
    print("a port is taken", file=__import__("sys").stderr, flush=True)
    return [*await free(count - 1), listener.getsockname()[1]]
nodes.free_ports = free_ports
"""


@pytest.mark.demo
def test_a_port_that_somebody_else_has_taken_meanwhile_is_chosen_anew(tmp_path: Path) -> None:
    with Demo(tmp_path, "--nodes", "2", "--rows", "500", "--no-kill", sabotage=PORT_IS_TAKEN) as demo:
        status, output, errors = demo.wait()
    assert status == 0, errors
    assert "a port is taken" in errors
    assert "All 500 flights" in output


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


@pytest.mark.demo
def test_on_a_terminal_there_is_a_bar_and_the_result_goes_where_output_goes(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    command = [sys.executable, "-m", "meshq", "demo", "--nodes", "1", "--rows", "500", "--no-kill"]
    environment = os.environ | {"TERM": "xterm", "TMPDIR": str(tmp_path), "PYTHONPATH": SOURCE}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], PATIENCE_SECONDS)[0]:
        try:
            drawn += os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "━".encode() in drawn
    assert b"500/500" in drawn
    assert "All 500 flights" in output
