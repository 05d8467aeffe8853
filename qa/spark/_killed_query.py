"""A query that copies one queue into another, and is killed and started again until everything is there."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from meshq.blocking import Client, connect
from qa.broker_process import BrokerProcess
from qa.spark._killing_source import KillingSource, Strikes

#: Messages of a run, and of a batch.
MESSAGES: Final = 60
_BATCH: Final = 25
#: Seconds until a run has ended.
_PATIENCE_S: Final = 60.0
#: Seconds until the process of a query that has ended has released its cursor.
_RELEASE_S: Final = 5.0


class KilledQuery:
    """The query, its broker in another process, and the number of messages sent."""

    def __init__(self, spark: Any, folder: Path) -> None:
        spark.dataSource.register(KillingSource)
        self._spark = spark
        self._folder = folder
        (folder / "kills").mkdir()
        self.strikes = Strikes(str(folder / "kills"))
        self._port = 0
        self._start()
        self._sent = 0
        with self._client() as client:
            client.create_queue("orders")

    def _start(self) -> None:
        self._broker = BrokerProcess(str(self._folder / "store"), self._port)
        url = self._broker.next_report()
        if not isinstance(url, str) or not url.startswith("tcp://"):
            raise RuntimeError(f"the broker has not started: {url}")
        self._url = url
        self._port = int(url.rpartition(":")[2])

    def _client(self) -> Client:
        return connect(self._url)

    def close(self) -> None:
        """End the broker."""
        self._broker.process.kill()
        self._broker.close()

    def kill_broker(self) -> None:
        """Kill the broker, and start it again over the same store."""
        self.close()
        self._start()

    def send(self) -> None:
        """Send the messages of a run."""
        with self._client() as client:
            client.send_many("orders", [b"%d" % number for number in range(self._sent, self._sent + MESSAGES)])
        self._sent += MESSAGES

    def run(self, *, most: int = _BATCH, broker_dies_after_s: float | None = None) -> str:
        """Run the query to its end, in batches of ``most``; return how it failed, empty if it has not."""
        options = {"url": self._url, "kills": str(self._folder / "kills"), "partitionTimeout": "20s"}
        reading = {"subscribe": "orders", "lease": "500ms", "maxOffsetsPerTrigger": str(most), "minPartitions": "2"}
        frame = self._spark.readStream.format("meshq_killing").options(**options, **reading).load()
        writer = frame.select("value").writeStream.format("meshq_killing").options(**options, topic="copy")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        if broker_dies_after_s is not None:
            time.sleep(broker_dies_after_s)
            self.kill_broker()
        try:
            if not query.awaitTermination(_PATIENCE_S):
                query.stop()
                return "the query has not ended"
        except Exception as error:
            if type(error).__name__ != "StreamingQueryException":
                raise
            return str(error)
        return ""

    def problems(self) -> list[str]:
        """Return the broken promises of a finished run: each message once, and nothing left behind."""
        found = []
        with self._client() as client:
            with client.consumer("copy", browse=True) as browser:
                got = Counter(int(message.body) for message in browser)
            if missing := sorted(set(range(self._sent)) - set(got)):
                found.append(f"{len(missing)} of {self._sent} are missing: {missing[:5]}")
            if twice := sorted(number for number, times in got.items() if times > 1):
                found.append(f"{len(twice)} came more than once: {twice[:5]}")
            until = time.monotonic() + _RELEASE_S
            while any(cursor.holder for cursor in client.cursors()) and time.monotonic() < until:
                # Spark ends the process that owns the cursor after the query.
                time.sleep(0.05)
            if left := client.queue("orders").ready:
                found.append(f"{left} messages are left in the queue")
            found += [f"a stage is left: {stage}" for stage in client.stages()]
            found += [f"a cursor is held: {cursor}" for cursor in client.cursors() if cursor.holder or cursor.lag]
            if len(client.cursors()) != 1 or len(client.sinks()) != 1:
                found.append(f"there are {client.cursors()} and {client.sinks()}")
        return found
