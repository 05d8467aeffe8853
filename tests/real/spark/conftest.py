"""One session of Spark for all tests of this folder: to start it takes as long as a dozen of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
#: Spark starts processes to plan each job, from daemons that it names itself: these have everything imported, too.
PRELOADING = """import sys
if "pyspark.daemon" in sys.orig_argv:
    import meshq.spark.hooks, pyspark.sql.worker.plan_data_source_read, pyspark.worker
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of Spark with two cores, which nobody else reaches."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {' and '.join(missing)}: pip install '.[spark]'")
    if shutil.which("java") is None:
        pytest.skip("there is no Java: apt-get install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    where = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={where} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.local.dir": str(where),
        "spark.sql.warehouse.dir": str(where / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # To compile what runs for a moment takes longer than to interpret it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "meshq.spark.hooks._preloading_daemon",
    }
    # Otherwise it is the first python3 of the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Its workers import what tests register.
    path = os.environ.get("PYTHONPATH")
    (where / "site").mkdir()
    (where / "site" / "sitecustomize.py").write_text(PRELOADING)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(where / "site"), str(ROOT), *([path] if path else [])])
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    del os.environ["PYSPARK_PYTHON"]
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path
