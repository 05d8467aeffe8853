"""What tests of Spark share: jobs against a broker, and what queues and ledgers hold afterwards."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import Acceptor
from meshq.blocking import Broker, Client, connect


def _streams() -> bool:
    try:
        return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
    except ModuleNotFoundError:
        # There is no Spark at all, which the session says.
        return True


#: For tests that read a stream.
reads_streams = pytest.mark.skipif(not _streams(), reason="PySpark 4.1 reads no streams of queues")


@attrs.frozen
class Job:
    """A session of Spark and a broker that its jobs read and write."""

    spark: Any
    url: str
    client: Client

    def read(self, subscribe: str, **options: object) -> Any:
        """A batch read."""
        return self._with(self.spark.read, subscribe=subscribe, **options).load()

    def stream(self, subscribe: str, **options: object) -> Any:
        """A streaming read."""
        queues = {"subscribe": subscribe} if subscribe else {}
        return self._with(self.spark.readStream, **queues, **options).load()

    def save(self, frame: Any, **options: object) -> None:
        """A batch write."""
        self._with(frame.write, **options).mode("append").save()

    def start(self, frame: Any, checkpoint: Path, *, available_now: bool = True, **options: object) -> Any:
        """Start a query that writes to the broker."""
        writer = self._with(frame.writeStream, **options).option("checkpointLocation", str(checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, frame: Any, checkpoint: Path, **options: object) -> None:
        """Run a query to the end of what is there."""
        self.start(frame, checkpoint, **options).awaitTermination()

    def _with(self, builder: Any, **options: object) -> Any:
        builder = builder.format("meshq")
        for name, value in ({"url": self.url} | options).items():
            builder = builder.option(name.replace("__", "."), value)
        return builder

    def bodies(self, queue: str) -> list[str]:
        """The bodies of what waits in a queue, in order."""
        with self.client.consumer(queue, browse=True) as browser:
            return [message.body.decode() for message in browser]

    def check_nothing_is_left(self) -> None:
        """See that there is no stage, that batches are placed, and that no cursor has an owner.

        Spark ends the process that has the cursors when it comes to it: if not at once, their leases run out.
        """
        until = time.monotonic() + 30
        while self._left() and time.monotonic() < until:
            time.sleep(0.02)
        left = self._left()
        assert not left, left

    def _left(self) -> list[object]:
        client = self.client
        placing = [sink for sink in client.sinks() if sink.placing]
        return [*client.stages(), *placing, *(cursor for cursor in client.cursors() if cursor.holder)]


@contextmanager
def job(
    spark: Any,
    folder: Path | None = None,
    *,
    login: dict[str, Any] | None = None,
    acceptor: str | Acceptor = "tcp://127.0.0.1:0",
    **settings: Any,
) -> Iterator[Job]:
    """A broker, and jobs against it."""
    with (
        Broker("hq", data_dir=folder, acceptors=[acceptor], **settings) as broker,
        connect(broker.urls[0], **(login or {})) as client,
    ):
        yield Job(spark, broker.urls[0], client)


def texts(numbers: range) -> list[bytes]:
    """Bodies."""
    return [b"%d" % number for number in numbers]
