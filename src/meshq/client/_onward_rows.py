"""The envelopes of delivered messages that go on to another broker.

What is the same around many messages is worked out once: the envelope of a message follows from its kind, its headers,
its properties and its sender's duplicate id, beside what its run says.  Messages that have come together usually differ
in none of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq.client.incoming._spans import DeliverySpan
from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.receive._delivery import Delivery
from meshq.client.send._envelope import EnvelopeEncoder, Row
from meshq.client.send._send_batches import BridgedMessage, SendBatch, cut_rows
from meshq.wire import HEADER_BRIDGED, KIND_ID, KIND_PROPERTIES


class OnwardRuns:
    """Deliveries as runs for another broker.

    ``describe``: makes of a delivery the message of a bridge that goes on, without its id.
    """

    def __init__(self, describe: Callable[[Delivery], BridgedMessage], encoder: EnvelopeEncoder, stamp: int) -> None:
        self._describe = describe
        self._encoder = encoder
        self._stamp = stamp

    def of(
        self, spans: Sequence[DeliverySpan], ids: Callable[[DeliverySpan], Sequence[bytes]] | None, batch: SendBatch
    ) -> list[OutgoingRun]:
        """Return the runs of some spans, in order.  ``ids``: makes the bridge ids of a span; None: there are none.

        Raises:
            MeshqError: a message can't go on as it is.
        """
        bodies: list[bytes] = []
        rows: list[Row] = []
        durable: list[bool] = []
        for span in spans:
            view = span.run.view
            view.read_bodies()
            data, start, end = view.data, span.start, span.start + span.rows
            bodies += [data[low:high] for low, high in zip(view.starts[start:end], view.ends[start:end], strict=True)]
            rows += self._rows(span, ids(span) if ids is not None else None)
            durable += [span.run.durable] * span.rows
        return cut_rows(bodies, rows, durable, self._stamp, batch)

    def _rows(self, span: DeliverySpan, ids: Sequence[bytes] | None) -> list[Row]:
        run, start, count = span
        end = start + count
        view = run.view
        kinds, headers = view.kinds()[start:end], view.headers_between(start, end)
        kind = kinds[0]
        first = Delivery(run, start)
        alike = kinds.count(kind) == headers.count(headers[0]) == count and not kind & KIND_PROPERTIES
        if alike and (not kind & KIND_ID or _is_bridged(first)):
            kind, own, beside, properties = self._row(first, ids)
            return [(kind, one, beside, properties) for one in ids or [own] * count]
        known: dict[tuple[int, bytes, bytes, bytes], Row] = {}
        rows: list[Row] = []
        for row in range(count):
            at = start + row
            key = kinds[row], headers[row], view.properties(at), view.duplicate_id(at)
            found = known.get(key)
            if found is None:
                found = known[key] = self._row(Delivery(run, at), ids)
            rows.append(found if ids is None else (found[0], ids[row], found[2], found[3]))
        return rows

    def _row(self, delivery: Delivery, ids: Sequence[bytes] | None) -> Row:
        """The envelope of a message, with the id of another one."""
        message = self._describe(delivery)
        return (message if ids is None else message._replace(bridge_id=ids[0])).row(self._encoder)


def _is_bridged(delivery: Delivery) -> bool:
    """Whether a bridge's id stands where the sender's duplicate id does."""
    return type(delivery._header(HEADER_BRIDGED)) is bytes
