"""The broker as its services see it: remote bindings in, held messages out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq import abc, limits
from meshq.broker import ConsumerState, Core, Grant, Queue, RemoteBinding, granted
from meshq.errors import SettingsError
from meshq.selector import Filter, parse_filter

#: What a link may have on its way: many full frames, so that a round trip does not slow it down.
FORWARD_WINDOW = 64 * limits.RUN_MESSAGES_MAX
FORWARD_WINDOW_BYTES = 16 * limits.MIB


class ForwardQueue(abc.Forwarding):
    """A store-and-forward queue: it has one consumer, the link."""

    def __init__(self, core: Core, queue: Queue) -> None:
        self._core = core
        self.queue = queue
        self.number = queue.number
        self._consumer: ConsumerState | None = None
        self._take: Callable[[abc.HeldRun], None] = _nobody

    @property
    def waiting(self) -> int:
        """Messages held, given or not."""
        return self.queue.ready + self.queue.held

    def attach(self, take: Callable[[abc.HeldRun], None]) -> None:
        """Begin to give."""
        self.detach()
        self._take = take
        self._consumer = ConsumerState(self.queue, self, 1, FORWARD_WINDOW, FORWARD_WINDOW_BYTES)
        self.queue.add_consumer(self._consumer)
        self._core.touch(self.queue)
        self._core.turn()

    def deliver(self, consumer: ConsumerState, grant: Grant) -> None:
        """The queue has granted messages."""
        view = grant.view
        run, content = view.run, granted(grant, whole=True)
        self._take(
            abc.HeldRun(
                tag=grant.tag,
                rows=content.rows,
                number=view.first + grant.start,
                step=grant.step,
                message=run.number + grant.start * run.number_step,
                stride=run.number_step,
                producer=run.producer,
                address=run.address,
                stamp=run.stamp,
                durable=run.durable,
                table=content.table,
                body=content.body,
                queues=view.remote,
                arrival=run.traits.arrival if run.traits is not None else 0,
            )
        )

    def done(self, first_tag: int, last_tag: int) -> None:
        """The other node has them."""
        if self._consumer is not None:
            self._core.settler.settle(self._consumer, [(first_tag, last_tag)])
            self._core.touch(self.queue)
            self._core.turn()

    def detach(self) -> None:
        """The link is gone."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._core.returner.abandon(consumer, None)
            self.queue.remove_consumer(consumer)


class LocalRoutes(abc.Routes):
    """The remote bindings of a node's links."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def forwarding(self, name: str) -> ForwardQueue:
        """The store-and-forward queue of this name."""
        return ForwardQueue(self._core, self._core.definitions.forward_queue(name))

    def replace(self, link: abc.Forwarding, mode: str, queues: Sequence[abc.RemoteQueue]) -> None:
        """All queues of a peer."""
        self._core.router.replace(_key(link), [self._binding(link, mode, queue) for queue in queues])

    def describe(self, link: abc.Forwarding, mode: str, queue: abc.RemoteQueue) -> None:
        """One queue of a peer."""
        self._core.router.bind(_key(link), self._binding(link, mode, queue))

    def remove(self, link: abc.Forwarding, number: int) -> None:
        """A queue of a peer is gone."""
        self._core.router.unbind(_key(link), number)

    def consumers(self, queue: str) -> int:
        """Consumers of a queue here."""
        found = self._core.router.queues.get(queue)
        return len(found.consumers) if found is not None else 0

    def _binding(self, link: abc.Forwarding, mode: str, queue: abc.RemoteQueue) -> RemoteBinding:
        return RemoteBinding(
            forward=self._core.router.by_number[link.number],
            mode=mode,
            number=queue.number,
            name=queue.name,
            address=queue.address,
            routing=queue.routing,
            consumers=queue.consumers,
            filters=_filters(queue.filters),
            # One that is not understood here is applied there.
            filter=next(iter(_filters((queue.filter,))), None) if queue.filter else None,
        )


def _key(link: abc.Forwarding) -> bytes:
    return link.number.to_bytes(8, "big")


def _nobody(run: abc.HeldRun) -> None:
    """For a callback that nobody has set."""


def _filters(texts: Sequence[str]) -> tuple[Filter, ...]:
    try:
        return tuple(map(parse_filter, texts))
    except SettingsError:
        # The other node's language has grown: whatever comes may be wanted there.
        return ()
