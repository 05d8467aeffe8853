"""Result files add up, say what they were made on, and give the page its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import report, results
from benchmarks.rows import SYSTEMS, chosen

KEYS = [row.key for row in chosen(None)]


def result_with(**runs: results.Runs) -> dict[str, Any]:
    """A result with these runs: ``P1=[...]``."""
    result = results.empty("example")
    for key, of_row in runs.items():
        (row,) = [row for row in chosen(None) if row.key == key]
        results.add(result, row, of_row)
    return result


def rates(ours: float, floor: float, redis: float) -> dict[str, dict[str, float]]:
    return {"ours": {"rate": ours}, "floor": {"rate": floor}, "redis": {"rate": redis}}


def line_of(result: dict[str, Any], title: str) -> list[str]:
    """The line of the table with this title."""
    (found,) = [cells for cells in report.lines(result) if title in cells[1]]
    return found


@pytest.mark.parametrize("path", sorted(results.DIRECTORY.glob("*.json")), ids=lambda path: path.name)
def test_a_recorded_benchmark_has_all_fields_and_only_known_rows(path: Path) -> None:
    if not results.is_benchmark(path):
        pytest.skip("not a benchmark")
    result = results.load(path)
    assert result["name"] == path.stem
    assert result["commands"]
    assert result["commit"]
    assert result["machine"]["cores"] >= 1
    assert {"python", "trio", "msgpack"} <= set(result["versions"])
    assert set(result["rows"]) <= set(KEYS)
    for key, entry in result["rows"].items():
        assert entry["runs"], key
        for run in entry["runs"]:
            assert set(run) <= set(SYSTEMS)


@pytest.mark.parametrize("path", sorted(results.DIRECTORY.glob("*.json")), ids=lambda path: path.name)
def test_a_recorded_synced_row_has_its_syncs(path: Path) -> None:
    if not results.is_benchmark(path):
        pytest.skip("not a benchmark")
    for row in chosen(None):
        if row.family in ("P9", "P10", "P15", "P16", "P17"):
            # What their nodes sync has nothing to do with the end of a run.
            continue
        for run in results.load(path)["rows"].get(row.key, {"runs": []})["runs"]:
            for system, figures in run.items():
                synced = row.workloads[system].durable and "rate" in figures
                assert ("syncs_per_s" in figures) is synced, (row.key, system)


def test_the_page_of_figures_is_up_to_date() -> None:
    assert command.main(["--check-docs"]) == 0


def test_a_median_is_over_all_runs_and_a_ratio_is_within_each() -> None:
    result = result_with(P1=[rates(100, 200, 10), rates(300, 300, 100)])
    results.add(result, chosen("P1")[0], [rates(200, 100, 50)])
    entry = result["rows"]["P1"]
    assert [entry["median"][system]["rate"] for system in SYSTEMS] == [200, 200, 50]
    assert entry["ratio"] == {"rate": {"floor": 1.0, "redis": 4.0}}
    assert len(entry["runs"]) == 3


def test_a_run_that_failed_takes_no_part() -> None:
    entry = result_with(P1=[{"floor": {"rate": 200.0}}, rates(100, 200, 10)])["rows"]["P1"]
    assert entry["ratio"]["rate"]["floor"] == 0.5
    assert entry["median"]["ours"]["rate"] == 100


def test_a_target_that_is_missed_is_said() -> None:
    assert line_of(result_with(P1=[rates(500, 1_000, 200)]), "pipelined, 100 B")[8] == "ok"
    assert line_of(result_with(P1=[rates(499, 1_000, 100)]), "pipelined, 100 B")[8] == "missed"
    assert line_of(result_with(P1=[rates(500, 1_000, 201)]), "pipelined, 100 B")[8] == "missed"


def test_a_floor_that_is_too_low_is_said() -> None:
    assert "reaches 4 x Redis (at least 4: ok)" in report.yardstick(result_with(P1=[rates(1, 400, 100)]))
    assert "3.99 x Redis (at least 4: missed" in report.yardstick(result_with(P1=[rates(1, 399, 100)]))
    assert "not held" in report.yardstick(result_with(P1=[{"floor": {"rate": 400.0}}]))


def test_an_absolute_target_looks_at_our_figure() -> None:
    idle = {"rss_mib": 60.0, "cpu_percent": 0.11, "wakeups_per_s": 3.0}
    result = result_with(P13=[{"ours": idle}])
    assert line_of(result, "memory")[2:9] == ["60 MiB", "-", "-", "-", "-", "≤ 60 MiB", "ok"]
    assert line_of(result, "CPU")[8] == "missed"
    assert line_of(result, "wake-ups")[8] == "-"


def test_a_target_that_was_not_measured_is_neither_met_nor_missed() -> None:
    assert line_of(result_with(P1=[{"ours": {"rate": 5.0}}]), "pipelined, 100 B")[8] == "-"


def test_a_synced_row_shows_its_syncs() -> None:
    run = rates(1_000, 1_000, 100)
    run["ours"]["syncs_per_s"] = 1_234.0
    assert line_of(result_with(P1=[run]), "pipelined, 100 B")[9] == "1,234 / - / -"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.5, "0.5 /s"),
        (12.345, "12.3 /s"),
        (4_567.8, "4,568/s"),
        (45_678, "45,680/s"),
        (812_345, "812,300/s"),
    ],
)
def test_figures_have_no_more_digits_than_they_are_worth(value: float | None, text: str) -> None:
    assert report.figure(value, "/s").replace(" ", "") == text.replace(" ", "")


def test_a_table_has_a_heading_and_as_many_cells_in_every_line() -> None:
    body = list(report.lines(result_with(P1=[rates(1, 2, 3)], P3=[rates(1, 2, 3)])))
    table = report.markdown_table(body).splitlines()
    assert len(table) == 4
    assert {line.count("|") for line in table} == {len(report.HEADINGS) + 1}
    assert len(report.text_table(body).splitlines()) == 3


def test_the_page_shows_a_row_that_was_not_measured_and_what_was_promised_of_it() -> None:
    (line,) = [cells for cells in report.lines(result_with(), whole=True) if cells[0] == "P7"]
    assert line[2:] == ["-", "-", "-", "-", "-", "≥ 0.05 x floor", "-", "-"]
    assert list(report.lines(result_with())) == []
    page = report.page(f"{report.BEGIN}{report.END}", [result_with(P1=[rates(1, 2, 3)])])
    assert "| P7 | forwarded" in page


def test_the_page_keeps_what_stands_around_the_figures() -> None:
    old = f"before\n{report.BEGIN}\nold figures\n{report.END}\nafter\n"
    new = report.page(old, [result_with(P1=[rates(1, 2, 3)])])
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "old figures" not in new
    assert "durable, synced, pipelined, 100 B" in new
    assert report.page(new, [result_with(P1=[rates(1, 2, 3)])]) == new


def test_a_page_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for figures"):
        report.page("nothing here", [])


def test_a_saved_result_goes_on_where_it_was(tmp_path: Path) -> None:
    result = result_with(P1=[rates(1, 2, 3)])
    results.save(result, tmp_path)
    assert results.opened("example", replace=False, directory=tmp_path) == result
    assert results.opened("example", replace=True, directory=tmp_path)["rows"] == {}


@pytest.mark.parametrize("field", ["commit", "machine", "versions"])
def test_figures_of_something_else_are_not_mixed_in(field: str, tmp_path: Path) -> None:
    results.save(result_with() | {field: "another"}, tmp_path)
    with pytest.raises(results.ResultError, match=f"{field} another.*--replace"):
        results.opened("example", replace=False, directory=tmp_path)


@pytest.mark.parametrize("field", results.FIELDS)
def test_a_result_without_a_field_is_refused(field: str, tmp_path: Path) -> None:
    result = result_with()
    del result[field]
    path = tmp_path / "example.json"
    path.write_text(json.dumps(result))
    with pytest.raises(results.ResultError, match=field):
        results.load(path)


def test_a_quick_run_is_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--result", "example"]) == 2
    assert "not worth" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--rows", "P99"], ["--systems", "kafka"]])
def test_a_wrong_name_is_refused_with_the_known_ones(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert "there are" in capsys.readouterr().err
