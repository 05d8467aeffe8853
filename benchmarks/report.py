"""Tables: the same lines for a terminal and for ``docs/performance.md``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import against
from benchmarks.bystanders import FOREIGN_PERCENT_MAX
from benchmarks.processes import ROOT
from benchmarks.results import DIRECTORY, KIND, is_benchmark, load, verdict
from benchmarks.row import Line, Row, Target
from benchmarks.rows import chosen

PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- figures: made by `python -m benchmarks --docs` -->"
END = "<!-- figures: end -->"
HEADINGS = ("row", "what", "meshq", "floor", "Redis", "x floor", "x Redis", "target", "", "syncs/s")
#: Of a comparison of two commits.
COMPARED = ("row", "what", "now", "then", "now / then", "least", "most", "CPU now / then", "pairs", "")
NOTHING = "-"
#: The entry of a row that a result doesn't have: it was not there yet, or what it needs.
NOT_MEASURED: Mapping[str, Any] = {"median": {}, "ratio": {}}


def figure(value: float | None, unit: str = "") -> str:
    """A number as people write it."""
    if value is None:
        return NOTHING
    if value >= 10_000:
        text = f"{round(value, -2):,.0f}" if value >= 100_000 else f"{round(value, -1):,.0f}"
    elif value >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".replace(" /s", "/s").rstrip()


def cells(row: Row, line: Line, entry: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    of = {system: entry["median"].get(system, {}).get(line.metric) for system in ("ours", "floor", "redis")}
    ratios = entry["ratio"].get(line.metric, {})
    outcomes = [verdict(entry, line.metric, target) for target in line.targets]
    word = {True: "ok", False: "missed", None: NOTHING}
    outcome = False if False in outcomes else None if None in outcomes or not outcomes else True
    return [
        row.key,
        line.title,
        *(figure(of[system], line.unit) for system in ("ours", "floor", "redis")),
        *(figure(ratios.get(other)) for other in ("floor", "redis")),
        ", ".join(_target(target, line) for target in line.targets) or NOTHING,
        word[outcome],
        _syncs(entry),
    ]


def _target(target: Target, line: Line) -> str:
    return str(target) if target.against else f"{target} {line.unit}"


def _syncs(entry: Mapping[str, Any]) -> str:
    """meshq's, the floor's and Redis's syncs per second."""
    each = [entry["median"].get(s, {}).get("syncs_per_s") for s in ("ours", "floor", "redis")]
    return NOTHING if not any(each) else " / ".join(figure(value) for value in each)


def lines(result: Mapping[str, Any], *, whole: bool = False) -> Iterator[list[str]]:
    """All lines of a result, in the order of the rows; ``whole``: those that it hasn't measured, too."""
    for row in chosen(None):
        if whole or row.key in result["rows"]:
            for line in row.lines:
                yield cells(row, line, result["rows"].get(row.key, NOT_MEASURED))


def yardstick(result: Mapping[str, Any]) -> str:
    """Whether the floor is what it has to be."""
    for row in chosen(None):
        reached = result["rows"].get(row.key, {}).get("floor_to_redis")
        if row.floor_to_redis and reached is not None:
            word = "ok" if reached >= row.floor_to_redis else "missed: mend the floor first"
            return (
                f"In {row.key} the floor reaches {figure(reached)} x Redis (at least {row.floor_to_redis:g}: {word})."
            )
    return "The floor was not held against Redis."


def compared_lines(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """A line for each figure that a comparison of two commits has."""
    for row in chosen(None):
        entry = result["rows"].get(row.key, NOT_MEASURED)
        for line in row.lines:
            if line.metric in entry["ratio"]:
                yield _compared_cells(row, line, entry)


def _compared_cells(row: Row, line: Line, entry: Mapping[str, Any]) -> list[str]:
    ratio, cpu = entry["ratio"][line.metric], entry["ratio"].get(against.CPU, {})
    down = against.is_down(entry) if line.metric == "rate" else None
    return [
        row.key,
        line.title,
        *(figure(entry["median"][side][line.metric], line.unit) for side in against.SIDES),
        *(figure(ratio[name]) for name in ("median", "minimum", "maximum")),
        figure(cpu.get("median")),
        str(len(entry["runs"])),
        {True: "more than 3 % down", False: "ok", None: NOTHING}[down],
    ]


def text_table(body: Sequence[Sequence[str]], headings: Sequence[str] = HEADINGS) -> str:
    """For a terminal."""
    table = [list(headings), *body]
    widths = [max(len(cells[at]) for cells in table) for at in range(len(headings))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip() for cells in table)


def markdown_table(body: Sequence[Sequence[str]], headings: Sequence[str] = HEADINGS) -> str:
    """For the documentation."""
    table = [list(headings), ["---"] * len(headings), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """The figures of all result files; a row that none has measured stands in each."""
    if not results:
        return "No figures are recorded yet."
    measured = {row for result in results if result["kind"] != against.KIND for row in result["rows"]}
    return "\n\n".join(
        _compared_section(result) if result["kind"] == against.KIND else _section(result, measured)
        for result in results
    )


def _facts(result: Mapping[str, Any]) -> str:
    """What it ran on."""
    machine, versions = result["machine"], result["versions"]
    facts = [
        f"{machine['cores']} cores",
        *([f"{machine['memory_gib']} GiB"] if "memory_gib" in machine else []),
        machine["system"],
        machine["file_system"],
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    return f"{', '.join(facts)}."


def _compared_section(result: Mapping[str, Any]) -> str:
    return "\n\n".join(
        [
            f"## {result['name']}",
            f"Commit `{result['commit']}` beside `{result['against']}`, {result['date']}; "
            "by the same benchmarks, in turn, which goes first changing from pair to pair.\n"
            "A ratio is taken within its pair; shown are the median, the least and the most of all pairs. "
            "*CPU* is what all processes together spend on a message.\n"
            f"{_facts(result)}",
            markdown_table(list(compared_lines(result)), COMPARED),
        ]
    )


def _section(result: Mapping[str, Any], elsewhere: Collection[str]) -> str:
    """``elsewhere``: the rows that another result on the page has measured."""
    runs = max((len(entry["runs"]) for entry in result["rows"].values()), default=0)

    def shown(row: str) -> bool:
        return row in result["rows"] or row not in elsewhere

    return "\n\n".join(
        [
            f"## {result['name']}",
            f"Commit `{result['commit']}`, {result['date']}; medians of up to {runs} runs in turn.\n{_facts(result)}"
            f"{_disturbed(result)}",
            markdown_table([line for line in lines(result, whole=True) if shown(line[0])]),
            yardstick(result),
        ]
    )


def _disturbed(result: Mapping[str, Any]) -> str:
    """A word about runs that were kept although others used the machine."""
    shares = [
        figures.get("foreign_percent", 0.0)
        for entry in result["rows"].values()
        for run in entry["runs"]
        for figures in run.values()
    ]
    if max(shares, default=0.0) <= FOREIGN_PERCENT_MAX:
        return ""
    least, most = f"{min(shares):.0f}", f"{max(shares):.0f}"
    used = least if least == most else f"{least} to {most}"
    return (
        f"\nOthers used {used} % of the machine meanwhile: what is held against"
        " something else of the same run says more than the figures alone."
    )


def recorded(directory: Path = DIRECTORY) -> list[dict[str, Any]]:
    """Every result file of a benchmark, newest first; other figures may lie beside them."""
    kinds = (KIND, against.KIND)
    found = [load(path) for path in sorted(directory.glob("*.json")) if any(is_benchmark(path, kind) for kind in kinds)]
    return sorted(found, key=lambda result: str(result["date"]), reverse=True)


def page(old: str, results: Sequence[Mapping[str, Any]]) -> str:
    """The page with its figures made anew; what stands around them stays."""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for figures: it needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{markdown(results)}\n\n{END}{after}"
