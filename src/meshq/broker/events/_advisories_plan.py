"""Advisories: the topics at which a broker tells who consumes, who produces and who is connected."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from meshq.address import ADVISORY
from meshq.errors import UsageError
from meshq.notifications import ConsumerClosed, ConsumerCreated, Notification, SessionClosed, SessionCreated


@attrs.frozen(kw_only=True)
class _ProducerNotification(Notification):
    """A producer has come or gone; only advisories report it.  ``routing``: the routing type of the address."""

    address: str
    routing: str
    session: int
    user: str


@attrs.frozen(kw_only=True)
class ProducerCreated(_ProducerNotification):
    """A client has opened a producer for an address, or has sent there for the first time."""

    kind = "producer_created"


@attrs.frozen(kw_only=True)
class ProducerClosed(_ProducerNotification):
    """A producer was closed, or its session has ended."""

    kind = "producer_closed"


#: The topic of the connections of clients.
CONNECTION: Final = f"{ADVISORY}Connection"
#: The classes that only advisories report.
ADVISORY_ONLY: Final = (ProducerCreated, ProducerClosed)
#: What a notification is about, in the names of topics.
_SUBJECTS: Final[Mapping[type[Notification], str]] = MappingProxyType(
    {
        ConsumerCreated: "Consumer",
        ConsumerClosed: "Consumer",
        ProducerCreated: "Producer",
        ProducerClosed: "Producer",
    }
)
_DESTINATIONS: Final[Mapping[str, str]] = MappingProxyType({"anycast": "Queue", "multicast": "Topic"})
#: The topics that tell of all queues, or of all topics.
_ALL: Final = tuple(
    f"{ADVISORY}{subject}.{destination}"
    for subject in dict.fromkeys(_SUBJECTS.values())
    for destination in _DESTINATIONS.values()
)


def advisories(kind: type[Notification], about: Mapping[str, Any], routing: str) -> tuple[str, ...]:
    """Return the topics at which a notification of this class is told: that of its address, and that of all addresses
    with the same ``routing``."""
    if kind in (SessionCreated, SessionClosed):
        return (CONNECTION,) if about["role"] == "client" else ()
    if kind not in _SUBJECTS or routing not in _DESTINATIONS:
        return ()
    of_all = f"{ADVISORY}{_SUBJECTS[kind]}.{_DESTINATIONS[routing]}"
    return f"{of_all}.{about['address']}", of_all


def check_advisory(name: str, *, supported: bool) -> None:
    """Check that a new address may be made: one whose name begins like that of an advisory has to be one.

    Raises:
        UsageError: advisories are switched off, or none has this name; a pattern is the name of no address.
    """
    if not name.startswith(ADVISORY):
        return
    if not supported:
        raise UsageError(f"{name!r} tells nothing: the broker has advisory_support=False")
    # The other wildcards are in no name of an address.
    pattern = ">" in name.split(".")
    named = any(name.startswith(f"{one}.") and name != f"{one}." for one in _ALL) and not pattern
    if name not in (CONNECTION, *_ALL) and not named:
        allowed = f"{CONNECTION}, or {', '.join(_ALL)}, each alone or with a dot and the name of an address"
        raise UsageError(f"{name!r} is no advisory; there are {allowed}")
