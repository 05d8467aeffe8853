"""Settings of the demo of Spark: its queues, and when a window is worth an alert."""

from __future__ import annotations

from typing import Final

from meshq.demo._settings import QUEUE

#: The windows of all carriers, and those of them that somebody should hear of.
DELAYS: Final = "delays"
ALERTS: Final = "alerts"
QUEUES: Final = (QUEUE, DELAYS, ALERTS)
#: So many flights of a carrier that left in one hour, late by so many minutes in the mean, are worth an alert.
ALERT_DEPARTED: Final = 5
ALERT_MINUTES: Final = 60
#: The lease of the query's cursors: one that was killed is started again after that at the latest.
LEASE: Final = "2s"
