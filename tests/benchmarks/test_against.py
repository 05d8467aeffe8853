"""Two commits are compared by the same workloads, fairly, and with the product that is meant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks import __main__ as command
from benchmarks import against, report, results
from benchmarks.processes import ROOT, BenchmarkError, Process
from benchmarks.row import Row
from benchmarks.rows import chosen
from benchmarks.runner import measure
from benchmarks.workload import Workload

HAS_HISTORY = (ROOT / ".git").exists()
needs_history = pytest.mark.skipif(not HAS_HISTORY, reason="needs the repository of git")
INSIDE = Workload(kind="inprocess", count=200, frame=100, durable=False)
#: Which meshq a process has.
SAYS_WHICH = [sys.executable, "-c", "import json, meshq; print(json.dumps({'file': meshq.__file__}), flush=True)"]
PATIENCE = 20.0


def row_of(key: str) -> Row:
    (row,) = [row for row in chosen(None) if row.key == key]
    return row


def compared(key: str, *pairs: tuple[float, float], metric: str = "rate") -> dict[str, Any]:
    """A comparison with these figures of now and then."""
    result = against.empty("0123456789ab")
    runs = [{"ours": {metric: now, "cpu_us": 2.0}, "against": {metric: then, "cpu_us": 4.0}} for now, then in pairs]
    against.add(result, row_of(key), runs)
    return result


def product_of(directory: Path, product: str) -> Path:
    """Where a benchmark process with this product has its meshq from."""
    with Process(SAYS_WHICH, name="which", directory=directory, product=product) as process:
        return Path(process.hear(PATIENCE)["file"])


@pytest.mark.real
@needs_history
def test_a_process_has_the_product_of_the_commit_and_otherwise_that_of_this_checkout(tmp_path: Path) -> None:
    with against.checked_out("HEAD") as (commit, product):
        assert len(commit) == 12
        assert product_of(tmp_path, str(product)) == product / "meshq" / "__init__.py"
        assert not product.is_relative_to(ROOT)
    assert not product.exists()
    assert product_of(tmp_path, "") == ROOT / "src" / "meshq" / "__init__.py"


@pytest.mark.slow
@pytest.mark.real
def test_every_process_of_a_run_has_the_product_of_its_workload(tmp_path: Path) -> None:
    (tmp_path / "meshq").mkdir()
    (tmp_path / "meshq" / "__init__.py").write_text("raise SystemExit('the other product')")
    for kind in ("inprocess", "stream"):
        with pytest.raises(BenchmarkError, match="the other product"):
            measure("ours", attrs.evolve(INSIDE, kind=kind, product=str(tmp_path)))


@pytest.mark.processes
@pytest.mark.real
@needs_history
def test_a_quick_comparison_runs_and_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(results.DIRECTORY.iterdir())
    assert command.main(["--against", "HEAD", "--quick", "--rows", "P6-batches", "--messages", "2000"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.startswith("row")
    assert line.startswith("P6-batches")
    assert sorted(results.DIRECTORY.iterdir()) == before


@needs_history
@pytest.mark.parametrize("name", ["no-such-commit", "--help", "HEAD:src"])
def test_what_is_no_commit_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([f"--against={name}", "--quick"]) == 2
    assert "no such commit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pairs", "4"], "--pairs 4: --against takes at least 5"),
        (["--systems", "ours"], "--systems ours: --against runs meshq only"),
        (["--quick", "--result", "example"], "not worth"),
    ],
)
def test_what_would_compare_nothing_is_refused(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--against", "HEAD", *options]) == 2
    assert says in capsys.readouterr().err


class Measured:
    """In place of ``measure``: notes whose turn it was, and fails where it is told to."""

    def __init__(self, *fails: int) -> None:
        self.sides: list[str] = []
        self._fails = fails

    def __call__(self, system: str, workload: Workload) -> dict[str, float]:
        assert system == "ours"
        self.sides.append("against" if workload.product else "ours")
        if len(self.sides) in self._fails:
            raise BenchmarkError("failed")
        return {"rate": 3.0 if workload.product else 6.0, "broker_cpu_us": 1.0, "producer_cpu_us": 2.0}


def test_each_side_is_first_in_every_other_pair() -> None:
    measured = Measured()
    runs, failed = against.run_pairs(row_of("P1"), INSIDE, Path("elsewhere"), 3, measured)
    assert measured.sides == ["ours", "against", "against", "ours", "ours", "against"]
    assert failed == 0
    assert [(run["ours"]["rate"], run["against"]["rate"]) for run in runs] == [(6.0, 3.0)] * 3
    assert runs[0]["ours"]["cpu_us"] == 3.0


def test_a_pair_of_which_one_fails_takes_no_part() -> None:
    runs, failed = against.run_pairs(row_of("P1"), INSIDE, Path("elsewhere"), 3, Measured(4))
    assert (len(runs), failed) == (2, 1)


def test_a_ratio_is_taken_within_its_pair_and_has_its_spread() -> None:
    entry = compared("P1", (100, 200), (300, 300), (80, 100))["rows"]["P1"]
    assert entry["ratio"]["rate"] == {"median": 0.8, "minimum": 0.5, "maximum": 1.0}
    assert entry["median"]["ours"]["rate"] == 100
    assert entry["median"]["against"]["rate"] == 200
    assert entry["ratio"]["cpu_us"]["median"] == 0.5
    assert len(entry["runs"]) == 3


@pytest.mark.parametrize(("now", "down", "word"), [(969, True, "more than 3 % down"), (970, False, "ok")])
def test_a_rate_that_is_more_than_three_percent_down_is_said(now: float, down: bool, word: str) -> None:
    result = compared("P1", (now, 1_000))
    assert result["rows"]["P1"]["down"] is down
    (cells,) = report.compared_lines(result)
    assert cells[-1] == word
    assert len(cells) == len(report.COMPARED)


def test_only_a_rate_can_be_down() -> None:
    result = compared("P8", (100, 1), metric="bytes_per_message")
    assert "down" not in result["rows"]["P8"]
    (cells,) = report.compared_lines(result)
    assert (cells[1], cells[-1]) == ("a million messages queued: memory each", "-")


def test_a_comparison_goes_on_where_it_was_and_has_its_place_on_the_page(tmp_path: Path) -> None:
    result = compared("P1", (100, 200))
    results.save(result, tmp_path)
    assert against.opened("0123456789ab", "against", replace=False, directory=tmp_path) == result
    assert against.opened("0123456789ab", "against", replace=True, directory=tmp_path)["rows"] == {}
    page = report.page(f"{report.BEGIN}{report.END}", report.recorded(tmp_path))
    assert "beside `0123456789ab`" in page
    assert "| P1 | durable, synced, pipelined, 100 B | 100/s | 200/s | 0.5 | 0.5 | 0.5 | 0.5 | 1 | more" in page


def test_a_comparison_with_another_commit_is_not_mixed_in(tmp_path: Path) -> None:
    results.save(compared("P1", (1, 2)), tmp_path)
    with pytest.raises(results.ResultError, match="against 0123456789ab, here it is ba9876543210"):
        against.opened("ba9876543210", "against", replace=False, directory=tmp_path)
    results.save(results.empty("against"), tmp_path)
    with pytest.raises(results.ResultError, match="kind benchmark"):
        against.opened("0123456789ab", "against", replace=False, directory=tmp_path)


@pytest.mark.parametrize("path", sorted(results.DIRECTORY.glob("*.json")), ids=lambda path: path.name)
def test_a_recorded_comparison_has_enough_pairs_and_all_fields(path: Path) -> None:
    if not results.is_benchmark(path, against.KIND):
        pytest.skip("not a comparison")
    result = json.loads(path.read_text())
    assert set(results.FIELDS) | {"against"} <= set(result)
    assert result["rows"]
    for key, entry in result["rows"].items():
        assert len(entry["runs"]) >= against.PAIRS_MIN, key
        for ratio in entry["ratio"].values():
            assert ratio["minimum"] <= ratio["median"] <= ratio["maximum"]
