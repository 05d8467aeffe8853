"""The process of the query: Spark computes windows of flights, and writes each to one queue, and some to another."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import trio

from meshq.demo._parent import Parent
from meshq.demo._report_format import Progress, Ready
from meshq.demo._settings import QUEUE
from meshq.demo._sparked._hours_format import CARRIER_FIELD, DELAY_FIELD, HOUR_FIELD
from meshq.demo._sparked._settings import ALERT_DEPARTED, ALERT_MINUTES, ALERTS, DELAYS, LEASE

#: Seconds between two looks at the query.
LOOK_S: Final = 0.1
#: The file with the table, in the folder of the query.
TABLE: Final = "delays.csv"
_FLIGHT: Final = (
    f"to_timestamp(fields[{HOUR_FIELD}]) as hour",
    f"fields[{CARRIER_FIELD}] as carrier",
    f"try_cast(fields[{DELAY_FIELD}] as int) as delay",
)
_TEXT: Final = "concat_ws(',', date_format(window.start, \"yyyy-MM-dd'T'HH\"), carrier, flights, departed, delay)"
_TOPICS: Final = (
    f"if(departed >= {ALERT_DEPARTED} and delay >= {ALERT_MINUTES} * departed, "
    f"array('{DELAYS}', '{ALERTS}'), array('{DELAYS}'))"
)


def session(folder: str) -> Any:
    """Make a session of Spark on this machine alone."""
    builder_of_sessions = importlib.import_module("pyspark.sql").SparkSession.builder
    # Otherwise it is the first python3 of the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = builder_of_sessions.master("local[2,8]").appName("flights")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.local.dir": folder,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        # To compile what runs for moments takes longer than to interpret it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Its workers are forked from what has imported everything.
        "spark.python.daemon.module": "meshq.spark.hooks._preloading_daemon",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start(spark: Any, folder: str, url: str, *, watermark_s: int, most: int) -> Any:
    """Start the query; ``watermark_s``: how far a flight may be behind another one; ``most``: flights of a batch."""
    functions = importlib.import_module("pyspark.sql.functions")
    options = {"url": url, "subscribe": QUEUE, "lease": LEASE, "maxOffsetsPerTrigger": str(most)}
    lines = spark.readStream.format("meshq").options(**options).load()
    flights = lines.selectExpr("split(cast(value as string), ',') as fields").selectExpr(*_FLIGHT)
    windows = flights.withWatermark("hour", f"{watermark_s} seconds").groupBy(
        functions.window("hour", "1 hour"), "carrier"
    )
    sums = [
        functions.count("*"),
        functions.count("delay"),
        functions.coalesce(functions.sum("delay"), functions.lit(0)),
    ]
    named = [one.alias(name) for one, name in zip(sums, ("flights", "departed", "delay"), strict=True)]
    written = windows.agg(*named).selectExpr(f"{_TEXT} as value", f"explode({_TOPICS}) as topic")
    writer = written.writeStream.format("meshq").option("url", url).outputMode("append")
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()


def write_table(spark: Any, folder: str, url: str) -> None:
    """Read the windows of all nodes, and write them into a file."""
    frame = spark.read.format("meshq").option("url", url).option("subscribe", DELAYS).load()
    rows = frame.selectExpr("cast(value as string) as value").collect()
    Path(folder, TABLE).write_text("".join(f"{row.value}\n" for row in rows), encoding="utf-8")


def end(spark: Any) -> None:
    """End Spark and its Java."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


async def run_query(parent: Parent, folder: str, url: str, watermark_s: str, most: str) -> None:
    """Run the query until the parent has had enough; then write the table down."""
    in_thread = trio.to_thread.run_sync
    spark = await in_thread(session, folder)
    query = await in_thread(lambda: start(spark, folder, url, watermark_s=int(watermark_s), most=int(most)))
    await parent.say(Ready())
    ended = trio.Event()

    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            if await parent.hear() is None:
                # Nobody is there any more: Java ends with this process.
                nursery.cancel_scope.cancel()
            ended.set()

        nursery.start_soon(listen)
        rows, batch, said = 0, -1, -1
        while not ended.is_set():
            if await in_thread(lambda: not query.isActive):
                # Raises what it has failed with.
                await in_thread(query.awaitTermination)
            for one in await in_thread(lambda: query.recentProgress):
                if one["batchId"] > batch:
                    batch, rows = one["batchId"], rows + one["numInputRows"]
            if batch > said:
                said = batch
                await parent.say(Progress(rows, batch))
            with trio.move_on_after(LOOK_S):
                await ended.wait()
        await in_thread(query.stop)
        await in_thread(write_table, spark, folder, url)
        await in_thread(end, spark)
        await parent.say(Progress(rows, batch, finished=True))
        nursery.cancel_scope.cancel()
