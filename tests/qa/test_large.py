"""The measurement of one very large message."""

from __future__ import annotations

from pathlib import Path

from qa.large import bytes_in


def test_a_file_that_goes_while_a_directory_is_measured_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(300))
    # Listed, and gone when its size is asked for.
    (tmp_path / "gone").symlink_to(tmp_path / "missing")
    assert bytes_in(tmp_path) == 300
