"""The options of the data source: one table, from which they are read, checked and documented."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from meshq import limits
from meshq.errors import SettingsError

#: What an option is given to.
Use = Literal["batch read", "streaming read", "batch write", "streaming write"]
READS: Final[frozenset[Use]] = frozenset({"batch read", "streaming read"})
WRITES: Final[frozenset[Use]] = frozenset({"batch write", "streaming write"})
EVERYWHERE: Final[frozenset[Use]] = READS | WRITES
BATCH_READ: Final[frozenset[Use]] = frozenset({"batch read"})
STREAMING_READ: Final[frozenset[Use]] = frozenset({"streaming read"})
BATCH_WRITE: Final[frozenset[Use]] = frozenset({"batch write"})
STREAMING_WRITE: Final[frozenset[Use]] = frozenset({"streaming write"})

#: Options that Spark reads itself, and passes on.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
#: Options whose values are never shown.
SECRETS: Final = frozenset({"password", "url"})
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
_NUMBER_END: Final = 1 << 63


@attrs.frozen
class Kind:
    """A kind of values: how they are read, and the text that says which are allowed."""

    allowed: str
    read: Callable[[str], Any] = attrs.field(eq=False)

    def value(self, name: str, text: str) -> Any:
        """Read a value.

        Raises:
            SettingsError: it is not allowed.
        """
        try:
            return self.read(text)
        except ValueError:
            shown = "***" if name in SECRETS else None
            raise SettingsError(name, text, self.allowed, shown=shown) from None


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse()


def _refuse() -> Any:
    raise ValueError


def _whole(lowest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not lowest <= value < _NUMBER_END:
            raise ValueError
        return value

    return read


def _span(lowest: float, highest: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        found = _SPAN.fullmatch(text.strip().lower())
        if found is None:
            raise ValueError
        value = float(found[1]) * _UNITS[found[2]]
        if not lowest <= value <= highest:
            raise ValueError
        return value

    return read


def _span_kind(lowest: float, highest: float) -> Kind:
    most = "" if highest == math.inf else f" to {highest:g}"
    return Kind(f"seconds from {lowest:g}{most}, or a time such as 500ms, 10s, 5m, 1h", _span(lowest, highest))


def _one_of(*values: str) -> Kind:
    known = {value.lower(): value for value in values}
    return Kind(" or ".join(values), lambda text: known[text.lower()] if text.lower() in known else _refuse())


def _url(text: str) -> str:
    if re.search(r"\bpassword\s*=|//[^/?,()]*:[^/?,()]*@", text, re.IGNORECASE):
        raise ValueError
    return _text(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(text))
    except re.error:
        raise ValueError from None


TEXT: Final = Kind("some text", _text)
FLAG: Final = Kind("true or false", _flag)
COUNT: Final = Kind("a whole number from 1", _whole(1))


@attrs.frozen
class Option:
    """An option: its name, its kind, its default (None: no default), its uses and its text in the documentation."""

    name: str
    kind: Kind
    default: Any
    uses: frozenset[Use]
    about: str


#: Every option, in the order of the documentation.
OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "url",
        Kind("URLs as connect() takes them, without a password", _url),
        None,
        EVERYWHERE,
        "The brokers to ask first, `tcp://host:port` or `(tcp://a:1,tcp://b:2)`; the other nodes of their cluster are "
        "found there. Required.",
    ),
    Option("user", TEXT, None, EVERYWHERE, "The user."),
    Option("password", TEXT, None, EVERYWHERE, "The password. Never part of `url`."),
    Option("passwordFile", TEXT, None, EVERYWHERE, "A file with the password, on each machine."),
    Option("tls.authorities", TEXT, None, EVERYWHERE, "A PEM file: who may vouch for a broker."),
    Option("tls.certificate", TEXT, None, EVERYWHERE, "A PEM file: the certificate of the client."),
    Option("tls.key", TEXT, None, EVERYWHERE, "A PEM file: the key of that certificate."),
    Option(
        "partitionTimeout",
        _span_kind(0.1, 86_400),
        60.0,
        EVERYWHERE,
        "How long it is tried to reach the node of a partition, or of a sink.",
    ),
    Option(
        "subscribe",
        Kind("names of queues, each once, with commas between them", _names),
        None,
        READS,
        "The queues to read, with commas between them: `orders` or `address::queue`.",
    ),
    Option(
        "subscribePattern",
        Kind("a regular expression", _pattern),
        None,
        READS,
        "A regular expression: the queues whose whole names fit are read. Looked at again for each batch.",
    ),
    Option(
        "startingOffsets",
        TEXT,
        "earliest",
        READS,
        'Where to begin: `earliest`, `latest`, or JSON such as `{"orders@NODE": 1200, "bills": -2}`; -2 is earliest, '
        "-1 latest. For a stream it counts when the cursor is made.",
    ),
    Option("endingOffsets", TEXT, "latest", BATCH_READ, "Where to end, without that one: `latest`, or such JSON."),
    Option(
        "cursor",
        TEXT,
        None,
        STREAMING_READ,
        "The name of the durable cursor. By default the queue's name, if there is one queue.",
    ),
    Option("maxOffsetsPerTrigger", COUNT, None, STREAMING_READ, "The most messages of a batch."),
    Option(
        "maxBytesPerTrigger",
        COUNT,
        None,
        STREAMING_READ,
        "About the most bytes of a batch, by the mean size of what waits.",
    ),
    Option(
        "minOffsetsPerTrigger",
        COUNT,
        None,
        STREAMING_READ,
        "A batch waits for so many sequences, up to `maxTriggerDelay`.",
    ),
    Option(
        "maxTriggerDelay", _span_kind(0, 31_536_000), 900.0, STREAMING_READ, "How long `minOffsetsPerTrigger` may wait."
    ),
    Option("minPartitions", COUNT, None, READS, "At least so many tasks, if there are as many sequences."),
    Option("maxRecordsPerPartition", COUNT, None, READS, "The most sequences of a task."),
    Option(
        "failOnDataLoss",
        FLAG,
        True,
        STREAMING_READ,
        "Whether messages that were to be read and are gone fail the query; else there is a warning.",
    ),
    Option("includeHeaders", FLAG, False, READS, "Whether there is the column `headers`."),
    Option("includeMetadata", FLAG, False, READS, "Whether there are the columns of metadata."),
    Option(
        "pushFilters",
        FLAG,
        False,
        BATCH_READ,
        "Whether conditions on `topic`, `partition`, `node` and `offset` decide what is read at all; others are left "
        "to Spark. Takes `spark.sql.python.filterPushdown.enabled=true` in the session: without it Spark refuses "
        "the read.",
    ),
    Option(
        "ackMode",
        _one_of("eager", "commit"),
        "eager",
        STREAMING_READ,
        "When a finished batch is acknowledged: `eager`, as soon as the next one is looked for; `commit`, when Spark "
        "commits it, which is after the next one was planned.",
    ),
    Option("readTimeout", _span_kind(0.1, 86_400), 30.0, EVERYWHERE, "How long an answer of a broker is waited for."),
    Option(
        "lease",
        _span_kind(0.1, 3_600),
        10.0,
        STREAMING_READ,
        "How long a cursor outlives its query's last sign of life.",
    ),
    Option("topic", TEXT, None, WRITES, "The address to send to; goes before the column `topic`."),
    Option(
        "delivery",
        _one_of("exactly-once", "at-least-once"),
        "exactly-once",
        WRITES,
        "`exactly-once`: a batch is sent whole, once. `at-least-once`: rows are sent as they come, with duplicate ids.",
    ),
    Option(
        "sinkId", TEXT, None, STREAMING_WRITE, "The name of the sink in the batch ledger. By default the query's id."
    ),
    Option("txnAppId", TEXT, None, BATCH_WRITE, "With `txnVersion`: the sink of which this is one batch."),
    Option(
        "txnVersion",
        Kind("a whole number from 0", _whole(0)),
        None,
        BATCH_WRITE,
        "With `txnAppId`: the number of the batch; what is not above the last committed one is not sent again.",
    ),
    Option(
        "purgeOnOverwrite",
        FLAG,
        False,
        WRITES,
        "Whether the mode `overwrite`, or the output mode `complete`, may purge what waits at `topic`: the batch takes "
        "its place by one decision. Takes `manage` there, `delivery=exactly-once`, and a broker without others.",
    ),
    Option(
        "stageTimeout",
        _span_kind(limits.STAGE_TIMEOUT_S_MIN, limits.STAGE_TIMEOUT_S_MAX),
        limits.STAGE_TIMEOUT_S,
        WRITES,
        "How long a part of a batch that was written waits for the decision.",
    ),
)
_KNOWN: Final = {option.name.lower(): option for option in OPTIONS}


def read_options(given: Mapping[str, str], use: Use) -> dict[str, Any]:
    """Return the values of all options that may be given for this use, by name, with their defaults.

    Raises:
        SettingsError: an option is unknown, out of place, not allowed, or missing.
    """
    values = {option.name: option.default for option in OPTIONS if use in option.uses}
    for name, text in given.items():
        option = _KNOWN.get(name.lower())
        if option is None:
            if name.lower() not in SPARKS_OWN:
                raise SettingsError(name, None, _nearest_text(name, values, f"options of a {use}"), shown="...")
        elif use not in option.uses:
            places = " or a ".join(sorted(option.uses))
            raise SettingsError(option.name, None, f"only for a {places}, and this is a {use}", shown="...")
        else:
            values[option.name] = option.kind.value(option.name, str(text))
    if values["url"] is None:
        raise SettingsError("url", None, "tcp://host:port of a broker: the option is required")
    return values


def _nearest_text(name: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in names], 1, 0.5)
    hint = next((f"did you mean {one!r}? " for one in names if near and one.lower() == near[0]), "")
    return f"{hint}the {what} are {', '.join(names)}"


def nearest(setting: str, name: str, known: Iterable[str], what: str) -> SettingsError:
    """Make the error of an unknown name; names the nearest known name."""
    return SettingsError(setting, name, _nearest_text(name, known, what))


@attrs.frozen(kw_only=True)
class Access:
    """How the brokers are reached."""

    url: str
    user: str | None
    password: str | None = attrs.field(repr=False)
    password_file: str | None
    authorities: str | None
    certificate: str | None
    key: str | None
    #: Seconds for one answer, and for reaching a node.
    answer_s: float
    reach_s: float


def access_of(values: Mapping[str, Any]) -> Access:
    """The options about reaching brokers.

    Raises:
        SettingsError: two of them don't go together.
    """
    if values["password"] is not None and values["passwordFile"] is not None:
        raise SettingsError("passwordFile", values["passwordFile"], "password or passwordFile, not both")
    if values["tls.key"] is not None and values["tls.certificate"] is None:
        raise SettingsError("tls.key", values["tls.key"], "the key of tls.certificate, which is to be given, too")
    return Access(
        url=values["url"],
        user=values["user"],
        password=values["password"],
        password_file=values["passwordFile"],
        authorities=values["tls.authorities"],
        certificate=values["tls.certificate"],
        key=values["tls.key"],
        answer_s=values["readTimeout"],
        reach_s=values["partitionTimeout"],
    )


@attrs.frozen(kw_only=True)
class WriteSettings:
    """The settings of a write."""

    topic: str | None
    exactly_once: bool
    #: The sink and its batch, where the options say these.
    sink: str | None
    batch: int | None
    stage_timeout_s: float
    #: The address in which a batch takes the place of what waits there; None: it is added.
    purge: str | None = None


def write_settings(values: Mapping[str, Any], *, overwrite: str = "") -> WriteSettings:
    """The options of a write; ``overwrite``: the mode, if it is one that takes the place of what is there.

    Raises:
        SettingsError: two of them don't go together, or the mode takes another one.
    """
    sink, batch = values.get("txnAppId"), values.get("txnVersion")
    if (sink is None) != (batch is None):
        missing, there = ("txnAppId", "txnVersion") if sink is None else ("txnVersion", "txnAppId")
        raise SettingsError(missing, None, f"both or neither of txnAppId and txnVersion; {there} is given")
    exactly_once = values["delivery"] == "exactly-once"
    if sink is not None and not exactly_once:
        raise SettingsError("delivery", values["delivery"], "exactly-once where txnAppId is given")
    if overwrite:
        _check_overwriting(values, overwrite)
    return WriteSettings(
        topic=values["topic"],
        exactly_once=exactly_once,
        sink=sink if sink is not None else values.get("sinkId"),
        batch=batch,
        stage_timeout_s=values["stageTimeout"],
        purge=values["topic"] if overwrite else None,
    )


def _check_overwriting(values: Mapping[str, Any], mode: str) -> None:
    setting = "outputMode" if mode == "complete" else "mode"
    adding = "append or update" if mode == "complete" else "append"
    if not values["purgeOnOverwrite"]:
        raise SettingsError(setting, mode, f"{adding}; or purgeOnOverwrite=true, which purges what waits at topic")
    if values["topic"] is None:
        raise SettingsError("topic", None, f"the option topic where the mode is {mode}: it says what is purged")
    if values["delivery"] != "exactly-once":
        raise SettingsError("delivery", values["delivery"], f"exactly-once where the mode is {mode}")
