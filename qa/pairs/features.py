"""The features that meet on one queue, which of them exclude each other, and the brokers that they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshq.abc import Service
from meshq.bridge import Bridge
from meshq.permissions import Permissions
from meshq.settings import AddressSettings, Security
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
    "purge": "an operator removes all messages that wait",
    "divert": "each message is copied to another queue",
    "subscriptions": "each message is copied to a durable subscription, and to a shared one with two consumers",
    "requests": "somebody asks, and is answered at a temporary queue",
    "last value": "of the messages of one key the queue keeps the newest",
    "auto-delete": "the queue goes when it is empty and its consumers have left, and comes with the next message",
    "bridges": "a bridge takes a third of the messages to another broker, which stops and starts; it rests at times",
    "cursors": "from time to time a cursor has the queue, reads all of it, and acknowledges a part",
    "permissions": "clients have a user, and another user tries what is not allowed",
    "in process": "clients are in the process of the broker, and die with it",
    "redistribution": "consumers are at another node than producers",
    "kill": "a node is killed",
    "power loss": "a node loses its power",
}
#: The features that do something in their turn, or to some messages only; each of them has to be seen to do it.
ACTING: Final = (
    "delay",
    "expiry",
    "duplicate ids",
    "large bodies",
    "not durable",
    "transactions",
    "two-phase",
    "acknowledged in transactions",
    "given back",
    "dead letters",
    "redrive",
    "browsing",
    "pause",
    "moves",
    "purge",
    "divert",
    "subscriptions",
    "requests",
    "last value",
    "auto-delete",
    "bridges",
    "cursors",
    "permissions",
    "kill",
    "power loss",
)
_DIES: Final = "a client in the process of a broker dies with it, and can't tell what became of its messages"
#: Pairs that can't be together, and why.
EXCLUDED: Final[Mapping[tuple[str, str], str]] = {
    ("last value", "cursors"): "a queue that keeps the newest of each key takes no cursor (`UsageError`)",
    ("in process", "kill"): _DIES,
    ("in process", "power loss"): _DIES,
}
REDELIVERY_DELAY_S: Final = 2.0
#: Queues in which a message may end, and those in which a copy may.
ENDS: Final = ("orders", "moved", "dead", "expired")
COPIES: Final = ("copies", "late copies")
#: What becomes of the copies for subscriptions, and those themselves.
NEWS: Final = ("dead news", "late news")
SUBSCRIPTIONS: Final = ("archive", "desk")
#: Where a user without permissions may send to; what came there with a message to ``orders`` was rolled back.
NOTES: Final = "notes"
#: The other broker, and what a bridge has brought there.
FAR: Final = "tcp://test:61617"
FAR_ENDS: Final = ("bridged", "late")
KEY: Final = "key"
APP: Final = "app"
GUEST: Final = "guest"
PASSWORDS: Final = {APP: "the application's", GUEST: "the guest's"}
_ALL: Final = Permissions(send={APP}, consume={APP}, create={APP}, manage={APP}, browse={APP})


def queues_of(row: Row) -> tuple[str, ...]:
    """Return the queues that are there from the start."""
    queues = (*ENDS, *COPIES, *NEWS, NOTES, "questions")
    return tuple(queue for queue in queues if queue != "orders" or "auto-delete" not in row)


def settings_of(row: Row) -> dict[str, AddressSettings]:
    """Return the settings of the queue in which the features of a row meet, and of those to which messages go."""
    # What expires there is accounted for, too.
    moved = AddressSettings(expiry_address="expired")
    return {
        "orders": _settings(row, "dead", "expired", key=KEY if "last value" in row else None),
        "news": _settings(row, "dead news", "late news"),
        "moved": moved,
        "dead": moved,
        "dead news": AddressSettings(expiry_address="late news"),
        "copies": AddressSettings(expiry_address="late copies"),
    }


def _settings(row: Row, dead: str, expired: str, key: str | None = None) -> AddressSettings:
    return AddressSettings(
        dead_letter_address=dead,
        expiry_address=expired,
        max_delivery_attempts=100,
        max_size_bytes=1 if "paging" in row else float("inf"),
        redelivery_delay=REDELIVERY_DELAY_S if "redelivery delay" in row else 0.0,
        auto_delete_queues="auto-delete" in row and dead == "dead",
        default_last_value_key=key,
    )


def far_settings() -> dict[str, AddressSettings]:
    """Return the settings of the other broker."""
    return {"bridged": AddressSettings(expiry_address="late")}


def security_of(row: Row) -> Security | None:
    """Return the users of a row, of whom the guest may only send notes; None: there are none."""
    if "permissions" not in row:
        return None
    notes = Permissions(send={APP, GUEST}, consume={APP}, create={APP}, manage={APP}, browse={APP})
    return Security(users=PASSWORDS, roles={APP: {APP}, GUEST: {GUEST}}, permissions={"#": _ALL, NOTES: notes})


def services_of(row: Row, name: str) -> list[Service]:
    """Return the services of a node: a bridge where the consumers are."""
    if "bridges" not in row or name != nodes_of(row)[-1]:
        return []
    return [
        Bridge(
            "away",
            queue="orders",
            target=f"{FAR}?insecure=true",
            forwarding_address="bridged",
            filter="part = 0",
            window=4,
            retry_interval=0.3,
        )
    ]


def nodes_of(row: Row) -> list[str]:
    """Return the names of the nodes: producers are at the first one, consumers at the last."""
    return ["n0", "n1"] if "redistribution" in row else ["n0"]
