"""The options of the data source: what is read, what is refused, and what a refusal says."""

from __future__ import annotations

import pytest
from tools import draw_spark_options

from meshq.errors import SettingsError
from meshq.spark._options_plan import (
    BATCH_READ,
    BATCH_WRITE,
    EVERYWHERE,
    OPTIONS,
    READS,
    STREAMING_READ,
    STREAMING_WRITE,
    WRITES,
    Use,
    access_of,
    read_options,
    write_settings,
)
from meshq.spark._read_settings import read_settings, stream_settings

SETTLED: dict[str, tuple[object, frozenset[Use]]] = {
    **dict.fromkeys(
        ("url", "user", "password", "passwordFile", "tls.authorities", "tls.certificate", "tls.key"), (None, EVERYWHERE)
    ),
    "partitionTimeout": (60.0, EVERYWHERE),
    "readTimeout": (30.0, EVERYWHERE),
    **dict.fromkeys(("subscribe", "subscribePattern", "minPartitions", "maxRecordsPerPartition"), (None, READS)),
    "startingOffsets": ("earliest", READS),
    "endingOffsets": ("latest", BATCH_READ),
    "includeHeaders": (False, READS),
    "includeMetadata": (False, READS),
    "pushFilters": (False, BATCH_READ),
    **dict.fromkeys(
        ("cursor", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"), (None, STREAMING_READ)
    ),
    "maxTriggerDelay": (900.0, STREAMING_READ),
    "failOnDataLoss": (True, STREAMING_READ),
    "ackMode": ("eager", STREAMING_READ),
    "lease": (10.0, STREAMING_READ),
    "topic": (None, WRITES),
    "delivery": ("exactly-once", WRITES),
    "stageTimeout": (3_600.0, WRITES),
    "purgeOnOverwrite": (False, WRITES),
    "sinkId": (None, STREAMING_WRITE),
    "txnAppId": (None, BATCH_WRITE),
    "txnVersion": (None, BATCH_WRITE),
}
URL = {"url": "tcp://127.0.0.1:1"}
READ = URL | {"subscribe": "orders"}


def test_the_defaults_of_a_stream() -> None:
    values = read_options(READ, "streaming read")
    reading, stream = read_settings(values), stream_settings(values)
    assert (reading.queues.names, reading.start.word, reading.groups) == (("orders",), "earliest", frozenset())
    assert (reading.min_tasks, reading.max_rows_of_task) == (None, None)
    assert (stream.cursor, stream.eager, stream.fail_on_loss, stream.lease_s) == ("orders", True, True, 10.0)
    assert (stream.max_rows, stream.max_bytes, stream.min_rows, stream.max_delay_s) == (None, None, None, 900.0)
    access = access_of(values)
    assert (access.answer_s, access.reach_s, access.user, access.password) == (30.0, 60.0, None, None)


def test_the_defaults_of_writes() -> None:
    for use in ("batch write", "streaming write"):
        settings = write_settings(read_options(URL, use))  # type: ignore[arg-type]
        assert (settings.topic, settings.exactly_once, settings.sink, settings.batch) == (None, True, None, None)
        assert settings.stage_timeout_s == 3_600 and settings.purge is None
    assert read_options(READ, "batch read")["endingOffsets"] == "latest"


def test_names_count_in_any_case_and_what_is_sparks_own_is_left_to_spark() -> None:
    given = {"URL": "tcp://a:1", "SUBSCRIBE": "a, b::c", "maxoffsetspertrigger": "5", "checkpointLocation": "/x"}
    values = read_options(given, "streaming read")
    assert (values["subscribe"], values["maxOffsetsPerTrigger"]) == (("a", "b::c"), 5)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("1.5", 1.5), ("500ms", 0.5), ("10s", 10.0), ("5 m", 300.0), ("1H", 3_600.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert read_options(READ | {"lease": text}, "streaming read")["lease"] == seconds


@pytest.mark.parametrize(
    ("option", "text", "allowed"),
    [
        ("lease", "0", "seconds from 0.1 to 3600"),
        ("lease", "ten", "seconds from 0.1 to 3600"),
        ("failOnDataLoss", "yes", "true or false"),
        ("maxOffsetsPerTrigger", "0", "a whole number from 1"),
        ("maxOffsetsPerTrigger", "x", "a whole number from 1"),
        ("ackMode", "late", "eager or commit"),
        ("subscribe", "a,,b", "each once"),
        ("subscribe", "a,a", "each once"),
        ("cursor", "", "some text"),
    ],
)
def test_a_value_that_is_not_allowed(option: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingsError, match=allowed) as caught:
        read_options(READ | {option: text}, "streaming read")
    assert caught.value.setting == option


def test_an_unknown_option_names_the_nearest_and_shows_no_value() -> None:
    with pytest.raises(SettingsError, match="did you mean 'password'") as caught:
        read_options(READ | {"pasword": "secret"}, "batch read")
    assert "secret" not in str(caught.value)
    with pytest.raises(SettingsError, match="the options of a batch read are ") as caught:
        read_options(READ | {"kafka.bootstrap.servers": "x"}, "batch read")
    assert "did you mean" not in str(caught.value)


def test_an_option_that_is_out_of_place_says_where_it_belongs() -> None:
    with pytest.raises(SettingsError, match="only for a streaming read, and this is a batch read"):
        read_options(READ | {"cursor": "c"}, "batch read")
    with pytest.raises(SettingsError, match="only for a batch read"):
        read_options(READ | {"endingOffsets": "latest"}, "streaming read")
    with pytest.raises(SettingsError, match="only for a batch write or a streaming write"):
        read_options(READ | {"topic": "t"}, "batch read")


@pytest.mark.parametrize(
    "url", ["tcp://user:secret@a:1", "tcp://a:1?password=secret", "(tcp://b:1,tcp://u:secret@a:1)"]
)
def test_a_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SettingsError, match="without a password") as caught:
        read_options({"url": url}, "batch write")
    assert "secret" not in str(caught.value)


def test_the_url_is_required() -> None:
    with pytest.raises(SettingsError, match="the option is required"):
        read_options({"subscribe": "a"}, "batch read")


def test_exactly_one_of_subscribe_and_pattern() -> None:
    for more in ({}, {"subscribe": "a", "subscribePattern": "a.*"}):
        with pytest.raises(SettingsError, match="exactly one of subscribe and subscribePattern"):
            read_settings(read_options(URL | more, "batch read"))
    with pytest.raises(SettingsError, match="a regular expression"):
        read_options(URL | {"subscribePattern": "("}, "batch read")


def test_a_pattern_finds_whole_names_and_none_of_the_brokers_own() -> None:
    queues = read_settings(read_options(URL | {"subscribePattern": "o.*|.*meshq.*|.*temp.*"}, "batch read")).queues
    known = ["orders", "more", "$meshq.stage.1", "$temporary.x", "activemq.notifications", "o"]
    assert queues.among(known) == ["orders", "o"]
    assert "that fit" in str(queues)


def test_a_cursor_needs_a_name_unless_there_is_one_queue() -> None:
    for more in ({"subscribe": "a,b"}, {"subscribePattern": "a"}):
        with pytest.raises(SettingsError, match="unless one single queue") as caught:
            stream_settings(read_options(URL | more, "streaming read"))
        assert caught.value.setting == "cursor"
    values = read_options(URL | {"subscribe": "events::audit"}, "streaming read")
    assert stream_settings(values).cursor == "audit"


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(SettingsError, match="password or passwordFile, not both"):
        access_of(read_options(READ | {"password": "x", "passwordFile": "y"}, "batch read"))
    with pytest.raises(SettingsError, match=r"the key of tls\.certificate"):
        access_of(read_options(READ | {"tls.key": "key.pem"}, "batch read"))
    more = {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(SettingsError, match="at most maxOffsetsPerTrigger, which is 5"):
        stream_settings(read_options(READ | more, "streaming read"))
    with pytest.raises(SettingsError, match="both or neither"):
        write_settings(read_options(URL | {"txnAppId": "a"}, "batch write"))
    with pytest.raises(SettingsError, match="both or neither"):
        write_settings(read_options(URL | {"txnVersion": "1"}, "batch write"))
    with pytest.raises(SettingsError, match="exactly-once where txnAppId is given"):
        given = URL | {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"}
        write_settings(read_options(given, "batch write"))


@pytest.mark.parametrize(
    ("mode", "options", "setting", "allowed"),
    [
        ("overwrite", {"topic": "t"}, "mode", "append; or purgeOnOverwrite=true"),
        ("complete", {"topic": "t"}, "outputMode", "append or update; or purgeOnOverwrite=true"),
        ("overwrite", {"purgeOnOverwrite": "true"}, "topic", "the option topic"),
        (
            "overwrite",
            {"purgeOnOverwrite": "true", "topic": "t", "delivery": "at-least-once"},
            "delivery",
            "exactly-once where the mode is overwrite",
        ),
    ],
)
def test_overwriting_is_asked_for_twice_and_says_where(
    mode: str, options: dict[str, str], setting: str, allowed: str
) -> None:
    use: Use = "streaming write" if mode == "complete" else "batch write"
    with pytest.raises(SettingsError, match=allowed) as caught:
        write_settings(read_options(URL | options, use), overwrite=mode)
    assert caught.value.setting == setting
    given = URL | options | {"purgeOnOverwrite": "true", "topic": "t", "delivery": "exactly-once"}
    assert write_settings(read_options(given, use), overwrite=mode).purge == "t"
    # Whoever appends purges nothing.
    assert write_settings(read_options(given, use)).purge is None


def test_every_option_that_was_settled_is_there_with_its_default_and_its_uses() -> None:
    found = {option.name: (option.default, option.uses) for option in OPTIONS}
    assert found == SETTLED


def test_a_password_is_in_no_text_of_its_settings() -> None:
    access = access_of(read_options(READ | {"user": "u", "password": "secret"}, "batch read"))
    assert access.password == "secret" and "secret" not in repr(access)


def test_the_page_of_options_is_drawn_from_the_table() -> None:
    drawn = draw_spark_options.page()
    assert draw_spark_options.PAGE.read_text(encoding="utf-8") == drawn, "run python -m tools.draw_spark_options"
    assert "| `failOnDataLoss` | `true` | streaming read |" in drawn and "| `lease` | `10` |" in drawn


def test_each_option_has_a_name_of_its_own_and_a_text() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    assert all(option.about.endswith(".") and option.uses for option in OPTIONS)
