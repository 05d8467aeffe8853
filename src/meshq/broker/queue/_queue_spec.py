"""The fixed settings of a queue, and the kind of queue that follows from them and from its name."""

from __future__ import annotations

import enum
from typing import Final

import attrs

from meshq.address import INTERNAL, STAGE
from meshq.broker.queue._session_identity import SessionOwner
from meshq.selector import Filter

#: The kinds of subscription queues: ``own`` has the one consumer that made it, ``single`` one consumer at a time,
#: ``shared`` any number of consumers.
SUBSCRIPTIONS: Final = ("own", "single", "shared")


class QueueKind(enum.Enum):
    """The kinds of queues."""

    #: Created by a user, or on first use.
    REGULAR = enum.auto()
    #: Made by a subscription to a multicast address.
    SUBSCRIPTION = enum.auto()
    #: Owned by a session, and deleted with it.
    TEMPORARY = enum.auto()
    #: The messages for another node of the cluster.
    STORE_AND_FORWARD = enum.auto()
    #: The messages of a stage, which wait for a decision.
    STAGE = enum.auto()


@attrs.frozen(kw_only=True, eq=False)
class QueueSpec:
    """The fixed settings of a queue: filter, subscription, owner and origin.  Immutable."""

    #: The queue takes only messages that this filter accepts; None: all messages.
    filter: Filter | None = None
    #: One of ``SUBSCRIPTIONS``; empty for a queue that was not made by a subscription.
    subscription: str = ""
    #: The session that owns a temporary queue: the only one that may consume, and the queue ends with it.
    owner: SessionOwner | None = None
    #: The queue was created on first use.
    auto_created: bool = False
    #: Of a queue that keeps messages of a topic for another broker of the network: the ways that they go, and what the
    #: consumers there want, as the newest network consumer has said.
    routes: tuple[str, ...] = ()
    wanted: str = ""
    #: The queue is that of a network consumer of a topic, be it kept or not.
    network: bool = False
    #: For whom that is, in a sentence.
    holder: str = ""

    @property
    def filter_text(self) -> str:
        """The text of the filter; empty without one."""
        return self.filter.text if self.filter is not None else ""

    @property
    def said(self) -> tuple[str, tuple[str, ...], str, str]:
        """The settings of a kept queue that may change while it exists: filter, ways, wanted filter and holder."""
        return self.filter_text, self.routes, self.wanted, self.holder

    def kind_of(self, name: str) -> QueueKind:
        """Return the kind of a queue with these settings and this name."""
        if name.startswith(INTERNAL):
            return QueueKind.STAGE if name.startswith(STAGE) else QueueKind.STORE_AND_FORWARD
        if self.owner is not None:
            return QueueKind.TEMPORARY
        return QueueKind.SUBSCRIPTION if self.subscription else QueueKind.REGULAR


#: The settings of most queues.
DEFAULT_SPEC: Final = QueueSpec()
#: The settings of a queue that was created on first use.
AUTO_CREATED: Final = QueueSpec(auto_created=True)
