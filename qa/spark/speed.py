"""Rows that Spark reads and writes a second: ``python -m qa.spark.speed --result spark_speed``.

In one run and one session, on two cores: queues in batch, with bodies alone and with everything that a message has,
bodies of 100 bytes and of 1 KiB; beside Spark's own source of rows without a sink, and Parquet files of the same data;
and topics of Kafka, where ``MESHQ_KAFKA`` has its servers and Spark has Kafka's source (``PYSPARK_SUBMIT_ARGS`` with
``--packages``).  And the time of a micro-batch, beside that of Spark's source of rows.

Of each it says whose code the processor time went to: all of the broker is this project's, all of Java is Spark's,
and the workers are sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from meshq.blocking import Client, connect
from qa.broker_process import BrokerProcess
from qa.results import ResultFile, ResultFormat, about_here, add_result_option
from qa.spark import sampler
from qa.spark.__main__ import session

FORMAT: Final = ResultFormat("spark_speed")
#: Rows by the bytes of a body, and so often each is measured after a first time.
ROWS: Final = {100: 2_000_000, 1_024: 400_000}
TIMES: Final = 2
#: Rows of a send when the queue is filled, of a micro-batch, and the number of these.
BATCH: Final = 5_000
MICRO_ROWS: Final = 1_000
MICRO_BATCHES: Final = 8
#: The same for large micro-batches, of which the rows a second count.
STREAM_ROWS: Final = 100_000
STREAM_BATCHES: Final = 5
#: Seconds for the micro-batches of a query, on a machine that others use, too.
PATIENCE_S: Final = 400
#: The goals, for bodies of 100 bytes; and the share of the processor time below which this project is not what is slow.
READ_GOAL: Final = 1_000_000
WRITE_GOAL: Final = 500_000
SHARE_GOAL: Final = 0.2
#: The variable with the servers of Kafka.
KAFKA: Final = "MESHQ_KAFKA"
#: Seconds until what the workers have counted is written down; functions that are named.
_NOTED_S: Final = 0.3
#: Seconds between two looks for workers.
_LOOK_S: Final = 0.05
_NAMED: Final = 8
SEGMENT_BYTES: Final = 10 << 20
_ROOT: Final = Path(__file__).parents[2]


def descendants(pid: int) -> list[int]:
    """The processes below a process."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def cpu_s(process: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Meter:
    """The processor times of a run, by kind of process, and where in the workers they went."""

    broker: int
    java: int
    samples: Path
    #: What each worker has taken when it was seen last: Spark ends workers, and their time stays.
    _seen: dict[int, float] = attrs.field(factory=dict, init=False)

    def seconds(self) -> dict[str, float]:
        """Return the processor seconds of each kind of process until now."""
        for pid in descendants(self.java):
            with suppress(OSError):
                self._seen[pid] = max(cpu_s(pid), self._seen.get(pid, 0.0))
        return {"broker": cpu_s(self.broker), "java": cpu_s(self.java), "python": sum(self._seen.values())}

    def _watch(self, over: threading.Event) -> None:
        """Look for workers, which may be gone when the work is over."""
        while not over.wait(_LOOK_S):
            self.seconds()

    def measured(self, rows: int, work: Callable[[], object], after: Callable[[], object]) -> dict[str, Any]:
        """The best of some runs: rows a second, and the processor time of each kind; ``after``: not measured."""
        work()
        after()
        best: dict[str, Any] = {}
        for _ in range(TIMES):
            found = self._once(rows, work)
            after()
            if not best or found["rows_per_s"] > best["rows_per_s"]:
                best = found
        return best

    def _once(self, rows: int, work: Callable[[], object]) -> dict[str, Any]:
        counted, before, began = sampler.counted(self.samples), self.seconds(), time.monotonic()
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,))
        watch.start()
        try:
            work()
        finally:
            took = time.monotonic() - began
            over.set()
            watch.join()
        now = self.seconds()
        time.sleep(_NOTED_S)
        places = sampler.counted(self.samples) - counted
        cpu = {name: round(now[name] - before[name], 2) for name in now}
        whole = max(0.01, sum(cpu.values()))
        ours = {place.partition(" ")[2]: seconds for place, seconds in places.items() if place.startswith("meshq ")}
        return {
            "rows_per_s": round(rows / took),
            "seconds": round(took, 2),
            "cpu_s": cpu,
            # Where others use the machine, too, the processor time says more than the clock does.
            "rows_per_s_of_two_cores": round(rows * 2 / whole),
            "share_of_this_project": round((cpu["broker"] + sum(ours.values())) / whole, 2),
            "us_a_row": {
                "broker": round(cpu["broker"] * 1e6 / rows, 2),
                "this project in workers": round(sum(ours.values()) * 1e6 / rows, 2),
                "all": round(whole * 1e6 / rows, 2),
            },
            "in_workers_us_a_row": {
                place: round(seconds * 1e6 / rows, 3)
                for place, seconds in sorted(ours.items(), key=lambda one: -one[1])[:_NAMED]
            },
        }


class Speed:
    """The measurements, in one session."""

    def __init__(self, spark: Any, url: str, client: Client, folder: Path, meter: Meter) -> None:
        self._spark = spark
        self._url = url
        self._client = client
        self._folder = folder
        self._meter = meter

    def _nothing(self, frame: Any) -> None:
        frame.write.format("noop").mode("append").save()

    def _read(self, queue: str, **options: str) -> Any:
        reader = self._spark.read.format("meshq").option("url", self._url).option("subscribe", queue)
        return reader.option("minPartitions", "2").options(**options).load()

    def _save(self, frame: Any, topic: str) -> None:
        frame.write.format("meshq").mode("append").option("url", self._url).option("topic", topic).save()

    def _kafka(self, size: int, frame: Any) -> dict[str, Callable[[], object]]:
        """The same with topics of Kafka, where there is one."""
        servers = os.environ.get(KAFKA)
        if not servers:
            return {}
        run = f"meshq-speed-{os.getpid()}-{size}"

        def save(topic: str) -> None:
            frame.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic).save()

        save(f"{run}-read")
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
        reader = reader.option("subscribe", f"{run}-read").option("minPartitions", "2")
        return {
            "Kafka, read": lambda: self._nothing(reader.load()),
            "Kafka, write": lambda: save(f"{run}-write"),
        }

    def of_bodies(self, size: int, rows: int) -> dict[str, Any]:
        """All of them for bodies of a size."""
        queue, copy = f"orders-{size}", f"copy-{size}"
        for name in (queue, copy):
            self._client.create_queue(name)
        for _ in range(rows // BATCH):
            self._client.send_many(queue, [bytes(size)] * BATCH)
        frame = self._spark.range(0, rows, 1, 2).selectExpr(f"cast(repeat('x', {size}) as binary) as value")
        keyed = frame.selectExpr("value", "cast('key' as binary) as key", "cast(1 as int) as priority")
        timed = frame.selectExpr("value", "cast(86400000 as bigint) as ttl_ms")
        files = str(self._folder / f"parquet-{size}")
        work: dict[str, Callable[[], object]] = {
            "read, bodies as columns": lambda: self._nothing(self._read(queue).select("value")),
            "read, Kafka's columns": lambda: self._nothing(self._read(queue)),
            "read, all columns": lambda: self._nothing(self._read(queue, includeMetadata="true")),
            "write, bodies as columns": lambda: self._save(frame, copy),
            "write, keys and priorities": lambda: self._save(keyed, copy),
            "write, row by row": lambda: self._save(timed, copy),
            "Spark's own rows to nothing": lambda: self._nothing(frame),
            "Parquet, write": lambda: frame.write.mode("overwrite").parquet(files),
            "Parquet, read": lambda: self._nothing(self._spark.read.parquet(files)),
            **self._kafka(size, frame),
        }
        return {
            name: self._meter.measured(rows, one, lambda: self._client.purge_queue(copy)) for name, one in work.items()
        }

    def micro_batches(self, queue: str, rows: int, count: int) -> dict[str, float]:
        """Milliseconds of a micro-batch to nothing, from a queue and from Spark's own source."""
        self._client.create_queue(queue)
        for _ in range(rows * count // min(rows, BATCH)):
            self._client.send_many(queue, [bytes(100)] * min(rows, BATCH))
        ours = self._spark.readStream.format("meshq").option("url", self._url).option("subscribe", queue)
        own = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(rows))
        return {
            "queue": self._micro_batch(ours.option("maxOffsetsPerTrigger", str(rows)).load(), f"{queue}-ours", count),
            "Spark's own rows": self._micro_batch(own.load(), f"{queue}-own", count),
        }

    def _micro_batch(self, frame: Any, name: str, count: int) -> float:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self._folder / name))
        query = writer.start()
        times: dict[int, float] = {}
        until = time.monotonic() + PATIENCE_S
        while len(times) < count and time.monotonic() < until:
            time.sleep(0.2)
            found = [one for one in query.recentProgress if one["numInputRows"]]
            times.update({one["batchId"]: one["durationMs"]["triggerExecution"] for one in found})
        query.stop()
        # The first ones start processes.
        return statistics.median(list(times.values())[2:])


def measure(scale: float, sizes: Sequence[int]) -> dict[str, Any]:
    """Measure everything; ``scale``: the share of the rows; ``sizes``: the bytes of bodies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = folder / "samples"
        samples.mkdir()
        os.environ[sampler.FOLDER] = str(samples)
        broker = BrokerProcess(str(folder / "store"), segment_bytes=SEGMENT_BYTES)
        try:
            url = broker.next_report()
            if not isinstance(url, str) or not url.startswith("tcp://"):
                raise RuntimeError(f"the broker has not started: {url}")
            spark = session(folder)
            assert broker.process.pid is not None
            meter = Meter(broker.process.pid, spark.sparkContext._gateway.proc.pid, samples)
            with connect(url) as client:
                speed = Speed(spark, url, client, folder, meter)
                found: dict[str, Any] = {"bytes": {}}
                for size in sizes:
                    rows = int(ROWS[size] * scale)
                    found["bytes"][str(size)] = {"rows": rows, **speed.of_bodies(size, rows)}
                found["micro_batch_ms"] = speed.micro_batches("micro", MICRO_ROWS, MICRO_BATCHES)
                large = int(STREAM_ROWS * scale)
                times = speed.micro_batches("stream", large, STREAM_BATCHES)
                found["stream_rows_per_s"] = {name: round(large * 1_000 / taken) for name, taken in times.items()}
            spark.stop()
        finally:
            broker.process.kill()
            broker.close()
    return found


def goals_of(small: dict[str, Any]) -> dict[str, Any]:
    """Compare the figures of small bodies with the goals."""
    works = {"read": "read, bodies as columns", "write": "write, bodies as columns"}
    return {
        name: {
            "goal": goal,
            "met": small[works[name]]["rows_per_s"] >= goal,
            "rows_per_s_of_two_cores": small[works[name]]["rows_per_s_of_two_cores"],
            "share_of_this_project": small[works[name]]["share_of_this_project"],
        }
        for name, goal in (("read", READ_GOAL), ("write", WRITE_GOAL))
    }


def main() -> int:
    """Measure, print and keep it; 0 if each goal is met, or less than a fifth of the time is this project's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the rows")
    parser.add_argument("--bytes", type=int, choices=ROWS, help="only bodies of so many bytes")
    add_result_option(parser, FORMAT, "write", _ROOT)
    given = parser.parse_args()
    sizes = tuple(ROWS) if given.bytes is None else (given.bytes,)
    found = measure(given.scale, sizes)
    goals = goals_of(found["bytes"]["100"]) if "100" in found["bytes"] else {}
    command = " ".join(["python -m qa.spark.speed", *sys.argv[1:]])
    result = {"command": command, **about_here(), **found, "goals": goals}
    print(json.dumps(result, indent=1))
    file: ResultFile | None = given.result
    if file is not None:
        file.write(result)
    return 0 if all(one["met"] or one["share_of_this_project"] < SHARE_GOAL for one in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
