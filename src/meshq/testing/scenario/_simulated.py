"""``@simulated``: a test of pytest that runs with many seeds."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Unpack

from meshq.errors import UsageError
from meshq.testing.kit._cluster_settings import NodeKeywords
from meshq.testing.plugin import SIMULATED, again, seed_option, trace_option
from meshq.testing.scenario._fault import Faults
from meshq.testing.scenario._fault_run import Invariant
from meshq.testing.scenario._seed_run import LIMIT_S, plan_of
from meshq.testing.scenario._simulate import DURATION_S, NODES, SEEDS, Seeds, seeds_of

#: The fixture that tells which test it is, and its options.
REQUEST: Final = "request"


def simulated(
    *,
    seeds: int | Iterable[int] = SEEDS,
    nodes: int = NODES,
    faults: Faults = "all",
    duration: float = DURATION_S,
    invariants: Sequence[Invariant] = (),
    shrink: bool = True,
    limit: float = LIMIT_S,
    **settings: Unpack[NodeKeywords],
) -> Callable[[Callable[..., Awaitable[object]]], Callable[..., None]]:
    """Make a test of an async function whose first parameter is a cluster: it is run once for each seed.

    The settings are those of ``simulate``.  The other parameters of the function are fixtures that are not async.
    ``pytest --meshq-seed N`` runs the seed ``N`` alone.

    Raises:
        SettingsError: a setting is not allowed.
        UsageError: this is no async function with a parameter for the cluster.
    """
    plan = plan_of(
        nodes, dict(settings), faults=faults, duration=duration, invariants=invariants, shrink=shrink, limit=limit
    )
    chosen = seeds_of(seeds)

    def decorate(test: Callable[..., Awaitable[object]]) -> Callable[..., None]:
        if not inspect.iscoroutinefunction(test):
            raise UsageError("@simulated(...) stands in front of an async function")
        signature = inspect.signature(test)
        names = list(signature.parameters)
        # In a class the first one is the instance.
        owner = names[:1] if names[:1] == ["self"] else []
        if len(names) == len(owner):
            raise UsageError(f"{test.__qualname__} needs a parameter for the cluster")
        cluster = names[len(owner)]

        @functools.wraps(test)
        def simulated_test(*instance: Any, **fixtures: Any) -> None:
            __tracebackhide__ = True
            request = fixtures[REQUEST] if REQUEST in names else fixtures.pop(REQUEST)
            asked = seed_option(request.config)
            tell = (lambda event: sys.stdout.write(f"{event}\n")) if trace_option(request.config) else None
            report = Seeds(
                lambda given: test(*instance, **{cluster: given}, **fixtures),
                plan,
                command=lambda seed: again(request.node, seed),
                tell=tell,
            ).run(chosen if asked is None else [asked])
            if report.failures and request.config.get_verbosity() > 0:
                request.node.add_report_section("call", "meshq", "\n".join(report.failures[0].events))
            report.check()

        others = [signature.parameters[name] for name in names if name not in (cluster, REQUEST)]
        parameter = inspect.Parameter(REQUEST, inspect.Parameter.KEYWORD_ONLY)
        setattr(simulated_test, "__signature__", signature.replace(parameters=[*others, parameter]))  # noqa: B010
        setattr(simulated_test, SIMULATED, True)
        return simulated_test

    return decorate
