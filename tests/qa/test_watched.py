"""What the watchers of the simulation stand in front of stays as it is."""

from __future__ import annotations

import inspect

from meshq.abc import Activation, TermGuard
from qa.ha.watched import WatchedActivation, WatchedGuard


def test_each_call_of_a_policy_goes_through_its_watcher() -> None:
    """A call that the watcher has from the base class does nothing, and the policy never hears of it."""
    for base, watcher in ((Activation, WatchedActivation), (TermGuard, WatchedGuard)):
        calls = {name for name, _ in inspect.getmembers(base) if not name.startswith("_")}
        assert calls - set(vars(watcher)) == set()
