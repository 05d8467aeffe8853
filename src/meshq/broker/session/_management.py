"""Administrative calls: what a client may ask of a node, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from meshq.address import check_name, parse_target
from meshq.broker._definitions import check_open
from meshq.broker.session._jobs import Steps
from meshq.broker.session._subscribing import create_temporary, unsubscribe
from meshq.broker.session._sweeping import sweep, to_address, to_origin
from meshq.errors import NotFoundError, UsageError
from meshq.selector import parse_filter
from meshq.settings import AddressSettings
from meshq.wire import COUNTER_MAX, decline

if TYPE_CHECKING:
    from meshq.broker._core import Core
    from meshq.broker.queue._queue_machine import Queue
    from meshq.broker.session._session import Session

#: Bytes of queue names in one answer: well under what a header may have.
_NAMES_BYTES_MAX: Final = 3_000


def answer_call(
    core: Core, operation: str, arguments: dict[str, Any], asker: Session | None = None
) -> dict[str, Any] | Steps:
    """Carry out one operation, or return the steps in which it is; ``asker`` is the session that asks for it.

    Raises:
        UsageError: there is no such operation, or its arguments don't fit.
        NotFoundError: what it is about doesn't exist.
    """
    known = _OPERATIONS.get(operation)
    if known is None:
        raise decline("unknown_operation", f"{operation[:64]!r}; known: {', '.join(_OPERATIONS)}")
    work, parameters = known
    for name in arguments:
        if name not in parameters:
            raise UsageError(f"{operation} has no argument {name[:64]!r}; known: {', '.join(parameters) or 'none'}")
    for name, (types, required) in parameters.items():
        if name not in arguments:
            if required:
                raise UsageError(f"{operation} lacks its argument {name!r}")
        elif type(arguments[name]) not in types:
            raise UsageError(f"{operation} has a {type(arguments[name]).__name__} as {name!r}")
    if operation in _OF_SESSIONS:
        return work(core, asker, **arguments)
    return work(core, **arguments)


def _create_address(core: Core, name: str, routing: str) -> dict[str, Any]:
    address = core.definitions.create_address(name, routing)
    return {"name": address.name, "routing": address.routing}


def _create_queue(
    core: Core,
    name: str,
    address: str | None = None,
    routing: str = "anycast",
    durable: bool = True,
    filter: str | None = None,
) -> dict[str, Any]:
    condition = parse_filter(filter) if filter else None
    queue = core.definitions.create_queue(name, address=address, routing=routing, durable=durable, filter=condition)
    return {"name": queue.name, "address": queue.address}


def _delete_queue(core: Core, name: str) -> dict[str, Any]:
    queue = _existing(core, check_open(name))
    name = queue.name
    error = decline("queue_deleted", repr(name))
    for session in list(core.sessions.values()):
        session.lose_queue(name, error)
    return {"removed": core.remove(queue)}


def _create_temporary_queue(core: Core, asker: Session) -> dict[str, Any]:
    return {"name": create_temporary(core, asker).name}


def _unsubscribe(core: Core, address: str, name: str) -> dict[str, Any]:
    return {"removed": unsubscribe(core, check_open(address), name)}


def _purge_queue(core: Core, name: str) -> dict[str, Any]:
    queue = _existing(core, check_open(name))
    removed = core.settler.purge(queue)
    # It may have been what kept the queue.
    core.touch(queue)
    return {"removed": removed}


def _create_divert(
    core: Core, name: str, address: str, forwarding_address: str, filter: str | None = None, exclusive: bool = False
) -> dict[str, Any]:
    condition = parse_filter(filter) if filter else None
    about = {"address": address, "forwarding_address": forwarding_address}
    core.definitions.create_divert(name, **about, filter=condition, exclusive=exclusive)
    return {"name": name}


def _delete_divert(core: Core, name: str) -> dict[str, Any]:
    core.definitions.delete_divert(name)
    return {}


def _diverts(core: Core, after: str = "") -> dict[str, Any]:
    rules = core.router.diverts.by_name
    size = 0
    values: dict[str, Any] = {}
    for index, name in enumerate(sorted(name for name in rules if name > after)):
        rule = rules[name]
        about = (name, rule.address, rule.forwarding_address, rule.filter_text)
        size += sum(len(text.encode()) + 24 for text in about)
        if size > _NAMES_BYTES_MAX and index:
            return {**values, "more": True}
        values |= dict(zip((f"{key}{index}" for key in _DIVERT), (*about, rule.exclusive), strict=True))
    return {**values, "more": False}


def _move_messages(core: Core, name: str, address: str, filter: str | None = None, limit: int = 0) -> Steps:
    queue = _existing(core, check_open(name))
    check_open(check_name("address", address))
    condition = parse_filter(filter) if filter else None
    return sweep(core, queue, condition, limit or _ALL, to_address(address), "moved")


def _redrive(core: Core, name: str, filter: str | None = None, limit: int = 0) -> Steps:
    queue = _existing(core, check_open(name))
    condition = parse_filter(filter) if filter else None
    return sweep(core, queue, condition, limit or _ALL, to_origin(core), "redriven")


def _set_address_settings(core: Core, pattern: str, **fields: Any) -> dict[str, Any]:
    core.definitions.set_address_settings(pattern, fields)
    core.touch_all()
    return {}


def _remove_address_settings(core: Core, pattern: str) -> dict[str, Any]:
    core.definitions.remove_address_settings(pattern)
    core.touch_all()
    return {}


def _address_settings(core: Core, address: str) -> dict[str, Any]:
    settings = core.router.settings(check_name("address", address))
    return {name: getattr(settings, name) for name in _SETTINGS}


def _pause_queue(core: Core, name: str) -> dict[str, Any]:
    core.definitions.pause(_existing(core, check_open(name)), True)
    return {}


def _resume_queue(core: Core, name: str) -> dict[str, Any]:
    queue = _existing(core, check_open(name))
    core.definitions.pause(queue, False)
    core.touch(queue)
    return {}


def _queue(core: Core, name: str) -> dict[str, Any]:
    return core.router.statistics(_existing(core, name))


def _queues(core: Core, after: str = "") -> dict[str, Any]:
    names = sorted(name for name in core.router.queues if name > after)
    size = 0
    values: dict[str, Any] = {}
    for index, name in enumerate(names):
        size += len(name.encode()) + 16
        if size > _NAMES_BYTES_MAX and index:
            return {**values, "more": True}
        values[f"queue{index}"] = name
    return {**values, "more": False}


def _existing(core: Core, name: str) -> Queue:
    queue = core.router.find_queue(parse_target(name, "queue"))
    if queue is None:
        raise NotFoundError(f"there is no queue {name!r}")
    return queue


_TEXT: Final = (str,)
#: More messages than a queue can have numbers.
_ALL: Final = COUNTER_MAX
#: What is said of a divert, each key with the divert's place behind it.
_DIVERT: Final = ("name", "address", "forwarding_address", "filter", "exclusive")
#: Operations for which it matters who asks.
_OF_SESSIONS: Final = ("create_temporary_queue",)
#: The settings of addresses; what each of them may be is their own affair.
_SETTINGS: Final = tuple(field.name for field in attrs.fields(AddressSettings) if field.init)
_SETTING: Final = (str, bool, int, float, type(None))
_Parameters = Mapping[str, tuple[tuple[type, ...], bool]]
_OPERATIONS: Final[Mapping[str, tuple[Callable[..., dict[str, Any] | Steps], _Parameters]]] = {
    "create_address": (_create_address, {"name": (_TEXT, True), "routing": (_TEXT, True)}),
    "create_queue": (
        _create_queue,
        {
            "name": (_TEXT, True),
            "address": ((str, type(None)), False),
            "routing": (_TEXT, False),
            "durable": ((bool,), False),
            "filter": ((str, type(None)), False),
        },
    ),
    "create_temporary_queue": (_create_temporary_queue, {}),
    "unsubscribe": (_unsubscribe, {"address": (_TEXT, True), "name": (_TEXT, True)}),
    "delete_queue": (_delete_queue, {"name": (_TEXT, True)}),
    "purge_queue": (_purge_queue, {"name": (_TEXT, True)}),
    "move_messages": (
        _move_messages,
        {
            "name": (_TEXT, True),
            "address": (_TEXT, True),
            "filter": ((str, type(None)), False),
            "limit": ((int,), False),
        },
    ),
    "redrive": (
        _redrive,
        {"name": (_TEXT, True), "filter": ((str, type(None)), False), "limit": ((int,), False)},
    ),
    "set_address_settings": (
        _set_address_settings,
        {"pattern": (_TEXT, True), **dict.fromkeys(_SETTINGS, (_SETTING, False))},
    ),
    "remove_address_settings": (_remove_address_settings, {"pattern": (_TEXT, True)}),
    "address_settings": (_address_settings, {"address": (_TEXT, True)}),
    "pause_queue": (_pause_queue, {"name": (_TEXT, True)}),
    "resume_queue": (_resume_queue, {"name": (_TEXT, True)}),
    "queue": (_queue, {"name": (_TEXT, True)}),
    "queues": (_queues, {"after": (_TEXT, False)}),
    "create_divert": (
        _create_divert,
        {
            "name": (_TEXT, True),
            "address": (_TEXT, True),
            "forwarding_address": (_TEXT, True),
            "filter": ((str, type(None)), False),
            "exclusive": ((bool,), False),
        },
    ),
    "delete_divert": (_delete_divert, {"name": (_TEXT, True)}),
    "diverts": (_diverts, {"after": (_TEXT, False)}),
}
