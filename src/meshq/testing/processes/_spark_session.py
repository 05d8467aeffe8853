"""A session of Spark for tests: on this machine, small, and gone with its process when the tests are over."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

#: Two tasks at a time, each tried twice.
MASTER: Final = "local[2,2]"
INSTALL: Final = "pip install 'meshq[spark]'"
#: The process of Spark has so many seconds to end.
END_S: Final = 30.0
SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Nobody else reaches it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # To compile what runs for a moment takes longer than to interpret it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.log.level": "ERROR",
}
#: The variable of the environment that names the Python of Spark's workers.
PYTHON: Final = "PYSPARK_PYTHON"


def why_no_spark() -> str:
    """Return why Spark can't run here, with the command that changes it; empty: it can."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {' and '.join(missing)}: {INSTALL}"
    if shutil.which("java") is None:
        return "there is no Java, which Spark needs: apt-get install openjdk-17-jre-headless"
    return ""


@contextmanager
def spark_session(where: Path) -> Iterator[Any]:
    """Start a session of Spark that keeps its files in ``where``; end it and its process after the block."""
    options = f"-Djava.io.tmpdir={where} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    places = {"spark.local.dir": str(where), "spark.sql.warehouse.dir": str(where / "warehouse")}
    before = os.environ.get(PYTHON)
    # Otherwise it is the first python3 of the path, which may have no meshq.
    os.environ[PYTHON] = sys.executable
    try:
        builder = importlib.import_module("pyspark.sql").SparkSession.builder.master(MASTER).appName("meshq_spark")
        for name, value in {**SETTINGS, **places, "spark.driver.extraJavaOptions": options}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        gateway = session.sparkContext._gateway
        try:
            yield session
        finally:
            session.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(END_S)
            # Another session of this process would look for the one that has ended.
            type(session.sparkContext)._gateway = None
            type(session.sparkContext)._jvm = None
    finally:
        if before is None:
            del os.environ[PYTHON]
        else:
            os.environ[PYTHON] = before
