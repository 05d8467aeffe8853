"""The registry of refusals: all errors that a side can send to the other side.

Each entry has a number that is never reused, a name, the error that the other side raises, and whether the same
request may succeed later although nothing was changed.
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq import errors
from meshq.errors import MeshqError, Outcome


@attrs.frozen
class Refusal:
    """A refusal: its number, name, error and sentence."""

    number: int
    name: str
    error: type[MeshqError]
    sentence: str
    may_retry: bool = False
    #: The connection is closed with it.
    closes: bool = False


_ENTRIES: Final = (
    # -- broken frames: the connection is closed
    Refusal(1, "bad_magic", errors.RemoteProtocolError, "the bytes are not a meshq frame", closes=True),
    Refusal(
        2,
        "unknown_version",
        errors.RemoteProtocolError,
        "the frame has another protocol version",
        closes=True,
    ),
    Refusal(3, "unknown_type", errors.RemoteProtocolError, "the frame type is not known", closes=True),
    Refusal(
        4,
        "unknown_flags",
        errors.RemoteProtocolError,
        "the frame has flags that its type has not",
        closes=True,
    ),
    Refusal(5, "too_large", errors.RemoteProtocolError, "a part of the frame is over its limit", closes=True),
    Refusal(6, "bad_checksum", errors.RemoteProtocolError, "the frame's checksum is wrong", closes=True),
    Refusal(7, "bad_header", errors.RemoteProtocolError, "the frame's header does not fit its type", closes=True),
    Refusal(8, "bad_table", errors.RemoteProtocolError, "the frame's rows contradict each other", closes=True),
    Refusal(9, "illegal_frame", errors.RemoteProtocolError, "the frame is not allowed in this state", closes=True),
    Refusal(10, "bad_number", errors.RemoteProtocolError, "the frame's number is not the next one", closes=True),
    Refusal(11, "bad_channel", errors.RemoteProtocolError, "the frame's channel does not fit", closes=True),
    Refusal(12, "bad_tag", errors.RemoteProtocolError, "a settled delivery was never made", closes=True),
    Refusal(13, "no_credit", errors.RemoteProtocolError, "more was sent than was granted", closes=True),
    Refusal(14, "truncated", errors.RemoteProtocolError, "the connection ended inside a frame", closes=True),
    # -- the handshake
    Refusal(
        32,
        "no_common_version",
        errors.RemoteProtocolError,
        "there is no common protocol version",
        closes=True,
    ),
    Refusal(33, "unknown_mechanism", errors.SecurityError, "the authentication is not offered", closes=True),
    Refusal(35, "not_active", errors.NotActiveError, "the node is not active", may_retry=True, closes=True),
    Refusal(36, "stopping", errors.NotActiveError, "the node is stopping", may_retry=True, closes=True),
    Refusal(37, "too_many_sessions", errors.NotActiveError, "the node has no room for a session", True, True),
    Refusal(
        38,
        "session_taken",
        errors.RefusedError,
        "the session was taken over by another connection",
        closes=True,
    ),
    Refusal(39, "role_not_served", errors.SecurityError, "the node does not serve this role here", closes=True),
    Refusal(40, "silent", errors.ConnectionBrokenError, "nothing was heard for too long", True, True),
    Refusal(41, "not_authenticated", errors.SecurityError, "the authentication failed", closes=True),
    Refusal(
        42,
        "crowded",
        errors.NotActiveError,
        "the node has no room for a connection",
        may_retry=True,
        closes=True,
    ),
    Refusal(43, "same_node", errors.UsageError, "the node was reached by itself", closes=True),
    Refusal(44, "duplicate_node", errors.UsageError, "another running node has the same node id", closes=True),
    Refusal(
        45,
        "use_another_server",
        errors.UseAnotherServerError,
        "another node serves this client",
        may_retry=True,
        closes=True,
    ),
    Refusal(
        46,
        "not_handed_over",
        errors.NotActiveError,
        "the node lacks some of what another node hands over",
        may_retry=True,
        closes=True,
    ),
    # -- requests
    Refusal(64, "not_found", errors.NotFoundError, "there is no such thing"),
    Refusal(65, "address_full", errors.AddressFullError, "there is no room for the message", may_retry=True),
    Refusal(66, "usage", errors.UsageError, "the request contradicts what exists"),
    Refusal(67, "unknown_operation", errors.UsageError, "the operation is not known here"),
    Refusal(68, "journal_broken", errors.JournalBrokenError, "the node's disk failed", closes=True),
    Refusal(69, "unknown_producer", errors.UnblockedError, "the producer is no longer remembered"),
    Refusal(70, "queue_deleted", errors.NotFoundError, "the queue was deleted"),
    Refusal(71, "too_many", errors.UsageError, "the session has too many of these"),
    Refusal(72, "stale_delivery", errors.StaleDeliveryError, "the delivery's consumer is gone"),
    Refusal(73, "bad_filter", errors.FilterError, "the filter is no condition"),
    Refusal(74, "unreadable", errors.RefusedError, "the body of the message can't be read from the disk"),
    Refusal(75, "body_missing", errors.UnblockedError, "the body of the message has not come in this session"),
    Refusal(76, "duplicate", errors.DuplicateError, "a duplicate id of the transaction is known already"),
    Refusal(77, "rolled_back", errors.TransactionRolledBackError, "the transaction was rolled back"),
    Refusal(78, "retry_transaction", errors.RetryTransactionError, "the transaction is prepared still", may_retry=True),
    Refusal(79, "undecided", errors.BusyError, "a prepared transaction waits for its decision"),
    Refusal(80, "not_owner", errors.RefusedError, "the queue is another session's"),
    Refusal(81, "in_use", errors.RefusedError, "another consumer uses the queue"),
    Refusal(82, "cursor_held", errors.CursorHeldError, "a cursor has the queue"),
    Refusal(83, "cursor_taken", errors.CursorLostError, "another owner has taken the cursor"),
    Refusal(84, "cursor_released", errors.CursorLostError, "the owner has released the cursor"),
    Refusal(85, "cursor_deleted", errors.CursorLostError, "the cursor was deleted"),
    Refusal(86, "cursor_max_lag", errors.CursorLostError, "the cursor was given up beyond its max_lag"),
    Refusal(87, "batch_placing", errors.BusyError, "the batch before is still being placed", may_retry=True),
    Refusal(88, "no_successor", errors.RefusedError, "no other node could take the role over", may_retry=True),
    Refusal(89, "backup_needed", errors.RefusedError, "the backup is in use, or its node answers", may_retry=True),
    Refusal(90, "forbidden", errors.SecurityError, "it is not permitted"),
)

BY_NAME: Final = {entry.name: entry for entry in _ENTRIES}
BY_NUMBER: Final = {entry.number: entry for entry in _ENTRIES}
assert len(BY_NAME) == len(BY_NUMBER) == len(_ENTRIES), "a refusal's name and number are its own"

#: The entry that stands for a kind of error when none was named: the first of those that answer requests.
_OF_ERROR: Final[dict[type, Refusal]] = {
    **{entry.error: entry for entry in reversed(_ENTRIES) if entry.number >= 64},
    errors.NotActiveError: BY_NAME["not_active"],
    # Those that are nothing else have their entry's name with them.
    errors.RefusedError: BY_NAME["usage"],
    errors.BusyError: BY_NAME["usage"],
}


def refusal_of(error: MeshqError) -> Refusal:
    """Return the refusal for ``error``: its own, that of its nearest base class, or else ``usage``."""
    if error.refusal in BY_NAME:
        return BY_NAME[error.refusal]
    if isinstance(error, errors.RemoteProtocolError):
        return BY_NAME["illegal_frame"]
    for kind in type(error).__mro__:
        entry = _OF_ERROR.get(kind)
        if entry is not None:
            return entry
    return BY_NAME["usage"]


def error_of(number: int, text: str, outcome: Outcome | None = None) -> MeshqError:
    """Return the error for a peer's refusal; ``text`` is the peer's explanation."""
    entry = BY_NUMBER.get(number)
    if entry is None:
        return errors.RefusedError(f"refused by an entry ({number}) that is not known here: {text}", outcome=outcome)
    if issubclass(entry.error, errors.RemoteProtocolError):
        error: MeshqError = errors.RemoteProtocolError(f"the peer says: {text or entry.sentence}", refusal=entry.name)
        if outcome is not None:
            error.outcome = outcome
        return error
    declined = entry.error(text or entry.sentence, outcome=outcome)
    declined.refusal = entry.name
    if isinstance(declined, errors.BrokenError):
        # What has failed there is known here by the peer's words only.
        declined.__cause__ = errors.RefusedError(f"the peer says: {text or entry.sentence}", outcome=outcome)
    return declined


def violation(name: str, detail: str) -> errors.RemoteProtocolError:
    """Make the error for a peer that broke the protocol, by the refusal's name."""
    return errors.RemoteProtocolError(f"{BY_NAME[name].sentence}: {detail}", refusal=name)


def decline(name: str, detail: str) -> MeshqError:
    """Make the error for a request that can't be granted, by the refusal's name; the peer gets that refusal."""
    entry = BY_NAME[name]
    if issubclass(entry.error, errors.RemoteProtocolError):
        return violation(name, detail)
    error = entry.error(f"{entry.sentence}: {detail}")
    error.refusal = name
    return error
