"""Warnings: one for each cause, one a minute for what repeats, each with the stable name of its event."""

from __future__ import annotations

import logging

import pytest

from meshq import Broker
from meshq.node._warnings import REPEAT_S, Warnings


def test_what_repeats_is_told_once_a_minute_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 1_000.0
    warnings = Warnings(lambda: now)
    for _ in range(5):
        warnings.say("login_refused", "somebody")
    warnings.say("forbidden", "another cause")
    now += REPEAT_S - 1
    warnings.say("login_refused", "somebody")
    now += 1
    warnings.say("login_refused", "somebody")
    now += REPEAT_S
    warnings.say("login_refused", "somebody")
    assert [(record.event, record.getMessage()) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("login_refused", "somebody"),
        ("forbidden", "another cause"),
        ("login_refused", "somebody (and 5 times more since the last warning)"),
        ("login_refused", "somebody"),
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_who_does_not_keep_up_with_notifications_is_warned_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshq.limits.NOTIFICATIONS_QUEUED_MAX", 2)
    async with Broker("hq", data_dir=None) as broker, broker.client() as slow, broker.client() as client:
        async with slow.subscribe("activemq.notifications", window=1):
            for number in range(20):
                await client.create_queue(f"q{number}")
        assert broker.statistics().notifications_dropped > 10
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("notifications_dropped") == 1
