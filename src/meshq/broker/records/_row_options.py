"""The options in the headers of messages: a priority, a time to live, a delay, a group."""

from __future__ import annotations

from typing import Final, NamedTuple

from meshq import limits
from meshq.errors import RemoteProtocolError
from meshq.wire import (
    KIND_CONTROL,
    KIND_PRIORITY,
    PRIORITY_SHIFT,
    RUN_ROW_BYTES,
    RunBytes,
    RunView,
    decode_map,
    violation,
)

#: A run with one of these has to be looked at message by message.
SPECIAL: Final = KIND_CONTROL | KIND_PRIORITY
#: The longest time to live, and the longest delay, ms.
WAIT_MS_MAX: Final = limits.TIME_S_MAX * 1000


class RowOptions(NamedTuple):
    """The options of one message; times are absolute, 0 is none."""

    priority: int = limits.PRIORITY_DEFAULT
    due: int = 0
    expires: int = 0
    group: str | None = None


#: By priority: the options of a message that asks for nothing else.
_OF_PRIORITY: Final = tuple(RowOptions(priority) for priority in range(limits.PRIORITY_MAX + 1))
#: The bytes that are priorities.
_PRIORITIES: Final = bytes(range(limits.PRIORITY_MAX + 1))
assert PRIORITY_SHIFT == 8


def read_options(content: RunBytes, arrival_ms: int) -> list[RowOptions]:
    """Return the options of each message of a run; without an arrival (0) no times.

    Raises:
        RemoteProtocolError: the headers can't be read.
    """
    view = RunView(content)
    first, *others = view.common_kinds()
    if not others and not first & KIND_CONTROL:
        # All ask for the same: nothing is done for each.
        return [_OF_PRIORITY[first >> PRIORITY_SHIFT]] * content.rows
    return [
        _controlled(view.headers(row), kind >> PRIORITY_SHIFT, arrival_ms)
        if kind & KIND_CONTROL
        else _OF_PRIORITY[kind >> PRIORITY_SHIFT]
        for row, kind in enumerate(view.kinds())
    ]


def _controlled(data: bytes, priority: int, arrival_ms: int) -> RowOptions:
    headers = decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False)
    ttl, delay, group = headers.get("x", 0), headers.get("d", 0), headers.get("g")
    if (
        any(type(span) is not int or not 0 <= span <= WAIT_MS_MAX for span in (ttl, delay))
        or not (group is None or (type(group) is str and 0 < len(group.encode()) <= limits.GROUP_BYTES_MAX))
        or (not ttl and not delay and group is None)
    ):
        raise violation("bad_header", "a message has a time to live, a delay or a group that can't be one")
    if not arrival_ms:
        return RowOptions(priority, group=group)
    return RowOptions(priority, arrival_ms + delay if delay else 0, arrival_ms + ttl if ttl else 0, group)


def has_priorities(content: RunBytes) -> bool:
    """Whether each message of a whole run has a priority that there is."""
    # Every start asks this of every run: columns of bytes are compared in C.  A priority is the second byte of a kind.
    table = bytes(content.table)
    above = table[2::RUN_ROW_BYTES] + table[3::RUN_ROW_BYTES]
    return not table[1::RUN_ROW_BYTES].translate(None, _PRIORITIES) and not above.strip(b"\0")


def readable(content: RunBytes) -> bool:
    """Whether the headers of a run's messages can be read."""
    try:
        read_options(content, 0)
    except RemoteProtocolError:
        return False
    return True


def asked_of_moved(content: RunBytes, arrival_ms: int) -> list[RowOptions]:
    """Return the options of moved messages: delays are over."""
    return [one._replace(due=0) for one in read_options(content, arrival_ms)]
