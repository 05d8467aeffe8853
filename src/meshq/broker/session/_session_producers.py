"""The producers of a session: their runs are checked, placed and confirmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from meshq.address import MANAGEMENT, parse_target
from meshq.broker.access._access import may_have, permit, permit_run, permit_sending
from meshq.broker.catalog._address_quota import is_refused
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._names import check_request_target, check_sendable
from meshq.broker.catalog._settings_table import SettingsTable
from meshq.broker.events._advisories_plan import ProducerClosed, ProducerCreated
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._filters_at import costly, filters_at
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._judged_ids import check_network_ids
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.management._management_requests import ManagementRequests
from meshq.broker.queue._run import StoredRun
from meshq.broker.session._body_blocks import BodyBlocks
from meshq.broker.session._disk_space import DiskSpace
from meshq.broker.session._principal import Principal
from meshq.broker.session._producer_credits import ProducerCredits
from meshq.broker.session._producer_state import ProducerState, check_window
from meshq.broker.session._session_calls import SessionCalls
from meshq.broker.session._session_channels import SessionChannels
from meshq.broker.session._session_credit import SessionCredit
from meshq.broker.session._session_stream import SessionStream
from meshq.broker.work._closing import Closing
from meshq.broker.work._fair_scheduler import CostlyScan, FairScheduler
from meshq.errors import MeshqError, RemoteProtocolError, UsageError, caused, invariant
from meshq.notifications import Notification
from meshq.wire import (
    FLAG_DURABLE,
    FLAG_LARGE,
    FLAG_RESENT,
    KIND_PLAIN,
    Frame,
    FrameType,
    Produce,
    Refuse,
    RunBytes,
    check_run,
    decline,
    header_of,
    refusal_of,
    violation,
)


class Judged(NamedTuple):
    """A run that is put to filters before it is taken: its frame, and the kinds of its messages."""

    frame: Frame
    run: StoredRun
    kinds: int


def _content_of(frame: Frame) -> tuple[RunBytes, int]:
    """The content of a run, and the kinds of its messages.

    Raises:
        RemoteProtocolError: it can't be read.
    """
    if frame.plain is not None:
        return frame.plain, KIND_PLAIN
    content = RunBytes(frame.count, frame.table, 0, frame.body)  # type: ignore[arg-type]
    return content, check_run(content)


class SessionProducers:
    """The open producers of one session."""

    def __init__(
        self,
        principal: Principal,
        stream: SessionStream,
        *,
        ingress: Ingress,
        definitions: Definitions,
        release_queue: ReleaseQueue,
        disk_space: DiskSpace,
        memory: MemoryBound,
        fair_scheduler: FairScheduler,
        requests: ManagementRequests,
        closing: Closing,
        calls: SessionCalls,
        channels: SessionChannels,
        credit: SessionCredit,
        body_blocks: BodyBlocks,
        event_bus: EventBus,
    ) -> None:
        self._event_bus = event_bus
        self._ingress = ingress
        self._definitions = definitions
        self._release_queue = release_queue
        self._disk_space = disk_space
        self._memory = memory
        self._fair_scheduler = fair_scheduler
        self._closing = closing
        self._principal = principal
        self._stream = stream
        self._calls = calls
        self._channels = channels
        self._credit = credit
        #: The large bodies that come in.
        self.body_blocks: BodyBlocks = body_blocks
        self._requests = requests
        #: The open producers, by channel.
        self.channels: dict[int, ProducerState] = channels.producers
        self.credits: ProducerCredits = ProducerCredits(definitions.router, stream, channels.producers)
        #: The highest number to confirm at the end of the turn, by channel.
        self.confirms: dict[int, int] = {}
        # The run that waits first on the link, while it is put to filters, and until it is placed.
        self._judged: Judged | None = None

    def open(self, frame: Frame) -> None:
        """A producer begins on a channel of its own."""
        header = header_of(frame, Produce)
        self._calls.begin(frame)
        self._channels.open(frame)

        def produce() -> dict[str, Any]:
            self._channels.check_free()
            target, routing = parse_target(header.address), ""
            producers, user = self._ingress.producers, self._principal.owner[1]
            if target.address == MANAGEMENT:
                check_request_target(target)
                if header.routing:
                    # A link of a network forwards to addresses of users: it never has a request carried out.
                    raise UsageError(f"{MANAGEMENT!r} takes requests, and no messages of other brokers")
                permit(self._principal, "manage", MANAGEMENT)
                producers.check_open(header.producer, user)
            else:
                check_sendable(target.address)
                permit_sending(self._principal, target)
                producers.check_open(header.producer, user)
                if header.routing:
                    self._definitions.address_routed(target.address, header.routing)
                routing = self._definitions.address_for(target)[0].routing
            opened = ProducerState(header.producer, user, target, header.window)
            opened.routing = routing
            settings = self._definitions.router.settings(target.address)
            check_window(opened, settings)
            opened.sequences = producers.open(header.producer, user)
            self.channels[frame.channel] = opened
            self._emit(ProducerCreated, opened)
            told = {
                "number": producers.whole(header.producer, user),
                "known": producers.get(header.producer, user) is not None,
                "remembered": settings.duplicate_id_cache_size,
            }
            return {**told, **self.credits.open(frame.channel)}

        self._calls.answering(frame, produce)

    def check_windows(self, settings: SettingsTable) -> None:
        """Whether these settings fit all producers here.

        Raises:
            UsageError: they don't.
        """
        for producer in self.channels.values():
            check_window(producer, settings.of(producer.target.address))

    def close(self, channel: int) -> bool:
        """A producer leaves; False if there is none on the channel."""
        self.credits.close(channel)
        producer = self.channels.pop(channel, None)
        if producer is not None:
            self._close(producer)
        return producer is not None

    def end(self) -> None:
        """The session is over."""
        self.forget()
        self.credits.close_all()
        for producer in self.channels.values():
            self._close(producer)
        self.channels.clear()

    def _close(self, producer: ProducerState) -> None:
        self._ingress.producers.close(producer.producer, producer.user)
        self._emit(ProducerClosed, producer)

    def _emit(self, kind: type[Notification], producer: ProducerState) -> None:
        if producer.routing:
            about = {"address": producer.target.address, "routing": producer.routing}
            self._event_bus.emit(kind, session=self._principal.number, user=producer.user, **about)

    def send(self, frame: Frame) -> None:
        """A run of one of them.

        Raises:
            RemoteProtocolError: the client broke the protocol; the session must be ended.
        """
        producer = self.channels.get(frame.channel)
        if producer is None:
            raise violation("bad_channel", f"there is no producer on channel {frame.channel}")
        credit = self._credit
        if credit.sent_bytes >= credit.granted_bytes:
            credit.check()
        try:
            self._take(frame, producer)
        finally:
            # Only now is it known what the frame takes.
            self._memory.received(credit, frame.size_bytes)
            producer.count += frame.count
            if self.credits.by_channel:
                self.credits.sent(frame.channel, producer.count)

    def _take(self, frame: Frame, producer: ProducerState) -> None:
        judged = self._judged
        if judged is None:
            content, kinds = frame.plain, KIND_PLAIN
            if content is None:
                content, kinds = _content_of(frame)
        else:
            # It waits first on the link, so nothing else comes before it.
            invariant(judged.frame is frame, "the run that comes next is the one that was put to filters")
            content, kinds, self._judged = judged.run.content, judged.kinds, None
        last = frame.first + frame.count - 1
        if not frame.first or last >= 1 << 63:
            raise violation("bad_number", f"messages are numbered from 1 on, not {frame.first}")
        confirm = frame.on_stored or self.confirm_later(frame.channel, last)
        if not self._is_new(frame, producer, last, confirm):
            return
        run = judged.run if judged is not None else self._run(frame, producer, content)
        if self._closing.why is not None:
            # Neither confirmed nor refused: the client sends it again, here after the restart or elsewhere.
            return
        try:
            if frame.flags & FLAG_LARGE:
                run.body = self.body_blocks.claim(frame)
            elif frame.header:
                raise violation("bad_header", "a run whose bodies are with it has a header")
            if producer.requests:
                if run.body is not None:
                    raise UsageError(f"a request to the broker is no message of {run.body.size_bytes} bytes")
                self._requests.take(run, kinds, confirm)
                return
            check_network_ids(content, kinds)
            if self._principal.rights is not None:
                permit_run(self._principal, producer.target, content, kinds)
            if frame.size_bytes > self._disk_space.large_bytes:
                # What stands in front of it takes its room first.
                self._ingress.attribute(run)
                self._disk_space.check(frame)
            self._ingress.place(run, producer.target, kinds, confirm)
        except RemoteProtocolError:
            raise
        except MeshqError as error:
            self._refuse(frame, error)
        finally:
            if judged is not None:
                run.verdicts = ()
            if run.body is not None and not run.body.refs:
                # Refused, or known already, or nobody listens.
                self.body_blocks.abandon(run.body)

    def _run(self, frame: Frame, producer: ProducerState, content: RunBytes) -> StoredRun:
        run = StoredRun(
            producer.target.address,
            content,
            durable=bool(frame.flags & FLAG_DURABLE) and self._release_queue.durable,
            producer=producer.producer,
            number=frame.first,
            stamp=frame.stamp,
        )
        run.user = producer.user
        return run

    def costly(self, frame: Frame) -> CostlyScan | None:
        """Return the steps that ask filters about a run before it is taken; None: no filter is asked, or the run is
        refused without asking.

        Raises:
            RemoteProtocolError: it can't be read.
        """
        producer = self.channels.get(frame.channel)
        if producer is None or producer.requests or self._closing.why is not None:
            return None
        filters = filters_at(self._definitions.router, producer.target)
        if not filters:
            return None
        if self._judged is None or self._judged.frame is not frame:
            self._judged = self._coming(frame, producer)
        if self._judged is None:
            return None
        return costly(self._fair_scheduler, self._principal.owner, self._judged.run, filters)

    def forget(self) -> None:
        """Forget the run that is being put to filters: it will not be placed."""
        self._judged = None

    def _coming(self, frame: Frame, producer: ProducerState) -> Judged | None:
        """The very run that will be placed; None: it will not be."""
        principal, last = self._principal, frame.first + frame.count - 1
        if not frame.first or last >= 1 << 63 or self._standing(frame, producer, last) != "new":
            return None
        address = self._definitions.router.addresses.get(producer.target.address)
        refused = address is not None and is_refused(address.quota, scarce=self._memory.scarce)
        if self._credit.used_up or refused:
            return None
        content, kinds = _content_of(frame)
        run = self._run(frame, producer, content)
        if frame.flags & FLAG_LARGE:
            run.body = self.body_blocks.whole(frame)
            if run.body is None:
                return None
        elif frame.header:
            return None
        if principal.rights is not None and not may_have(principal, producer.target, content, kinds):
            return None
        self._ingress.prepare(run, kinds)
        return Judged(frame, run, kinds)

    def confirm_later(self, channel: int, last: int) -> Callable[[], None]:
        """Return the function to call when the messages up to ``last`` are stored; one CONFIRM per pass covers all."""

        def confirm() -> None:
            self.confirms[channel] = last
            self._stream.schedule_flush()

        return confirm

    def _is_new(self, frame: Frame, producer: ProducerState, last: int, confirm: Callable[[], None]) -> bool:
        """Whether the run is to be stored: not if the producer's high watermark covers the run already."""
        if frame.first > producer.sequences.highest(producer.producer) > 0:
            return True
        standing = self._standing(frame, producer, last)
        if standing == "unknown":
            error = decline("unknown_producer", "whether these messages were stored can't be said")
            self._refuse(frame, caused(error, LookupError(f"there is no producer {producer.producer.hex()}")))
        elif standing == "wrong":
            highest = producer.sequences.highest(producer.producer)
            raise violation("bad_number", f"messages {frame.first} to {last}, after {highest} had come")
        elif standing == "stored":
            self._release_queue.when_all_is_durable(confirm)
        return standing == "new"

    def _standing(
        self, frame: Frame, producer: ProducerState, last: int
    ) -> Literal["new", "stored", "unknown", "wrong"]:
        """Whether a run is new, a repeat or out of order, by its numbers."""
        highest = producer.sequences.highest(producer.producer)
        if frame.first > highest > 0:
            return "new"
        resent = bool(frame.flags & FLAG_RESENT)
        if not highest:
            return "unknown" if resent and producer.sequences.forgets else "new"
        if not resent or last > highest:
            return "wrong"
        lacks = self._ingress.producers.lacks(producer.producer, frame.first, last, producer.user)
        return "new" if lacks else "stored"

    def _refuse(self, frame: Frame, error: MeshqError) -> None:
        header = Refuse(messages=frame.count, code=refusal_of(error).number, text=str(error)[:1024])
        self._stream.say_later(
            Frame(FrameType.REFUSE, channel=frame.channel, first=frame.first, header=header.encode())
        )

    def flush(self, others: dict[int, bytes]) -> None:
        """The end of a turn: one CONFIRM for each channel, of the producers here and of ``others``."""
        confirms, self.confirms = self.confirms, {}
        for channel, number in confirms.items():
            if channel in self.channels or channel in others:
                self._stream.put(Frame(FrameType.CONFIRM, channel=channel, first=number))
