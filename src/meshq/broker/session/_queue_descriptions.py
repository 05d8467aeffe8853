"""The descriptions of the queues of this node, and of further nodes, for the links of a peer.

A link begins with a snapshot; after that each changed queue is described anew, as it is then, at the end of the pass.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._demand_updates import filters_told, is_hidden
from meshq.broker.catalog._link_credits import LinkCredits
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.session._further_queues import FurtherQueues
from meshq.broker.session._session_stream import SessionStream
from meshq.wire import AddressCredit, Binding, Frame, FrameType, LinkOpening


class QueueDescriptions:
    """Describes queues on the channels of a session, which the session keeps up to date."""

    def __init__(
        self,
        definitions: Definitions,
        release_queue: ReleaseQueue,
        stream: SessionStream,
        channels: Collection[int],
    ) -> None:
        self._definitions = definitions
        self._release_queue = release_queue
        self._stream = stream
        self._channels = channels
        #: The credits of the links at bounded addresses.
        self.credits: LinkCredits = LinkCredits(definitions.router, self._tell_credit)
        self._further = FurtherQueues(definitions, stream.put)
        # Queues of this node that are to be described at the end of the turn.
        self._changed: dict[int, None] = {}

    def changed(self, number: int) -> None:
        """Describe a queue of this node anew."""
        self._changed[number] = None
        self._stream.schedule_flush()

    def remote_changed(self, address: str) -> None:
        """Describe the queues of further nodes on an address anew, for links that have asked for these."""
        if self._further.changed(address):
            self._stream.schedule_flush()

    def bounds_changed(self, address: str) -> None:
        """Give the links credit at an address that may have become bounded, or take it back at one that is gone."""
        if self.credits.changed(address):
            self._stream.schedule_flush()

    def begin(self, channel: int, opening: LinkOpening) -> None:
        """Describe all queues on a channel, and end the snapshot once nothing is missing."""
        if opening.bounded:
            self.credits.begin(channel)
        self._further.open(channel, opening)
        unsure = self._flush_further()
        for queue in self._definitions.router.by_number.values():
            if is_hidden(queue):
                continue
            if self._definitions.numbers.is_sure(queue.number):
                self._describe(channel, queue)
            else:
                self._later(queue.number)
                unsure = True
        if unsure:
            # A node that takes this store for a new one drops what waits for queues that are not described by then.
            self._release_queue.when_all_is_durable(partial(self._end_snapshot, channel))
        else:
            self._end_snapshot(channel)

    def end(self) -> None:
        """Describe nothing more."""
        for channel in self._channels:
            self._further.close(channel)
        self.credits.end()

    def flush(self) -> None:
        """Describe the changed queues, and the bounded addresses before these."""
        self.credits.flush()
        if self._channels:
            self._flush_further()
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        for number in changed:
            if not self._definitions.numbers.is_sure(number):
                self._later(number)
                continue
            queue = self._definitions.router.by_number.get(number)
            for channel in self._channels:
                if queue is not None:
                    self._describe(channel, queue)
                else:
                    header = Binding(queue=number, gone=True)
                    self._stream.put(Frame(FrameType.BINDING, channel=channel, header=header.encode()))

    def _tell_credit(self, channel: int, number: int, address: str, until: int) -> None:
        header = AddressCredit(address=address, number=number).encode()
        self._stream.say_later(Frame(FrameType.ADDRESS_CREDIT, channel=channel, first=until, header=header))

    def _end_snapshot(self, channel: int) -> None:
        """End the snapshot: all queues were described, and later changes follow."""
        if channel in self._channels:
            self.flush()
            self._stream.put(Frame(FrameType.SNAPSHOT, channel=channel, first=len(self._definitions.router.by_number)))
            self._stream.schedule_flush()

    def _flush_further(self) -> bool:
        """Describe the changed queues of further nodes; return whether some wait until their numbers are durable."""
        unsure = self._further.flush()
        if unsure:
            self._release_queue.when_all_is_durable(self._stream.schedule_flush)
        return bool(unsure)

    def _later(self, number: int) -> None:
        """Describe a queue once its number is durable: before that, the next life might give it to another queue."""
        self._release_queue.when_all_is_durable(partial(self._described_later, number))

    def _described_later(self, number: int) -> None:
        if self._channels and number in self._definitions.router.by_number:
            self.changed(number)

    def _describe(self, channel: int, queue: Queue) -> None:
        filters = filters_told(queue)
        header = Binding(
            queue=queue.number,
            name=queue.name,
            address=queue.address,
            routing=self._definitions.router.addresses[queue.address].routing,
            consumers=len(queue.roster.consumers),
            filters=filters or (),
            filter=queue.spec.filter_text,
            durable=queue.durable,
            precise=filters is not None,
        )
        self._stream.put(Frame(FrameType.BINDING, channel=channel, header=header.encode()))
