"""The errors of meshq, by cause and by remedy.

Each error says in ``outcome`` what became of the operation: ``"done"``, ``"not_done"`` or
``"unknown"``.  Send again only what is not done, or what carries a duplicate id.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeVar

Outcome = Literal["done", "not_done", "unknown"]
_E = TypeVar("_E", bound=BaseException)

#: Bytes, or characters, of a value that an error shows: enough to recognise it, and a line still can be read.
_SHOWN_BYTES_MAX: Final = 64
_SHOWN_CHARACTERS_MAX: Final = 200
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _SHOWN_CHARACTERS_MAX
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 20


def short(value: object) -> str:
    """A value as it stands in an error: shortened, and never failing."""
    if type(value) is bytes and len(value) > _SHOWN_BYTES_MAX:
        return f"{value[:_SHOWN_BYTES_MAX]!r}... ({len(value)} bytes)"
    return _SHORT.repr(value)


def with_kind(value: object) -> str:
    """A value of a wrong type as it stands in an error, with the type: ``5 (int)``."""
    return f"{short(value)} ({type(value).__name__})"


def kind_of(value: object) -> str:
    """The text in an error for a value that must not be shown: ``<int>``."""
    return f"<{type(value).__name__}>"


class MeshqError(Exception):
    """The root of all meshq errors.

    ``outcome``: what became of the operation.  ``code``: a stable name for programs and logs.
    ``results``: for an operation on many messages, what became of each, in the order given.
    """

    default_outcome: ClassVar[Outcome] = "not_done"
    code: ClassVar[str] = "error"
    #: The entry of the wire's registry that tells a peer of it, where its kind alone doesn't say which.
    refusal: str | None = None

    def __init__(
        self, message: str, *, outcome: Outcome | None = None, results: Sequence[MeshqError | None] = ()
    ) -> None:
        super().__init__(message)
        self.outcome: Outcome = self.default_outcome if outcome is None else outcome
        self.results: tuple[MeshqError | None, ...] = tuple(results)


class UsageError(MeshqError):
    """The call was wrong; nothing changed."""

    code = "usage"


class SettingsError(UsageError, ValueError):
    """A setting has a value that is not allowed: the error names the setting, the value and the allowed values.

    A value that is part of a message is not shown: ``<str>`` stands for one of that type.
    """

    code = "settings"

    def __init__(self, setting: str, value: Any, allowed: str, *, shown: str | None = None) -> None:
        """Make the error; ``shown`` stands in the message in place of the value; None: the value, shortened."""
        super().__init__(f"{setting}={short(value) if shown is None else shown} is not allowed; allowed: {allowed}")
        self.setting = setting
        self.value = value
        self.allowed = allowed
        #: The text in the message in place of the value; None: the value itself.
        self.shown = shown


class ConfigError(UsageError):
    """A configuration file has problems: ``problems`` lists all of them, in the order of the file.

    Each is ``(file, line, key, text)``; ``key`` is the path of the key from the top, empty for the file itself.
    """

    code = "config"

    def __init__(self, problems: Sequence[tuple[str, int, str, str]]) -> None:
        super().__init__("\n".join(f"{file}:{line}: {text}" for file, line, _, text in problems))
        self.problems: tuple[tuple[str, int, str, str], ...] = tuple(problems)


class FilterError(SettingsError):
    """A filter has a syntax error: ``column`` is its place, counted in characters from 1, ``allowed`` the text that
    could stand there.

    ``column`` is 0 if only the message says where, as when a broker refuses what this side has accepted.
    """

    code = "filter"

    def __init__(
        self,
        message: str,
        *,
        text: str = "",
        column: int = 0,
        allowed: str = "",
        outcome: Outcome | None = None,
        results: Sequence[MeshqError | None] = (),
    ) -> None:
        MeshqError.__init__(self, message, outcome=outcome, results=results)
        self.setting = "filter"
        self.value = text
        self.shown: str | None = None
        self.allowed = allowed
        self.column = column


class BodyFormatError(UsageError, ValueError):
    """The body of a message is not in the format in which it was to be read; nothing changed.

    The text says where the format ends to fit, and never shows the body.
    """

    code = "body_format"


class BusyError(UsageError):
    """Two tasks used a thing that is made for one; or a prepared transaction still needs the thing."""

    code = "busy"


class ClosedError(MeshqError):
    """The caller, or another task of the same program, closed the thing."""

    code = "closed"


class BrokenError(MeshqError):
    """The outside failed; ``__cause__`` says how, in every task and thread that is told of the failure.

    The cause is the first of these that there is:

    - the error of the operating system, or of the library below;
    - for what the peer has said of itself: a ``RefusedError`` with the words of the peer;
    - for a call that was cut off: why its link was lost; for one that found no connection in time: why the last link
      was lost, or why the last attempt failed;
    - a ``TimeoutError`` that says what was waited for and how long, an ``EOFError`` where the other side ended the
      connection without a word, a ``LookupError`` where nobody has the name, a ``ClosedError`` where this program has
      closed what is used.
    """

    default_outcome: ClassVar[Outcome] = "unknown"
    code = "broken"


class ConnectionBrokenError(BrokenError, ConnectionError):
    """The connection failed or could not be made."""

    code = "connection_broken"


class UnblockedError(BrokenError):
    """A waiting call was cut off because its session was lost and made anew."""

    code = "unblocked"


class JournalBrokenError(BrokenError):
    """The disk failed; the journal accepts nothing more until it is opened again."""

    code = "journal_broken"


class CallTimeoutError(BrokenError, TimeoutError):
    """The peer did not answer in time."""

    code = "call_timeout"


class FanoutError(BrokenError):
    """Too few brokers have confirmed a message that was for several of them.

    ``confirmed``: the brokers that have it, by their URLs.  ``errors``: of each other broker, why it has not confirmed.
    The outcome is that of the whole: unknown if one broker has it, or may have it.  The cause is the first of the
    errors.
    """

    code = "fanout"

    def __init__(
        self,
        message: str,
        *,
        confirmed: Sequence[str] = (),
        errors: Mapping[str, MeshqError] | None = None,
        outcome: Outcome | None = None,
        results: Sequence[MeshqError | None] = (),
    ) -> None:
        super().__init__(message, outcome=outcome, results=results)
        self.confirmed: tuple[str, ...] = tuple(confirmed)
        self.errors: dict[str, MeshqError] = dict(errors or {})
        self.__cause__: BaseException | None = next(iter(self.errors.values()), None)


class RefusedError(MeshqError):
    """The broker understood the request and said no."""

    code = "refused"


class AddressFullError(RefusedError):
    """The address, the memory or the disk has no room for the message."""

    code = "address_full"


class DuplicateError(RefusedError):
    """A duplicate id inside a transaction is known already."""

    code = "duplicate"


class NotFoundError(RefusedError):
    """The address, queue, session or subscription does not exist."""

    code = "not_found"


class SecurityError(RefusedError):
    """Authentication has failed, or a permission is missing."""

    code = "security"


class NotActiveError(RefusedError):
    """The node is starting, stopping, or waiting as a backup."""

    code = "not_active"


class UseAnotherServerError(RefusedError):
    """The node asks its client to go to another one."""

    code = "use_another_server"


class StaleDeliveryError(RefusedError):
    """The delivery belongs to a session or consumer that is gone; the message comes again."""

    code = "stale_delivery"


class CursorHeldError(RefusedError):
    """A cursor has the queue, or another owner has the cursor: ``queue``, ``name`` and ``holder`` say which and who.

    These are empty if only the message says it, as when a broker refuses what would take messages from the queue.
    """

    code = "cursor_held"

    def __init__(
        self,
        message: str,
        *,
        queue: str = "",
        name: str = "",
        holder: str = "",
        outcome: Outcome | None = None,
        results: Sequence[MeshqError | None] = (),
    ) -> None:
        super().__init__(message, outcome=outcome, results=results)
        self.queue = queue
        self.name = name
        self.holder = holder


class CursorLostError(RefusedError):
    """The cursor is no longer its owner's: another one has taken it, or it was released, deleted or given up."""

    code = "cursor_lost"

    @property
    def reason(self) -> str:
        """Why: ``taken``, ``released``, ``deleted`` or ``max_lag``; empty if only the message says it."""
        return (self.refusal or "").removeprefix("cursor_")


class DataLossError(RefusedError):
    """Messages that were to be read are gone: the sequences ``lo`` up to, and without, ``hi`` of ``partition``."""

    code = "data_loss"

    def __init__(
        self,
        message: str,
        *,
        partition: str = "",
        lo: int = 0,
        hi: int = 0,
        outcome: Outcome | None = None,
        results: Sequence[MeshqError | None] = (),
    ) -> None:
        super().__init__(message, outcome=outcome, results=results)
        self.partition = partition
        self.lo = lo
        self.hi = hi


class TransactionRolledBackError(RefusedError):
    """The transaction was rolled back."""

    code = "transaction_rolled_back"


class RetryTransactionError(RefusedError):
    """The outcome of a prepared transaction isn't known yet; try again later."""

    code = "retry_transaction"


class ProtocolError(MeshqError):
    """The rules of the wire protocol were broken."""

    default_outcome: ClassVar[Outcome] = "unknown"
    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol; nothing was sent."""

    default_outcome: ClassVar[Outcome] = "not_done"
    code = "local_protocol"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; ``refusal`` names the registry entry that says how."""

    code = "remote_protocol"
    refusal: str

    def __init__(self, message: str, *, refusal: str = "malformed_frame") -> None:
        super().__init__(message)
        self.refusal = refusal


class DamagedError(MeshqError):
    """Bytes on disk fail their check: the error names file, offset, expected and found bytes."""

    code = "damaged"

    def __init__(self, file: str, offset: int, expected: str, found: str) -> None:
        super().__init__(f"{file} is damaged at offset {offset}: expected {expected}, found {found}")
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found


class InvariantError(AssertionError):
    """A promise that meshq makes to itself does not hold: a defect in meshq."""


def caused(error: _E, cause: BaseException | None) -> _E:
    """The error itself, with its cause: for an error that is told before, or where else than, it is raised."""
    error.__cause__ = cause
    return error


def invariant(holds: object, message: str) -> None:
    """Raise ``InvariantError`` unless ``holds``; ``python -O`` does not strip it.

    Never for what a user, a peer or a disk gave: that gets a typed error.
    """
    if not holds:
        raise InvariantError(message)
