"""The fixture of a session of Spark, where there is no Spark."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tests.testing.kit.test_plugin import run


@pytest.mark.parametrize(
    ("modules", "program", "why"),
    [
        ({"pyarrow"}, "java", "not installed: pyarrow: pip install 'meshq[[]spark]'"),
        ({"pyspark", "pyarrow"}, "java", "not installed: pyspark and pyarrow: pip install 'meshq[[]spark]'"),
        (set(), None, "there is no Java, which Spark needs: apt-get install openjdk-17-jre-headless"),
    ],
)
def test_without_spark_its_fixture_skips_with_the_command_that_installs_it(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    modules: set[str],
    program: str | None,
    why: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in modules else True if name.startswith("py") else find(name, *more),
    )
    monkeypatch.setattr(shutil, "which", lambda name, *more: program)
    result = run(pytester, "def test_it(meshq_spark): pass", "-p", "no:asyncio", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED * meshq_spark: {why}"])
