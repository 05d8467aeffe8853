"""The messages at the fronts of a broker's queues, with the facts that explain why they stand there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

import attrs


@attrs.frozen(kw_only=True)
class RemoteDemand:
    """A queue on another node that messages of a queue here could go to.

    ``wants``: whether its consumers take the first message; None: it is not known.  ``mode``: how the link deals.
    ``gone``: how the node is gone; empty: it is linked.  ``room``: whether more messages may go ahead to that node.
    """

    node_id: str
    node_name: str
    consumers: int
    wants: bool | None
    mode: str
    gone: str
    room: bool


@attrs.frozen(kw_only=True)
class HeldMessages:
    """The first messages of a queue that do not move now, with everything that may keep them.

    ``kind``: ``ready``; ``delayed`` (handed back, to wait before they are delivered again); ``prepared`` (acknowledged
    by the prepared transaction ``xid``); ``forwarding`` (they wait for the node ``node_id``, which is ``gone``, if
    it is); or ``full`` (they wait until their ``address`` has room at the node ``node_id``).  ``mark``: another one as
    soon as anything of this kind has moved.  ``first``: the id of the first message.

    Of ready messages: ``consumers`` here, ``wants``: whether one of them takes the first message, and ``credit``:
    whether one that takes it may get it now; None: it is not known.  ``redistribution_delay``: that of the address;
    None: messages never move.  ``keeps``: why they would not move even so; empty: they would.  ``group``: that of the
    first message, if this node does not consume it, and ``group_node``: the node that does; empty: it is not known.
    """

    queue: str
    address: str
    kind: str
    mark: Hashable
    messages: int
    first: str = ""
    paused: bool = False
    consumers: int = 0
    wants: bool | None = None
    credit: bool | None = None
    remote: tuple[RemoteDemand, ...] = ()
    redistribution_delay: float | None = None
    keeps: str = ""
    group: str | None = None
    group_node: str = ""
    xid: bytes = b""
    node_id: str = ""
    gone: str = ""
    sent: int = 0


class HeldQueues(ABC):
    """The queues of a broker, and the messages at their fronts."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the queues in which something waits."""

    @abstractmethod
    def held(self, queue: str) -> Sequence[HeldMessages]:
        """Return the messages at the front of a queue now.  Only its first runs are looked at, however many wait."""
