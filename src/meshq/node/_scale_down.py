"""A stop that hands over first: the drain that a broker's settings or its ``stop`` ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from meshq.abc import HAPolicy
from meshq.errors import MeshqError, NotActiveError
from meshq.ha import LiveOnly, ScaleDown
from meshq.logs import logger
from meshq.node._settings import BrokerSettings

if TYPE_CHECKING:
    from meshq.cluster import ClusterConnection, Departure

#: Seconds for which a stop waits for a node that takes over, and for one that does not answer meanwhile.
LINKED_S: Final = 2.0
PATIENCE_S: Final = 30.0
_log = logger("node")


def order_of(policy: HAPolicy | None, wanted: bool | None) -> ScaleDown | None:
    """Return the order to hand over at a stop.  ``wanted``: what the caller of the stop says; None: nothing."""
    own = policy.scale_down if isinstance(policy, LiveOnly) else None
    if wanted is None:
        return own if own is not None and own.enabled else None
    return (own if own is not None else ScaleDown()) if wanted else None


def departures_of(settings: BrokerSettings, cluster: str | None = None) -> list[Departure]:
    """Return the parts of the broker's clusters in its departure; ``cluster``: only of the one of this name."""
    services = [one for one in settings.services if one.kind == "cluster_connection" and cluster in (None, one.name)]
    return [one for service in services if (one := cast("ClusterConnection", service).departure) is not None]


async def hand_over(name: str, departures: Callable[[], Sequence[Departure]], order: ScaleDown) -> None:
    """Drain a node that stops, with a warning if that fails.

    Checkpoint: always.
    Cancellation: what has moved has moved; the rest stays.
    """
    from meshq.cluster import Drain, DrainOrder

    wanted = DrainOrder(
        targets=order.connectors, group=order.group_name, linked_s=LINKED_S, patience_s=PATIENCE_S, nearest=True
    )
    try:
        async with Drain(name, departures, wanted):
            pass
    except NotActiveError as error:
        # Another stop does not wait for it.
        _log.info("%s does not scale down to its end: %s", name, error, extra={"event": "scale_down_cut"})
    except MeshqError as error:
        text = "%s stops without scaling down: what is durable stays in its store: %s"
        _log.warning(text, name, error, extra={"event": "scale_down_failed"})
