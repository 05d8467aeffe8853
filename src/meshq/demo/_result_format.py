"""The result of the demo: the delivered figures beside the figures of the file, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from meshq.demo._flights_format import Flight
from meshq.demo._settings import node_name
from meshq.demo._steps._step_result_format import KillResult, LeaveResult, MoveResult
from meshq.demo._tally_machine import CarrierCount, Tally

#: Flights named in full where some are lost or duplicate.
NAMED_MAX: Final = 3
_COLUMNS: Final = ("carrier", "flights", "in the file", "with delay", "in the file", "sum of dep_delay", "in the file")


@attrs.frozen(kw_only=True)
class NodeCount:
    """The counts of one node, by its consumers and by itself."""

    node: int
    #: Flights that came here, each counted at one node; deliveries that were a redelivery, or a duplicate.
    delivered: int
    redelivered: int
    duplicates: int
    #: Messages that it still held at the end, for its own consumers or for other nodes.
    left: int


@attrs.frozen(kw_only=True)
class Result:
    """The result of a run: all counts."""

    rows: int
    confirmed: int
    delivered: int
    lost: int
    redelivered: int
    duplicates: int
    nodes: Sequence[NodeCount]
    #: Both sides by carrier: delivered, in the file.
    carriers: Mapping[str, tuple[CarrierCount, CarrierCount]]
    kills: Sequence[KillResult]
    moves: Sequence[MoveResult] = ()
    leave: LeaveResult | None = None
    #: What is not as it should be, a sentence each; empty if all is well.
    differences: Sequence[str]
    #: Seconds of each phase, in order.
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return sum(self.phases.values())


def count_file(flights: Iterable[Flight]) -> dict[str, CarrierCount]:
    """The file's own numbers."""
    counts: dict[str, CarrierCount] = {}
    for flight in flights:
        count = counts.get(flight.carrier)
        if count is None:
            count = counts[flight.carrier] = CarrierCount()
        count.add(flight.delay)
    return counts


@attrs.define
class Steps:
    """The results of the steps of a run, as they come."""

    kills: list[KillResult] = attrs.field(factory=list)
    moves: list[MoveResult] = attrs.field(factory=list)
    leave: LeaveResult | None = None

    @property
    def differences(self) -> list[str]:
        """The missing evidence of all steps, a sentence each."""
        steps = [*self.kills, *self.moves, *([self.leave] if self.leave is not None else ())]
        return [text for step in steps for text in step.differences]


def conclude(
    tally: Tally,
    *,
    confirmed: int,
    steps: Steps,
    left: Sequence[int],
    phases: Mapping[str, float],
) -> Result:
    """Make the result of a run, from its steps and the messages ``left`` in each node."""
    verdict = tally.verdict(confirmed)
    own, rows = count_file(tally.flights), len(tally.flights)
    carriers = {
        carrier: (tally.counts.get(carrier) or CarrierCount(), own.get(carrier) or CarrierCount())
        for carrier in sorted({**own, **tally.counts})
    }

    nodes = [
        NodeCount(
            node=number,
            delivered=tally.delivered_to[name := node_name(number)],
            redelivered=verdict.redelivered_to.get(name, 0),
            duplicates=verdict.duplicates_to.get(name, 0),
            left=held,
        )
        for number, held in enumerate(left, 1)
    ]

    def named(what: str, flights: list[int]) -> list[str]:
        if not flights:
            return []
        examples = ", ".join(tally.flights[row].key.decode() for row in flights[:NAMED_MAX])
        return [f"{what}: {len(flights):,}, first of them {examples}"]

    differences = [
        *named("lost", verdict.lost),
        *named("duplicate", verdict.duplicates),
        *_unless_zero("not confirmed to the producer", rows - confirmed),
        *_unless_zero("delivered and not in the file", tally.foreign),
        *_unless_zero("delivered with a body, properties and duplicate id that don't fit each other", tally.altered),
        *_unless_zero("still in the queue at the end", sum(left)),
        *steps.differences,
        *(text for carrier, (ours, files) in carriers.items() for text in _carrier_differences(carrier, ours, files)),
    ]
    return Result(
        rows=rows,
        confirmed=confirmed,
        delivered=tally.delivered,
        lost=len(verdict.lost),
        redelivered=verdict.redelivered,
        duplicates=len(verdict.duplicates),
        nodes=nodes,
        carriers=carriers,
        kills=tuple(steps.kills),
        moves=tuple(steps.moves),
        leave=steps.leave,
        differences=differences,
        phases=phases,
    )


def _unless_zero(what: str, count: int) -> list[str]:
    return [f"{what}: {count:,}"] if count else []


def _carrier_differences(carrier: str, ours: CarrierCount, files: CarrierCount) -> list[str]:
    pairs = (
        ("flights", ours.flights, files.flights),
        ("flights with a departure delay", ours.delays, files.delays),
        ("minutes of departure delay", ours.delay_sum, files.delay_sum),
    )
    return [f"{carrier}: {a:,} {what} delivered, {b:,} in the file" for what, a, b in pairs if a != b]


def as_json(result: Result) -> str:
    """The result for programs: one object."""
    values: dict[str, Any] = attrs.asdict(result, filter=lambda field, _: field.name not in ("carriers", "phases"))
    for kill in values["kills"]:
        kill["seconds_down"] = round(kill["seconds_down"], 3)
    for step in [*values["moves"], *([values["leave"]] if values["leave"] else ())]:
        step["seconds"] = round(step["seconds"], 3)
    values["differences"] = list(result.differences)
    values["ok"] = not result.differences
    values["carriers"] = {
        carrier: {"delivered": attrs.asdict(ours), "in_the_file": attrs.asdict(files)}
        for carrier, (ours, files) in result.carriers.items()
    }
    values["phases"] = {name: round(seconds, 3) for name, seconds in result.phases.items()}
    values["seconds"] = round(result.seconds, 3)
    return json.dumps(values, indent=2)


def as_table(result: Result) -> str:
    """The result for people."""
    rows = [_numbers(carrier, ours, files) for carrier, (ours, files) in result.carriers.items()]
    sides = list(zip(*result.carriers.values(), strict=True)) or [(), ()]
    rows.append(_numbers("all", _total(sides[0]), _total(sides[1])))
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [_line(_COLUMNS, widths), rule, *(_line(row, widths) for row in rows[:-1]), rule, _line(rows[-1], widths)]
    lines += [
        "",
        f"lost         {result.lost:>9,}  confirmed to the producer, never delivered",
        f"redelivered  {result.redelivered:>9,}  came again, marked so, the first acknowledgement not confirmed",
        f"duplicates   {result.duplicates:>9,}  any other second delivery",
        "",
    ]
    several = len(result.nodes) > 1
    if several:
        lines += [*map(_node_line, result.nodes), ""]
    lines += [_kill_line(number, kill, several) for number, kill in enumerate(result.kills, 1)]
    if not result.kills:
        lines.append("No node was killed." if several else "The broker was not killed.")
    lines += [
        f"MOVE {number}, {move.whose} of node {move.node} to node {move.to_node}: {move.what}"
        for number, move in enumerate(result.moves, 1)
    ]
    if result.leave is not None:
        lines.append(f"DRAIN of node {result.leave.node}: {result.leave.what}")
    lines += ["", *_closing(result)]
    return "\n".join(lines)


def _total(counts: Iterable[CarrierCount]) -> CarrierCount:
    total = CarrierCount()
    for count in counts:
        total.flights += count.flights
        total.delays += count.delays
        total.delay_sum += count.delay_sum
    return total


def _numbers(carrier: str, ours: CarrierCount, files: CarrierCount) -> tuple[str, ...]:
    numbers = (ours.flights, files.flights, ours.delays, files.delays, ours.delay_sum, files.delay_sum)
    return (carrier, *(f"{number:,}" for number in numbers))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return "  ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])


def _node_line(count: NodeCount) -> str:
    left = f", {count.left:,} left" if count.left else ""
    return (
        f"node {count.node}  {count.delivered:>9,} flights, {count.redelivered:,} redelivered, "
        f"{count.duplicates:,} duplicates{left}"
    )


def _kill_line(number: int, kill: KillResult, several: bool) -> str:
    whom = f" of node {kill.node}" if several else ""
    caught = [f"{kill.delivered_unacknowledged:,} delivered and not acknowledged"]
    if kill.waiting:
        caught.append(f"{kill.waiting:,} waiting for it")
    if kill.ready or not several:
        caught.append(f"{kill.ready:,} ready")
    if kill.sent_unconfirmed:
        caught.append(f"{kill.sent_unconfirmed:,} sent and not confirmed")
    back = f"back after {kill.seconds_down:.1f} s{kill.moved_to}"
    return f"SIGKILL {number}{whom}, {kill.when}: caught {', '.join(caught)}; {back}"


def _closing(result: Result) -> list[str]:
    if not result.differences:
        return [f"All {result.rows:,} flights in {result.seconds:.1f} s: nothing lost, no duplicate, numbers equal."]
    return ["This differs:", *(f"  {difference}" for difference in result.differences)]
