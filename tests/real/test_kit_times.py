"""How fast a cluster in somebody's test is, in real time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qa.kit_times import main


@pytest.mark.slow
def test_a_cluster_forms_and_ten_virtual_minutes_pass_in_five_times_what_a_quiet_machine_needs_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["--runs", "3", "--allow", "1000", "--result", "kit-times"]) == 0
    found = json.loads((tmp_path / "docs" / "results" / "kit-times.json").read_text())["kit_times"]
    assert found["runs"] == 3
    # Other programs may have the machine, too.
    assert found["formed_cpu_s"]["median"] < 5 * found["allowed"]["formed_s"]
    assert found["ten_minutes_cpu_s"]["median"] < 5 * found["allowed"]["ten_minutes_s"]
    assert main(["--runs", "1", "--allow", "0"]) == 1
