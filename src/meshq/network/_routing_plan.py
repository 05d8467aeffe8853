"""How far and where a message may go over a link, and at which priority."""

from __future__ import annotations

from typing import Final

from meshq import limits

#: The priority of a network consumer one hop away, if far ones come after near ones.
NEAREST_PRIORITY: Final = -5


def consumer_priority(hops: int, *, decrease: bool) -> int:
    """Return the priority of a network consumer whose demand is ``hops`` links away."""
    return NEAREST_PRIORITY - (hops - 1) if decrease else 0


def forward_filter(target_id: str, network_ttl: int, wanted: str = "") -> str:
    """Return the filter of a network consumer: messages that have not been at the target, that have not gone as many
    hops as they may, and that ``wanted`` accepts.

    A ``wanted`` that is too long beside the rest is left out: then more comes than is wanted.
    """
    path = f"AMQBrokerHops < {network_ttl} AND (AMQBrokerPath IS NULL OR AMQBrokerPath NOT LIKE '%{target_id}%')"
    whole = f"{path} AND ({wanted})" if wanted else path
    return whole if len(whole.encode()) <= limits.FILTER_BYTES_MAX else path
