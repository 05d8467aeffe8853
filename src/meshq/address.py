"""Names of addresses and queues, and the one way to name both: ``address::queue``."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast, get_args

from meshq import limits
from meshq.errors import SettingsError

SEPARATOR: Final = "::"
#: How an address gives its messages to its queues: to one of them, or to each.
Routing = Literal["anycast", "multicast"]
ROUTINGS: Final = get_args(Routing)
#: How the names begin that no user can give.
INTERNAL: Final = "$meshq."
#: How the names of subscriptions begin that keep messages of a topic for another broker of the network.
NETWORK_KEPT: Final = f"{INTERNAL}network."
#: The further parts of such a name: connector and topic, the id of a broker, and which copy of a message it is.
_KEPT: Final = re.compile(r".+@(?P<broker>[0-9a-f]{32})(?:#(?P<copy>0|[1-9][0-9]{0,3})-[0-9a-f]{16})?")
#: The number of a copy is below this: each has a network consumer, of which a link has so many.
KEPT_COPIES_END: Final = 4_000
#: How the names of the queues of stages begin, and the address of all of them.
STAGE: Final = f"{INTERNAL}stage."
STAGES: Final = f"{INTERNAL}stages"
#: The name of the links that a node makes to hand over; no cluster connection has it.
HANDOVER: Final = "$handover"
#: How the names of temporary queues begin, which a broker gives.
TEMPORARY: Final = "$temporary."
#: Where requests to a broker go as messages, and where it tells what happens.
MANAGEMENT: Final = "activemq.management"
#: Where the permission to hand over the role of a node stands.
HIGH_AVAILABILITY: Final = "$meshq.ha"
NOTIFICATIONS: Final = "activemq.notifications"
#: How the names of the topics begin at which a broker tells of consumers, producers and connections.
ADVISORY: Final = "ActiveMQ.Advisory."


class Target(NamedTuple):
    """The target of a send or a consumer: an address, and optionally one of its queues."""

    address: str
    queue: str | None


def tells_events(address: str) -> bool:
    """Whether an address is that of notifications or an advisory, to which only the broker sends."""
    return address == NOTIFICATIONS or address.startswith(ADVISORY)


def kept_copy(name: str) -> int | None:
    """Return which copy of a message of a topic a subscription keeps for another broker of the network; None: the name
    is none of such a subscription."""
    parts = _KEPT.fullmatch(name, len(NETWORK_KEPT)) if name.startswith(NETWORK_KEPT) else None
    copy = int(parts["copy"] or 0) if parts is not None else KEPT_COPIES_END
    return copy if copy < KEPT_COPIES_END else None


def kept_for(name: str) -> str | None:
    """Return the id of the broker whose connector has the queue of this subscription; None: no connector has."""
    parts = _KEPT.fullmatch(name, len(NETWORK_KEPT)) if name.startswith(NETWORK_KEPT) else None
    return parts["broker"] if parts is not None else None


def check_name(what: str, name: object) -> str:
    """The name of an address or queue, checked.

    Raises:
        SettingsError: it isn't a string of 1 to 512 bytes without control characters and ``::``.
    """
    allowed = f"1 to {limits.ADDRESS_BYTES_MAX} bytes of text without control characters and '{SEPARATOR}'"
    if type(name) is not str or not name or not name.isprintable() or SEPARATOR in name:
        raise SettingsError(what, name, allowed)
    if len(name.encode()) > limits.ADDRESS_BYTES_MAX:
        raise SettingsError(what, name[:32] + "…", allowed)
    return name


def encodable(text: str) -> bool:
    """Whether a text has bytes; half a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_name(name: object) -> bool:
    """Whether this may be the name of an address or queue."""
    try:
        check_name("name", name)
    except SettingsError:
        return False
    return True


def parse_target(text: str, what: str = "address") -> Target:
    """Split ``address`` or ``address::queue``.

    Raises:
        SettingsError: a part is not a valid name.
    """
    if type(text) is not str:
        raise SettingsError(what, text, "a string")
    address, separator, queue = text.partition(SEPARATOR)
    check_name(what, address)
    return Target(address, check_name(what, queue) if separator else None)


def check_literal(what: str, name: str) -> str:
    """A name, or ``address::queue``, checked to be no pattern of names.

    Nobody who writes a wildcard means a name with such a word in it: taken as one, it would get nothing.

    Raises:
        SettingsError: one of its words is a wildcard.
    """
    if any(word in ("*", "#") for part in name.split(SEPARATOR) for word in part.split(".")):
        allowed = "one name: the wildcards '*' and '#' stand only in patterns, of settings and of permissions"
        raise SettingsError(what, name, allowed)
    return name


def check_place(what: str, name: object) -> str:
    """Check the name of an address or queue that is to be used or created; return it.

    Raises:
        SettingsError: it isn't a valid name, or is a pattern.
    """
    return check_literal(what, check_name(what, name))


def parse_place(text: str, what: str = "address") -> Target:
    """Split ``address`` or ``address::queue``, where messages are sent or taken.

    Raises:
        SettingsError: a part is not a valid name, or is a pattern.
    """
    target = parse_target(text, what)
    check_literal(what, text)
    return target


def check_routing(what: str, routing: object) -> Routing:
    """A routing type, checked.

    Raises:
        SettingsError: it is neither ``anycast`` nor ``multicast``.
    """
    if routing not in ROUTINGS:
        raise SettingsError(what, routing, " or ".join(map(repr, ROUTINGS)))
    return cast(Routing, routing)


def is_pattern(value: object) -> bool:
    """Whether this may be a pattern of addresses."""
    # What can't be printed stands in no name that it could fit; half a surrogate pair has no bytes to count.
    if type(value) is not str or not value.isprintable() or not all(value.split(".")):
        return False
    return len(value.encode()) <= limits.ADDRESS_BYTES_MAX


def matches(pattern: str, address: str) -> bool:
    """Whether an address fits a pattern of words between dots: ``*`` is one word, ``#`` any number of them."""
    return _fits(pattern, address, "#")


def matches_destination(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern of destinations in a network of brokers: ``*`` is one word, ``>`` any number of
    them; ``#`` is a word like any other."""
    return _fits(pattern, name, ">")


def _fits(pattern: str, name: str, several: str) -> bool:
    """``several`` tries every split, at most words times pattern words in all."""
    words = name.split(".")
    reachable = {0: None}
    for part in pattern.split("."):
        following: dict[int, None] = {}
        for index in reachable:
            if part == several:
                following.update(dict.fromkeys(range(index, len(words) + 1)))
            elif index < len(words) and part in ("*", words[index]):
                following[index + 1] = None
        reachable = following
    return len(words) in reachable


def specificity(pattern: str) -> tuple[int, ...]:
    """Sorts patterns: the more specific one is the larger.  A literal word beats ``*``, which beats ``#``; where one
    pattern ends, it beats another one that goes on with ``#``: ``a`` is more specific than ``a.#``."""
    return (*({"#": 0, "*": 2}.get(word, 3) for word in pattern.split(".")), 1)
