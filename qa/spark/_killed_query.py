"""A query that copies one queue into another, and is killed and started again until everything is there."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from meshq.blocking import Client, connect
from qa.spark._killing_source import KillingSource, Strikes
from qa.spark._mesh import Mesh

#: Messages of a run, and of a batch.
MESSAGES: Final = 60
_BATCH: Final = 25
#: Seconds until a run has ended.
_PATIENCE_S: Final = 90.0
#: Seconds until the process of a query that has ended has released its cursor.
_RELEASE_S: Final = 5.0


class NodeDeath(NamedTuple):
    """The death of a node: which one, so many seconds after the start of a run, and for so many seconds."""

    node: int
    after_s: float
    for_s: float


class KilledQuery:
    """The query, the nodes that it reads and writes, each in a process of its own, and the number of messages sent."""

    def __init__(self, spark: Any, folder: Path, *, nodes: int = 1) -> None:
        spark.dataSource.register(KillingSource)
        self._spark = spark
        self._folder = folder
        (folder / "kills").mkdir()
        self.strikes = Strikes(str(folder / "kills"))
        self._sent = 0
        self._mesh = Mesh(folder, nodes)
        for number in range(nodes):
            with self._client(number) as client:
                client.create_queue("orders")

    def _client(self, number: int) -> Client:
        return connect(self._mesh.url_of(number), use_topology=False)

    def close(self) -> None:
        """End the nodes."""
        self._mesh.close()

    def send(self) -> None:
        """Send the messages of a run, a part to each node."""
        for number in range(self._mesh.count):
            with self._client(number) as client:
                bodies = range(self._sent + number, self._sent + MESSAGES, self._mesh.count)
                client.send_many("orders", [b"%d" % body for body in bodies])
        self._sent += MESSAGES

    def run(self, *, most: int = _BATCH, death: NodeDeath | None = None) -> str:
        """Run the query to its end, in batches of ``most``; return how it failed, empty if it has not."""
        options = {"url": self._mesh.url, "kills": str(self._folder / "kills"), "partitionTimeout": "20s"}
        reading = {"subscribe": "orders", "lease": "500ms", "maxOffsetsPerTrigger": str(most), "minPartitions": "2"}
        frame = self._spark.readStream.format("meshq_killing").options(**options, **reading).load()
        writer = frame.select("value").writeStream.format("meshq_killing").options(**options, topic="copy")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        if death is not None:
            time.sleep(death.after_s)
            self._mesh.kill(death.node)
            time.sleep(death.for_s)
            self._mesh.start_again(death.node)
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
        found: list[str] = []
        got: Counter[int] = Counter()
        sinks = 0
        for number in range(self._mesh.count):
            with self._client(number) as client:
                if "copy" in client.queues():
                    with client.consumer("copy", browse=True) as browser:
                        got.update(int(message.body) for message in browser)
                sinks += len(client.sinks())
                found += [f"node {number + 1}: {text}" for text in _left(client)]
        if missing := sorted(set(range(self._sent)) - set(got)):
            found.append(f"{len(missing)} of {self._sent} are missing: {missing[:5]}")
        if twice := sorted(number for number, times in got.items() if times > 1):
            found.append(f"{len(twice)} came more than once: {twice[:5]}")
        if sinks != 1:
            found.append(f"there are {sinks} sinks")
        return found


def _left(client: Client) -> list[str]:
    """The messages, stages and leases that a query has left on a node, and should not have."""
    found = []
    until = time.monotonic() + _RELEASE_S
    while any(cursor.holder for cursor in client.cursors()) and time.monotonic() < until:
        # Spark ends the process that owns the cursor after the query.
        time.sleep(0.05)
    if ready := client.queue("orders").ready:
        found.append(f"{ready} messages are left in the queue")
    found += [f"a stage is left: {stage}" for stage in client.stages()]
    found += [f"a cursor is held: {cursor}" for cursor in client.cursors() if cursor.holder or cursor.lag]
    if len(client.cursors()) != 1:
        found.append(f"there are the cursors {client.cursors()}")
    return found
