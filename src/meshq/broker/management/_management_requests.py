"""Management by messages: a request is a message to ``activemq.management``, its answer one to its ``reply_to``.

The property ``operation`` names what is to be done, the body is a JSON object of its arguments.  The operations are
those of the calls, by the same table.  The answer's body is a JSON object, too: the result, or ``error``; its
properties ``outcome`` and ``code`` say what became of the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshq import limits
from meshq.address import Target, parse_target
from meshq.broker.access._access import permit_making, permit_replies
from meshq.broker.catalog._names import check_sendable
from meshq.broker.management._management import OPERATIONS, answer_call
from meshq.broker.queue._run import StoredRun
from meshq.broker.work._long_operations import LongOperation, Values
from meshq.errors import (
    AddressFullError,
    ClosedError,
    JournalBrokenError,
    MeshqError,
    NotFoundError,
    RemoteProtocolError,
    UsageError,
)
from meshq.wire import (
    KIND_HEADERS,
    KIND_PLAIN,
    KIND_PROPERTIES,
    Envelope,
    RunView,
    decline,
    decode_map,
    encode_map,
    refusal_of,
)

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester

#: How JSON, which has no word for it, says "for ever" and "no limit".
INFINITY: Final = "inf"


class _Request(NamedTuple):
    """A request: the address for its answer, and the correlation id of the asker."""

    operation: str
    reply_to: Target | None
    correlation_id: str | None


class ManagementRequests:
    """The requests of one session's producers."""

    def __init__(self, core: Core, principal: Requester) -> None:
        self._core = core
        self._principal = principal
        # Of those that take many steps, how many are not done.
        self._open = 0

    def take(self, run: StoredRun, kinds: int, confirm: Callable[[], None]) -> None:
        """Carry out a run of requests, in order; ``confirm`` is called when all that they have changed is durable.

        Raises:
            SecurityError: an answer is wanted where the sender may not take it; nothing was done.
        """
        core = self._core
        permit_replies(self._principal, run.content, kinds)
        view = RunView(run.content)
        core.ingress.producers.raise_to(run.producer, run.number, run.number + run.content.rows - 1, run.user)
        for row in range(run.content.rows):
            self._carry_out(view, row)
        core.release_queue.when_all_is_durable(confirm)

    def _carry_out(self, view: RunView, row: int) -> None:
        core = self._core
        request = _Request("", None, None)
        try:
            headers, properties = _decoded(view.headers(row)), _decoded(view.properties(row))
            request = _request_of(headers, properties)
            if self._open >= limits.CALLS_MAX:
                raise decline("too_many", f"{limits.CALLS_MAX} requests are under way")
            if request.reply_to is not None:
                permit_making(self._principal, request.reply_to)
            arguments = _arguments(request.operation, view.body(row))
            values = answer_call(core, request.operation, arguments, self._principal)
        except MeshqError as error:
            self._refuse(request, error)
            return
        if isinstance(values, dict):
            self._answer(request, values)
        else:
            self._open += 1
            core.running_operations.schedule(
                LongOperation(values, partial(self._done, request), partial(self._failed, request))
            )

    def _done(self, request: _Request, values: Values) -> None:
        self._open -= 1
        self._answer(request, values)

    def _failed(self, request: _Request, error: MeshqError) -> None:
        self._open -= 1
        self._refuse(request, error)

    def _answer(self, request: _Request, values: Values) -> None:
        # Done is what a crash does not undo.
        self._core.release_queue.when_all_is_durable(lambda: self._reply(request, values, "done", ""))

    def _refuse(self, request: _Request, error: MeshqError) -> None:
        self._reply(request, {"error": str(error)}, error.outcome, refusal_of(error).name)

    def _reply(self, request: _Request, values: Values, outcome: str, code: str) -> None:
        core, target = self._core, request.reply_to
        if target is None or core.closing.why is not None:
            return
        headers = {"t": "application/json"}
        if request.correlation_id is not None:
            headers["c"] = request.correlation_id
        properties = {"operation": request.operation, "outcome": outcome, "code": code}
        envelope = Envelope(
            KIND_PLAIN | KIND_HEADERS | KIND_PROPERTIES, b"", encode_map(headers), encode_map(properties)
        )
        try:
            check_sendable(target.address)
            core.internal_producer.send(target, [_encoded(values)], [envelope], core.settings.now_ms(), lost=self._lost)
        except (NotFoundError, UsageError, AddressFullError, ClosedError, JournalBrokenError):
            # Whoever asked has gone, or there is no room for answers: what was asked for is done all the same.
            self._lost(1)

    def _lost(self, messages: int) -> None:
        self._core.ingress.unrouted += messages


def _decoded(data: bytes) -> Mapping[str, Any]:
    try:
        return decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False) if data else {}
    except RemoteProtocolError as error:
        raise UsageError(f"the headers or properties of a request can't be read: {error}") from error


def _request_of(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> _Request:
    operation, reply_to = properties.get("operation"), headers.get("r")
    return _Request(
        operation if type(operation) is str else "",
        parse_target(reply_to, "reply_to") if type(reply_to) is str else None,
        correlation_id if type(correlation_id := headers.get("c")) is str else None,
    )


def _arguments(operation: str, body: bytes) -> Values:
    """The arguments in a body; an empty one has none.

    Raises:
        UsageError: it is something else.
    """
    if not operation:
        raise UsageError("a request has its operation as the property 'operation'")
    if len(body) > limits.REQUEST_BODY_BYTES_MAX:
        raise UsageError(f"a request has {len(body)} bytes; allowed: {limits.REQUEST_BODY_BYTES_MAX}")
    try:
        values = json.loads(body, object_pairs_hook=_unique, parse_constant=_no_number) if body else {}
    except (ValueError, RecursionError) as error:
        raise UsageError("the body of a request is a JSON object of its arguments, each of them there once") from error
    if type(values) is not dict:
        raise UsageError("the body of a request is a JSON object of its arguments")
    known = OPERATIONS.get(operation)
    for name, value in values.items():
        parameter = known.parameters.get(name) if known is not None else None
        if value == INFINITY and parameter is not None and float in parameter.types:
            values[name] = math.inf
    return values


def _unique(pairs: list[tuple[str, Any]]) -> Values:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is there twice")
    return values


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _encoded(values: Values) -> bytes:
    shown = {name: INFINITY if value == math.inf else value for name, value in values.items()}
    return json.dumps(shown, allow_nan=False).encode()
