"""Whose code processor time goes to, as it is counted in the workers of Spark."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from qa.spark import sampler


def test_a_file_is_of_this_project_of_sparks_or_of_neither() -> None:
    ours = Path(sampler.__file__).parents[2] / "src" / "meshq" / "spark" / "hooks" / "_sink.py"
    assert sampler.owner_of(str(ours)) == "meshq"
    assert sampler.owner_of("/lib/site-packages/pyspark/worker.py") == "spark"
    assert sampler.owner_of("/jobs/pyspark.zip/pyspark/serializers.py") == "spark"
    assert sampler.owner_of("/lib/meshq/site-packages/pyarrow/compute.py") == ""


def test_time_goes_to_the_innermost_function_with_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            sum(range(100))

    monkeypatch.setattr(sampler, "owner_of", lambda path: "meshq" if path == __file__ else "")
    busy = threading.Thread(target=work)
    busy.start()
    try:
        seen = sampler.Sampler(tmp_path)
        while seen.seconds < 0.02:
            seen.look()
    finally:
        done.set()
        busy.join()
    seen.note()
    (file,) = tmp_path.glob("*.json")
    counted = sampler.counted(tmp_path)
    assert json.loads(file.read_text()) == dict(counted)
    assert any(place.startswith("meshq test_spark_sampler.py:") and ".work" in place for place in counted)
