"""The client's calls for forwarders: deliveries as spans, which are sent, acknowledged and given back together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from meshq.client._onward_rows import OnwardRuns
from meshq.client.incoming._inbox import returning
from meshq.client.receive._delivery import Delivery
from meshq.client.send._send_batches import BridgedMessage, SendBatch
from meshq.errors import BusyError
from meshq.wire import FLAG_UNCOUNTED

if TYPE_CHECKING:
    from meshq.client._client import Client
    from meshq.client.incoming._spans import DeliverySpan
    from meshq.client.outgoing._outbox import OutgoingRun
    from meshq.client.receive._consumer import Consumer


async def receive_spans(consumer: Consumer, most: int, look: Callable[[], bool]) -> list[DeliverySpan]:
    """Receive up to ``most`` messages as spans, as soon as one is here; none as soon as ``look`` says that there is
    something else to do.  A task that makes ``look`` true calls ``rouse``.

    Checkpoint: always.  Cancellation: no message is lost.
    Raises:
        BusyError: another task is receiving.
        MeshqError: the consumer is gone, and why.
    """
    if consumer._busy:
        raise BusyError(f"two tasks receive from {consumer._block.name}")
    inbox, wakeup = consumer._inbox, consumer._wakeup
    consumer._busy = True
    try:
        await trio.lowlevel.checkpoint()
        while (inbox.empty or not most) and not look():
            consumer._check()
            await wakeup.wait()
            wakeup.clear()
    finally:
        consumer._busy = False
    spans = inbox.take_spans(most)
    consumer._received += sum(span.rows for span in spans)
    return spans


def rouse(consumer: Consumer) -> None:
    """Have the task that waits in ``receive_spans`` look again."""
    if consumer._wakeup.has_waiter:
        consumer._wakeup.wake()


def deliveries_of(spans: Sequence[DeliverySpan]) -> list[Delivery]:
    """Return the deliveries of some spans, in order."""
    return [Delivery(span.run, index) for span in spans for index in range(span.start, span.start + span.rows)]


def settle_spans(consumer: Consumer, spans: Sequence[DeliverySpan], *, back: bool = False) -> bool:
    """Acknowledge spans that are not settled yet, or give them ``back`` as never delivered; return False if some came
    in a session that is gone, and come again."""
    for span in spans:
        span.run.settled |= span.mask
    fate = returning(None) | (0 if consumer.routes else FLAG_UNCOUNTED) if back else 0
    fresh = [span for span in spans if span.run.epoch == consumer._inbox.epoch]
    if consumer._inbox.gather([(fate, span) for span in fresh]):
        consumer._session.stream.gathered(consumer._inbox)
    return len(fresh) == len(spans)


class Settlement:
    """The wait until the settlements of a consumer are stored; its end rouses the consumer's task."""

    __slots__ = ("_call", "_timed")

    def __init__(self, consumer: Consumer) -> None:
        session = consumer._session
        self._timed = session.deadlines.timed
        self._call = session.settle_call(consumer._inbox, lambda: rouse(consumer))
        session.pending_calls.add(self._call)
        session.stream.flush()
        self._timed[self._call] = None
        session.deadlines.look_at_timeout(self._call.since)

    @property
    def done(self) -> bool:
        """Whether it is stored, or can't be."""
        return self._call.done

    def result(self) -> None:
        """End the wait, which is done.

        Raises:
            MeshqError: whether it is stored is not known.
        """
        self.give_up()
        self._call.result()

    def give_up(self) -> None:
        """End the wait."""
        self._timed.pop(self._call, None)


class RunsOnTheWay:
    """Messages of a consumer that are sent together to another broker, without a wait for the answer."""

    __slots__ = ("_client", "batch", "runs")

    def __init__(self, client: Client, consumer: Consumer) -> None:
        self._client = client
        #: The outcome of all runs; its end rouses the consumer's task, and so does the sending of a run that waited.
        self.batch: SendBatch = SendBatch(lambda: rouse(consumer))
        self.runs: list[OutgoingRun] = []

    def send(self, address: str, runs: list[OutgoingRun]) -> None:
        """Send the runs to an address.

        Raises:
            MeshqError: the client is not open, or the address is no name.
        """
        outbox, send_queue = self._client._implicit.to(address), self._client._send_queue
        self.runs = runs
        self.batch.expect(runs)
        for run in runs:
            send_queue.submit(outbox, run)
        self._client._stream.flush()
        send_queue.start_timeout(runs)

    @property
    def done(self) -> bool:
        """Whether the outcome of all messages is known."""
        return self.batch.done

    @property
    def queued(self) -> bool:
        """Whether a run still waits for the connection, or for the target to take more."""
        last = self.runs[-1]
        return not last.done and (last.unsent or last.queued)

    @property
    def failed(self) -> bool:
        """Whether a message was refused, or its outcome is unknown."""
        return self.batch.failed

    def result(self) -> None:
        """Raise the error of the send, which is done, if it has failed.

        Raises:
            MeshqError: as ``client.send_many``.
        """
        self.batch.result()

    def end(self) -> None:
        """End the wait for the runs; unsent runs are given up."""
        if not self.batch.done:
            for run in self.runs:
                run.on("give up")
        self._client._send_queue.stop_timeout(self.runs)


def onward_runs(
    client: Client,
    sending: RunsOnTheWay,
    spans: Sequence[DeliverySpan],
    describe: Callable[[Delivery], BridgedMessage],
    ids: Callable[[DeliverySpan], Sequence[bytes]] | None,
) -> list[OutgoingRun]:
    """Return deliveries as runs for the target of ``client``.

    ``describe``: makes of a delivery what goes on, without an id; ``ids``: makes the ids of a span, None: there are
    none.

    Raises:
        MeshqError: one of them can't go on so.
    """
    return OnwardRuns(describe, client._encoder, client._env.wall.now_ms()).of(spans, ids, sending.batch)


def known_window(client: Client, address: str) -> int | None:
    """Return the window of an address, as ``window_at`` has found it; None: it has to be asked."""
    return client._implicit.windows.get(address)
