"""What a queue was made as, beside its name and address: what it takes, whom it is for, and when it goes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue

#: How a queue is subscribed to: by the one consumer that it was made for, by one consumer of its name at a time, by any
#: number of them.
SUBSCRIPTIONS: Final = ("own", "single", "shared")


class Owner(Protocol):
    """The session that temporary queues belong to."""

    #: Role and user.
    owner: tuple[str, str]
    ended: bool
    owned: dict[Queue, None]


@attrs.frozen(kw_only=True, eq=False)
class QueueSpec:
    """They stay what they are for as long as the queue lives."""

    #: Only messages that it accepts are taken.
    filter: Filter | None = None
    #: One of ``SUBSCRIPTIONS``; empty for a queue that was not made by a subscription.
    subscription: str = ""
    #: Whose end is the queue's end; nobody else consumes from it.
    owner: Owner | None = None
    #: It came into being on first use.
    on_use: bool = False

    @property
    def filter_text(self) -> str:
        """The filter, empty if there is none."""
        return self.filter.text if self.filter is not None else ""


#: Those of nearly every queue.
PLAIN: Final = QueueSpec()
#: Those of a queue that somebody used before anybody created it.
AUTO_CREATED: Final = QueueSpec(on_use=True)
