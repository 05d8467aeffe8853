"""The table of management operations: the parameters, the permissions and the function of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from meshq.address import HIGH_AVAILABILITY, MANAGEMENT, check_name, parse_target
from meshq.broker.access._access import ANY_TEMPORARY, permit, permit_look, permit_moving, permit_name, queue_address
from meshq.broker.management import _balancer_operations as balancer_work
from meshq.broker.management import _cluster_operations as cluster_work
from meshq.broker.management import _cursor_operations as cursor_work
from meshq.broker.management import _divert_operations as divert_work
from meshq.broker.management import _node_operations as node_work
from meshq.broker.management import _queue_operations as queue_work
from meshq.broker.management import _role_operations as role_work
from meshq.broker.management import _route_operations as route_work
from meshq.broker.management import _stage_operations as stage_work
from meshq.broker.management._queue_operations import SETTINGS
from meshq.broker.work._long_operations import Steps, Values
from meshq.errors import UsageError
from meshq.wire import decline

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester


class Parameter(NamedTuple):
    """An argument of an operation: the types that it may have, and whether it must be there."""

    types: tuple[type, ...]
    required: bool = False


class Need(NamedTuple):
    """A permission that the asker must have, and the address where.

    ``address``: at the one that an argument names, for ``target`` also as ``address::queue``; ``queue`` and ``divert``:
    at the address of what it names; ``name``: at the address of a new queue's name; ``node``: at the address of
    management; ``role``: at the one of high availability; ``temporary``: at the one that stands for all temporary
    queues.

    ``look``: any of the permissions with which one knows what is at an address.  Sending to an address that is not
    there also takes ``create``, whatever its settings say of first use: it comes into being.
    """

    permission: str
    where: str = "address"
    argument: str = "name"
    #: What stands in for the argument if it is not given.
    otherwise: str = ""


@attrs.frozen
class Operation:
    """A management operation.

    ``asks``: the function gets the session that asks.  ``between_nodes``: another node may ask for it over its link.
    ``only_nodes``: nobody else may, nor may a node ask for it in the name of somebody.
    """

    work: Callable[..., Values | Steps]
    parameters: Mapping[str, Parameter]
    needs: tuple[Need, ...]
    asks: bool = attrs.field(default=False, kw_only=True)
    between_nodes: bool = attrs.field(default=False, kw_only=True)
    only_nodes: bool = attrs.field(default=False, kw_only=True)


def answer_call(core: Core, operation: str, arguments: Values, asker: Requester | None = None) -> Values | Steps:
    """Carry out one operation, or return the steps in which it is; ``asker`` is the session that asks for it.

    Raises:
        UsageError: there is no such operation, or its arguments don't fit.
        SecurityError: whoever asks may not.
        NotFoundError: what it is about doesn't exist.
    """
    known = OPERATIONS.get(operation)
    if known is None:
        raise decline("unknown_operation", f"{operation[:64]!r}; known: {', '.join(OPERATIONS)}")
    _check_arguments(operation, known, arguments)
    if known.only_nodes and (asker is None or asker.owner[0] != "peer"):
        raise decline("forbidden", f"only another node of the cluster asks for {operation}, over its own link")
    needs, about = known.needs, arguments
    if known.work is cluster_work.ask_node:
        # It takes what the question takes.
        about = cluster_work.arguments_of(arguments.get("arguments"))
        needs = _asked_there(arguments["question"], about).needs
    if asker is not None and asker.owner[0] == "peer" and known.between_nodes:
        # The other node has checked who asks there, or asks for itself.
        asker = None
    if asker is not None and asker.rights is not None:
        for need in needs:
            _see_to(core, need, about, asker)
    if known.asks:
        return known.work(core, asker, **arguments)
    return known.work(core, **arguments)


def _check_arguments(operation: str, known: Operation, arguments: Values) -> None:
    parameters = known.parameters
    for name in arguments:
        if name not in parameters:
            raise UsageError(f"{operation} has no argument {name[:64]!r}; known: {', '.join(parameters) or 'none'}")
    for name, (types, required) in parameters.items():
        if name not in arguments:
            if required:
                raise UsageError(f"{operation} lacks its argument {name!r}")
        elif type(arguments[name]) not in types:
            raise UsageError(f"{operation} has a {type(arguments[name]).__name__} as {name!r}")


def _asked_there(operation: str, arguments: Values) -> Operation:
    """The operation that another node is asked for.  Raises: UsageError: no node answers that, or not so."""
    inner = OPERATIONS.get(operation)
    if inner is None or not inner.between_nodes or inner.work is cluster_work.ask_node:
        allowed = ", ".join(name for name, one in OPERATIONS.items() if one.between_nodes and name != "ask_node")
        raise UsageError(f"other nodes are not asked for {operation[:64]!r}; known: {allowed}")
    _check_arguments(operation, inner, arguments)
    return inner


def _see_to(core: Core, need: Need, arguments: Values, asker: Requester) -> None:
    queue = divert = ""
    if need.where in _FIXED:
        address = _FIXED[need.where]
    else:
        name = arguments.get(need.argument) or arguments[need.otherwise or need.argument]
        if need.where == "queue":
            address = queue_address(core.router, name)
            queue = name if name in core.router.queues else ""
        elif need.where == "name":
            permit_name(asker, check_name("name", arguments["name"]), name)
            return
        elif need.where == "target":
            address = parse_target(name).address
        elif need.where == "divert":
            divert = name
            rule = core.router.diverts.by_name.get(name)
            address = rule.address if rule is not None else MANAGEMENT
        else:
            address = check_name(need.argument, name)
    if need.permission == "look":
        permit_look(asker, address, queue=queue)
    elif need.permission == "send":
        permit_moving(asker, address)
    else:
        permit(asker, need.permission, address, queue=queue, divert=divert)


def flat(values: Values) -> Values:
    """An answer as a frame holds it: the rows of a page stand side by side, each key with the row's place behind it."""
    if not any(type(value) is list for value in values.values()):
        return values
    found: Values = {}
    for name, value in values.items():
        if type(value) is not list:
            found[name] = value
            continue
        for index, row in enumerate(value):
            found.update((f"{key}{index}", item) for key, item in row.items())
    return found


_NAME: Final = Parameter((str,), True)
_TEXT_OR_NONE: Final = Parameter((str, type(None)))
#: In a frame encoded, in a request as it is.
_MAP: Final = Parameter((bytes, dict, type(None)))
#: In a frame four bytes for each, in a request a list of them.
_NUMBERS: Final = Parameter((bytes, list), True)
_FLAG: Final = Parameter((bool,))
_COUNT: Final = Parameter((int,))
_AFTER: Final = Parameter((str,))
_NUMBER: Final = Parameter((int,), True)
#: What the owner of a cursor says of itself.
_OWNED: Final = {"queue": _NAME, "name": _NAME, "fence": _NUMBER}
_READS_QUEUE: Final = (Need("consume", "queue", argument="queue"),)
_SETTING: Final = Parameter((str, bool, int, float, type(None)))
_MANAGES_QUEUE: Final = (Need("manage", "queue"),)
_MANAGES_NODE: Final = (Need("manage", "node"),)

_MANAGES_ROLE: Final = (Need("manage", "role"),)

_FIXED: Final = {"node": MANAGEMENT, "role": HIGH_AVAILABILITY, "temporary": ANY_TEMPORARY}

OPERATIONS: Final[Mapping[str, Operation]] = {
    "create_address": Operation(queue_work.create_address, {"name": _NAME, "routing": _NAME}, (Need("create"),)),
    "create_queue": Operation(
        queue_work.create_queue,
        {
            "name": _NAME,
            "address": _TEXT_OR_NONE,
            "routing": Parameter((str,)),
            "durable": _FLAG,
            "filter": _TEXT_OR_NONE,
        },
        (
            Need("create", argument="address", otherwise="name"),
            Need("create", "name", argument="address", otherwise="name"),
        ),
    ),
    "create_temporary_queue": Operation(
        queue_work.create_temporary_queue, {}, (Need("create", "temporary"),), asks=True
    ),
    "unsubscribe": Operation(
        queue_work.unsubscribe, {"address": _NAME, "name": _NAME}, (Need("create", argument="address"),)
    ),
    "delete_queue": Operation(queue_work.delete_queue, {"name": _NAME}, _MANAGES_QUEUE),
    "purge_queue": Operation(queue_work.purge_queue, {"name": _NAME}, _MANAGES_QUEUE),
    "move_messages": Operation(
        queue_work.move_messages,
        {"name": _NAME, "address": _NAME, "filter": _TEXT_OR_NONE, "limit": _COUNT},
        (*_MANAGES_QUEUE, Need("send", argument="address")),
        asks=True,
    ),
    "redrive": Operation(
        queue_work.redrive, {"name": _NAME, "filter": _TEXT_OR_NONE, "limit": _COUNT}, _MANAGES_QUEUE, asks=True
    ),
    "give_back": Operation(queue_work.give_back, {"node_id": _NAME, "force": _FLAG}, _MANAGES_NODE, asks=True),
    "set_address_settings": Operation(
        queue_work.set_address_settings, {"pattern": _NAME, **dict.fromkeys(SETTINGS, _SETTING)}, _MANAGES_NODE
    ),
    "remove_address_settings": Operation(queue_work.remove_address_settings, {"pattern": _NAME}, _MANAGES_NODE),
    "address_settings": Operation(queue_work.address_settings, {"address": _NAME}, (Need("look", argument="address"),)),
    "pause_queue": Operation(queue_work.pause_queue, {"name": _NAME}, _MANAGES_QUEUE),
    "resume_queue": Operation(queue_work.resume_queue, {"name": _NAME}, _MANAGES_QUEUE),
    "queue": Operation(queue_work.queue, {"name": _NAME}, (Need("look", "queue"),)),
    "queues": Operation(queue_work.queues, {"after": _AFTER}, (), asks=True),
    "create_divert": Operation(
        divert_work.create_divert,
        {
            "name": _NAME,
            "address": _NAME,
            "forwarding_address": _NAME,
            "filter": _TEXT_OR_NONE,
            "exclusive": _FLAG,
        },
        (Need("manage", argument="address"), Need("send", argument="forwarding_address")),
        asks=True,
    ),
    "delete_divert": Operation(divert_work.delete_divert, {"name": _NAME}, (Need("manage", "divert"),)),
    "explain_route": Operation(
        route_work.explain_route,
        {
            "address": _NAME,
            "properties": _MAP,
            "headers": _MAP,
            "durable": _FLAG,
            "priority": _COUNT,
            "user": _TEXT_OR_NONE,
            "after": _COUNT,
        },
        (Need("manage", "target", "address"),),
        asks=True,
    ),
    "cluster_nodes": Operation(cluster_work.cluster_nodes, {"after": _COUNT}, ()),
    "node_queue": Operation(
        cluster_work.node_queue, {"name": _NAME, "after": _COUNT}, (Need("look", "queue"),), between_nodes=True
    ),
    "ask_node": Operation(
        cluster_work.ask_node,
        {"node_id": _NAME, "question": _NAME, "arguments": _MAP, "hops": _COUNT},
        (),
        asks=True,
        between_nodes=True,
    ),
    "pin_groups": Operation(
        cluster_work.pin_groups,
        {
            "cluster": _NAME,
            "node_id": _NAME,
            "instance": _NAME,
            "serial": Parameter((int,), True),
            "members": _NAME,
            "names": Parameter((bytes,), True),
            "begins": Parameter((bool,), True),
            "complete": Parameter((bool,), True),
            "lacks": Parameter((bool,), True),
        },
        (),
        asks=True,
        only_nodes=True,
    ),
    "stuck": Operation(cluster_work.stuck, {"after": _COUNT}, _MANAGES_NODE),
    "trace": Operation(route_work.trace, {"message_id": _NAME, "after": _COUNT}, _MANAGES_NODE, between_nodes=True),
    "trace_hops": Operation(
        route_work.trace_hops, {"message_id": _NAME, "after": _COUNT}, _MANAGES_NODE, between_nodes=True
    ),
    "explain_arrival": Operation(
        route_work.explain_arrival,
        {
            "address": _NAME,
            "name": _NAME,
            "properties": _MAP,
            "headers": _MAP,
            "durable": _FLAG,
            "priority": _COUNT,
            "after": _COUNT,
        },
        (Need("manage", "target", "address"),),
        between_nodes=True,
    ),
    "prepared": Operation(node_work.prepared, {"after": _COUNT}, _MANAGES_NODE),
    "broker": Operation(node_work.broker, {}, _MANAGES_NODE),
    "ha": Operation(role_work.ha, {"after": _COUNT}, _MANAGES_NODE),
    "hosted_backups": Operation(
        role_work.hosted_backups, {"after": _COUNT, "node_id": _AFTER}, _MANAGES_NODE, between_nodes=True
    ),
    "host_backup": Operation(
        role_work.host_backup,
        {"request": Parameter((bytes,), True), "ends": _FLAG, "clears": _FLAG},
        (),
        asks=True,
        only_nodes=True,
    ),
    "end_backup": Operation(role_work.end_backup, {"name": _NAME, "force": _FLAG}, _MANAGES_ROLE),
    "fail_over": Operation(role_work.fail_over, {"force": _FLAG}, _MANAGES_ROLE),
    "fail_back": Operation(role_work.fail_back, {}, _MANAGES_ROLE),
    "bridges": Operation(node_work.bridges, {"after": _COUNT}, _MANAGES_NODE),
    "pause_bridge": Operation(node_work.pause_bridge, {"name": _NAME}, _MANAGES_NODE),
    "resume_bridge": Operation(node_work.resume_bridge, {"name": _NAME}, _MANAGES_NODE),
    "balancers": Operation(balancer_work.balancers, {"after": _COUNT}, _MANAGES_NODE),
    "balancer_targets": Operation(balancer_work.balancer_targets, {"name": _NAME, "after": _COUNT}, _MANAGES_NODE),
    "balancer_target": Operation(balancer_work.balancer_target, {"name": _NAME, "key": _NAME}, ()),
    "explain_balancer": Operation(
        balancer_work.explain_balancer, {"name": _NAME, "key": _NAME, "after": _COUNT}, _MANAGES_NODE
    ),
    "set_balancer_filter": Operation(
        balancer_work.set_balancer_filter, {"name": _NAME, "setting": _NAME, "text": _TEXT_OR_NONE}, _MANAGES_NODE
    ),
    "open_cursor": Operation(
        cursor_work.open_cursor,
        {
            "queue": _NAME,
            "name": _NAME,
            "token": _NAME,
            "lease_ms": _NUMBER,
            "start": _AFTER,
            "max_lag": _COUNT,
        },
        _READS_QUEUE,
        asks=True,
    ),
    "renew_cursor": Operation(cursor_work.renew_cursor, _OWNED, _READS_QUEUE, asks=True),
    "pin_cursor": Operation(cursor_work.pin_cursor, {**_OWNED, "number": _NUMBER}, _READS_QUEUE, asks=True),
    "ack_cursor": Operation(cursor_work.ack_cursor, {**_OWNED, "number": _NUMBER}, _READS_QUEUE, asks=True),
    "release_cursor": Operation(cursor_work.release_cursor, _OWNED, _READS_QUEUE, asks=True),
    "delete_cursor": Operation(cursor_work.delete_cursor, {"queue": _NAME, "name": _NAME}, (), asks=True),
    "cursor_lag": Operation(
        cursor_work.cursor_lag, {"queue": _NAME, "name": _NAME}, (Need("look", "queue", argument="queue"),), asks=True
    ),
    "holes": Operation(
        cursor_work.holes,
        {"queue": _NAME, "lo": _NUMBER, "hi": _NUMBER},
        (Need("look", "queue", argument="queue"),),
    ),
    "cursors": Operation(cursor_work.cursors, {"queue": _AFTER, "after": _COUNT}, (), asks=True),
    "commit_batch": Operation(
        stage_work.commit_batch, {"sink": _NAME, "batch": _NUMBER, "stages": _NUMBERS, "purge": _AFTER}, (), asks=True
    ),
    "abandon_batch": Operation(stage_work.abandon_batch, {"sink": _NAME, "batch": _NUMBER}, (), asks=True),
    "sinks": Operation(stage_work.sinks, {"after": _COUNT}, (), asks=True),
    "stages": Operation(stage_work.stages, {"sink": _AFTER, "after": _COUNT}, (), asks=True),
    "delete_sink": Operation(stage_work.delete_sink, {"sink": _NAME}, _MANAGES_NODE, asks=True),
    "diverts": Operation(divert_work.diverts, {"after": _AFTER}, (), asks=True),
}
