"""The features that meet on one queue, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshq.settings import AddressSettings
from qa.pairs.covering import Row

#: By name: what is so in a seed in which the feature is on.
FEATURES: Final[Mapping[str, str]] = {
    "priority": "messages have priorities",
    "delay": "some messages are delayed",
    "expiry": "some messages expire before anybody takes them, or do not",
    "groups": "messages have groups",
    "duplicate ids": "messages are sent again under their ids, also when they were confirmed",
    "large bodies": "some messages are larger than a block",
    "not durable": "some messages are not durable",
    "transactions": "messages are sent in transactions, of which some are rolled back",
    "two-phase": "messages are sent in transactions that are prepared first",
    "acknowledged in transactions": "consumers acknowledge in transactions",
    "paging": "the queue leaves all but its first runs on the disk",
    "filters": "two consumers each take what their filter says",
    "consumer priority": "one consumer comes first",
    "exclusive": "one consumer takes all while it is there",
    "given back": "consumers give messages back",
    "redelivery delay": "what is given back waits first",
    "dead letters": "consumers reject messages",
    "redrive": "dead letters are sent back",
    "browsing": "somebody looks at the queue",
    "pause": "the queue is paused and goes on",
    "moves": "an operator moves messages to another queue",
    "divert": "each message is copied to another queue",
    "requests": "somebody asks, and is answered at a temporary queue",
    "in process": "clients are in the process of the broker, and die with it",
    "redistribution": "consumers are at another node than producers",
    "kill": "a node is killed",
    "power loss": "a node loses its power",
}
#: Consumers of one kind take the place of those of another.
EXCLUDED: Final = (("filters", "exclusive"), ("in process", "kill"), ("in process", "power loss"))
REDELIVERY_DELAY_S: Final = 2.0


def settings_of(row: Row) -> dict[str, AddressSettings]:
    """Return the settings of the queue in which the features of a row meet, and of those to which messages go."""
    # What expires there is accounted for, too.
    moved = AddressSettings(expiry_address="expired")
    return {
        "orders": AddressSettings(
            dead_letter_address="dead",
            expiry_address="expired",
            max_delivery_attempts=100,
            max_size_bytes=1 if "paging" in row else float("inf"),
            redelivery_delay=REDELIVERY_DELAY_S if "redelivery delay" in row else 0.0,
        ),
        "moved": moved,
        "dead": moved,
        "copies": AddressSettings(expiry_address="late copies"),
    }
