"""The rules of a fanout client: how many brokers have to be there, and whether queues are copied."""

from __future__ import annotations

import attrs

from meshq.discovery import NODES_MAX
from meshq.settings import in_range, is_bool


@attrs.frozen(kw_only=True)
class FanoutRules:
    """The options of a ``fanout:`` URL.

    ``min_ack_count``: a send begins when the client is connected to so many brokers, and is done when so many have
    confirmed.  ``fan_out_queues``: a message for a queue goes to every broker; False: to one, drawn by chance.
    """

    min_ack_count: int = attrs.field(default=2, validator=in_range(1, NODES_MAX, whole=True))
    fan_out_queues: bool = attrs.field(default=False, validator=is_bool)
