"""The registry of everything that can be refused: numbers that stay, and errors that come out on the other side."""

from __future__ import annotations

import inspect

import pytest

from meshq import errors
from meshq.wire import BY_NAME, BY_NUMBER, decline, error_of, refusal_of, violation

#: The numbers that are in use, in all releases so far.  A line may be added; none may be changed or removed.
NUMBERS = {
    "bad_magic": 1, "unknown_version": 2, "unknown_type": 3, "unknown_flags": 4, "too_large": 5, "bad_checksum": 6,
    "bad_header": 7, "bad_table": 8, "illegal_frame": 9, "bad_number": 10, "bad_channel": 11, "bad_tag": 12,
    "no_credit": 13, "truncated": 14,
    "no_common_version": 32, "unknown_mechanism": 33, "not_active": 35, "stopping": 36,
    "too_many_sessions": 37, "session_taken": 38, "role_not_served": 39, "silent": 40,
    "not_authenticated": 41, "crowded": 42, "use_another_server": 45,
    "not_found": 64, "address_full": 65, "usage": 66, "unknown_operation": 67, "journal_broken": 68,
    "unknown_producer": 69, "queue_deleted": 70, "too_many": 71, "stale_delivery": 72,
}  # fmt: skip


def test_no_number_has_changed_its_meaning() -> None:
    assert {name: BY_NAME[name].number for name in NUMBERS} == NUMBERS
    assert set(BY_NAME) >= set(NUMBERS)
    assert {entry.number: entry for entry in BY_NAME.values()} == BY_NUMBER
    assert 0 not in BY_NUMBER


def test_what_breaks_the_protocol_closes_the_connection() -> None:
    for entry in BY_NAME.values():
        assert entry.sentence
        if entry.error is errors.RemoteProtocolError or entry.number < 64:
            assert entry.closes
    assert sorted(entry.name for entry in BY_NAME.values() if entry.number >= 64 and entry.closes) == ["journal_broken"]


@pytest.mark.parametrize("entry", list(BY_NAME.values()), ids=lambda entry: entry.name)
def test_a_refusal_becomes_its_error_on_the_other_side(entry: object) -> None:
    error = error_of(entry.number, "because", None)
    assert type(error) is entry.error
    assert "because" in str(error)
    assert error.outcome == entry.error.default_outcome
    for outcome in ("done", "not_done", "unknown"):
        assert error_of(entry.number, "because", outcome).outcome == outcome
    assert entry.sentence in str(error_of(entry.number, ""))
    if isinstance(error, errors.RemoteProtocolError):
        assert error.refusal == entry.name
        assert refusal_of(error) is entry


def test_what_has_failed_on_the_other_side_has_a_cause_in_the_words_of_the_peer() -> None:
    for entry in BY_NAME.values():
        for text in ("because", ""):
            cause = error_of(entry.number, text, "unknown").__cause__
            if issubclass(entry.error, errors.BrokenError):
                assert type(cause) is errors.RefusedError and cause.outcome == "unknown"
                assert str(cause) == f"the peer says: {text or entry.sentence}"
            else:
                assert cause is None


def test_an_entry_that_is_not_known_here_is_still_a_refusal() -> None:
    error = error_of(9_999, "a later reason", "unknown")
    assert type(error) is errors.RefusedError
    assert error.outcome == "unknown"
    assert "9999" in str(error)
    assert "a later reason" in str(error)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (errors.NotFoundError("x"), "not_found"),
        (errors.AddressFullError("x"), "address_full"),
        (errors.UsageError("x"), "usage"),
        (errors.SettingsError("a", 1, "b"), "usage"),
        (errors.BusyError("x"), "usage"),
        (errors.JournalBrokenError("x"), "journal_broken"),
        (errors.UnblockedError("x"), "unknown_producer"),
        (errors.StaleDeliveryError("x"), "stale_delivery"),
        (errors.NotActiveError("x"), "not_active"),
        (errors.ClosedError("x"), "usage"),
        (violation("bad_tag", "x"), "bad_tag"),
        (violation("unknown_producer", "x"), "unknown_producer"),
        (errors.RemoteProtocolError("x"), "illegal_frame"),
        (errors.RemoteProtocolError("x", refusal="of a later version"), "illegal_frame"),
    ],
)
def test_an_error_is_told_by_its_own_entry_or_that_of_its_nearest_kind(error: errors.MeshqError, name: str) -> None:
    assert refusal_of(error) is BY_NAME[name]


def test_every_error_of_ours_can_be_told_to_a_peer() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.MeshqError)]
    assert len(kinds) > 20
    for kind in kinds:
        error = kind.__new__(kind)
        Exception.__init__(error, "x")
        error.refusal = "x"
        assert refusal_of(error).number > 0


def test_a_violation_says_what_and_how() -> None:
    error = violation("bad_number", "9, not 3")
    assert str(error) == "the frame's number is not the next one: 9, not 3"
    assert (error.refusal, error.outcome) == ("bad_number", "unknown")
    with pytest.raises(KeyError):
        violation("no such entry", "x")


@pytest.mark.parametrize("entry", list(BY_NAME.values()), ids=lambda entry: entry.name)
def test_what_is_declined_by_name_is_told_by_that_entry(entry: object) -> None:
    # Several entries share a kind of error: the kind alone would not say which.
    error = decline(entry.name, "so it is")
    assert type(error) is entry.error
    assert refusal_of(error) is entry
    assert str(error) == f"{entry.sentence}: so it is"
