"""Every setting that is a duration or a size may be given with a unit, and no other setting."""

from __future__ import annotations

import pytest

from meshq.config._keys import Key, keys_of, tables
from meshq.config._units_format import BYTES, SECONDS, units_of

DURATIONS = {
    "backup_request_retry_interval",
    "broadcast_period",
    "cache_timeout",
    "call_failover_timeout",
    "call_timeout",
    "check_hosts_period",
    "check_hosts_timeout",
    "check_period",
    "connection_timeout",
    "connection_ttl",
    "fence_timeout",
    "group_timeout",
    "initial_replication_sync_timeout",
    "initial_wait_timeout",
    "lease",
    "lock_check_period",
    "max_redelivery_delay",
    "max_retry_interval",
    "max_session_ttl",
    "notification_interval",
    "quorum_timeout",
    "quorum_vote_wait",
    "redelivery_delay",
    "redistribution_delay",
    "refresh_timeout",
    "retry_interval",
    "session",
    "stop_timeout",
    "stuck_timeout",
    "tick",
    "transaction_timeout",
    "vote_retry_wait",
}
SIZES = {
    "confirmation_window_size",
    "max_size_bytes",
    "memory_limit",
    "min_large_message_size",
    "page_size_bytes",
    "producer_window_size",
    "segment_bytes",
}
NUMBERS = {
    "backup_port_offset",
    "backup_request_retries",
    "bind_port",
    "duplicate_id_cache_size",
    "initial_connect_attempts",
    "max_backups",
    "max_delivery_attempts",
    "max_group_pins",
    "max_hops",
    "max_saved_replicated_journals",
    "max_sessions_per_user",
    "max_size_messages",
    "cursor_max_lag",
    "network_ttl",
    "notification_attempts",
    "port",
    "prefetch",
    "quorum_size",
    "reconnect_attempts",
    "redelivery_delay_multiplier",
    "retries",
    "retry_interval_multiplier",
    "session_percent",
    "size",
    "vote_retries",
    "window",
}
KEYS = {f"{table or 'broker'}: {key.name}": key for table, kind in tables().items() for key in keys_of(kind).values()}


def units_expected(name: str) -> dict[str, float] | None:
    """The units that a setting of this name should have."""
    return dict(SECONDS) if name in DURATIONS else dict(BYTES) if name in SIZES else None


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_setting_has_units_exactly_if_it_is_a_duration_or_a_size(key: Key) -> None:
    numeric = key.name in DURATIONS | SIZES | NUMBERS
    assert key.is_number is numeric, "say in this file whether the setting is a duration, a size or a plain number"
    assert key.units == units_expected(key.name)


def test_the_lists_name_each_setting_once_and_no_other() -> None:
    names = [*DURATIONS, *SIZES, *NUMBERS]
    assert len(names) == len(set(names))
    assert set(names) == {key.name for key in KEYS.values() if key.is_number}


def test_a_name_says_its_unit_with_a_whole_word_at_its_end() -> None:
    assert units_of("await") is None
    assert units_of("kilobytes") is None
