"""The management operations of balancers: where a key goes, and how a balancer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshq.abc import BalancerTarget, Redirector
from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import AnswerWait, Steps, Values
from meshq.errors import NotFoundError

if TYPE_CHECKING:
    from meshq.broker.core._core import Core

#: Characters of a key that is asked for.
_KEY_CHARACTERS_MAX = 1_024


def balancers(core: Core, after: int = 0) -> Values:
    """A page of the balancers of this node, with the state and the counters of each."""
    found = core.settings.redirectors
    return page_of("balancers", [dict(found[name].describe()) for name in sorted(found)], after)


def balancer_targets(core: Core, name: str, after: int = 0) -> Values:
    """The state and the counters of a balancer, and a page of the targets of its pool."""
    found = _balancer(core, name)
    rows = [dict(row) for row in found.describe_targets()]
    return {**found.describe(), **page_of("targets", rows, after)}


def balancer_target(core: Core, name: str, key: str) -> Steps:
    """The target of a key, for a client that connects there by itself; `found` is false if there is none in time."""
    found = _balancer(core, name)
    answer: Values = {"found": False}

    def begin(resume: Callable[[], None]) -> None:
        def take(target: BalancerTarget | None) -> None:
            if target is not None:
                answer.update(found=True, url=target.url, node_id=target.node_id, local=target.local)
            resume()

        found.find_target(key[:_KEY_CHARACTERS_MAX], take)

    yield AnswerWait(begin)
    yield answer


def explain_balancer(core: Core, name: str, key: str, after: int = 0) -> Values:
    """The decision about a key now, and a page of its steps; nothing changes."""
    values = dict(_balancer(core, name).explain(key[:_KEY_CHARACTERS_MAX]))
    return {**page_of("steps", values.pop("steps"), after), **values}


def set_balancer_filter(core: Core, name: str, setting: str, text: str | None = None) -> Values:
    """Set `target_key_filter` or `local_target_filter` of a balancer, for connections from now on."""
    _balancer(core, name).set_filter(setting, text)
    return {}


def _balancer(core: Core, name: str) -> Redirector:
    found = core.settings.redirectors.get(name)
    if found is None:
        known = ", ".join(map(repr, sorted(core.settings.redirectors))) or "none"
        raise NotFoundError(f"there is no balancer {name[:64]!r}; known: {known}")
    return found
