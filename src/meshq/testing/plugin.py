"""The plugin of pytest: fixtures for programs that use meshq, and the options of their simulation.

Loading this file loads neither trio nor the broker: it is loaded in every run of pytest in an environment where meshq
is installed.  The fixtures for trio stand in a file of their own, which is loaded only beside pytest-trio.
"""

from __future__ import annotations

import functools
import itertools
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from meshq.testing.kit._again_line import again_line

if TYPE_CHECKING:
    from meshq.testing.kit._certificates import Certificates
    from meshq.testing.kit._server import ServerInThread
    from meshq.testing.processes._process_cluster import ProcessCluster

    ProcessClusterFactory = Callable[..., ProcessCluster]

#: Fixtures of a simulated test, which runs on trio.
TRIO_FIXTURES: Final = ("meshq_broker", "meshq_client", "meshq_cluster", "meshq_journal", "meshq_network")
INSTALL: Final = "pip install 'meshq[testing]'"
#: The most that a test may take, in simulated seconds.
LIMIT_S_MAX: Final = 1e9
#: The async function of a test that is ours.
TEST: Final = pytest.StashKey[Callable[..., Any]]()
#: The mark of a function that ``@simulated`` has made.
SIMULATED: Final = "meshq_simulated"
#: Why a test can't run; found when tests are collected, and told by this test alone.
REFUSED: Final = pytest.StashKey[str]()
#: The world in which a test runs, or has run.
WORLD: Final = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a simulation, each on the command line and in the settings of pytest."""
    group = parser.getgroup("meshq", "simulated tests of programs that use meshq")
    seed = "the seed of simulated tests; without it each test has its own, made of its name"
    trace = "write a line for each event of a simulated test: seconds, node, event"
    group.addoption("--meshq-seed", metavar="N", type=int, default=None, help=seed)
    group.addoption("--meshq-trace", action="store_true", default=None, help=trace)
    parser.addini("meshq_seed", seed, default="")
    parser.addini("meshq_trace", trace, type="bool", default=False)
    parser.addini("meshq_limit", "simulated seconds that a simulated test may take (7200)", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Offer the fixtures for trio beside pytest-trio; without it, fixtures that fail with the command to install it."""
    if config.pluginmanager.hasplugin("trio"):
        from meshq.testing.kit import _trio_fixtures as fixtures
    else:
        from meshq.testing.kit import _missing_fixtures as fixtures  # type: ignore[no-redef]
    config.pluginmanager.register(fixtures, "meshq-fixtures")
    config.addinivalue_line("markers", "meshq_limit(seconds): the simulated seconds that a simulated test may take")
    seed_option(config)


def seed_option(config: pytest.Config) -> int | None:
    """Return the seed that was asked for; the command line wins.

    Raises:
        pytest.UsageError: it is no whole number from 0.
    """
    given = config.getoption("--meshq-seed")
    text = config.getini("meshq_seed") if given is None else str(given)
    if text == "":
        return None
    if not text.isdecimal():
        raise pytest.UsageError(f"meshq_seed={text!r} is not allowed; allowed: a whole number from 0")
    return int(text)


def trace_option(config: pytest.Config) -> bool:
    """Return whether each event of a simulated test is to be written."""
    return bool(config.getoption("--meshq-trace") or config.getini("meshq_trace"))


def limit_of(item: pytest.Item) -> float | None:
    """Return the simulated seconds that a test may take, by its marker or the settings of pytest; None: by neither.

    Raises:
        pytest.UsageError: these are no seconds.
    """
    marker = item.get_closest_marker("meshq_limit")
    given: Any
    if marker is not None:
        given = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
    else:
        text = item.config.getini("meshq_limit")
        if text == "":
            return None
        given = float(text) if text.replace(".", "", 1).isdecimal() else text
    if type(given) not in (int, float) or not 0 < given <= LIMIT_S_MAX:
        raise pytest.UsageError(f"meshq_limit={given!r} is not allowed; allowed: simulated seconds, more than 0")
    return float(given)


def again(item: pytest.Item, seed: int) -> str:
    """Return the command that repeats a test with a seed, in the folder in which pytest was begun."""
    return again_line(item.nodeid, item.config.rootpath, item.config.invocation_params.dir, seed)


# -- which tests are ours


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Take async tests that ask for a fixture of ours, before other plugins take tests without a marker."""
    made = yield
    if collector.config.pluginmanager.hasplugin("trio"):
        for item in made if isinstance(made, list) else [made]:
            if isinstance(item, pytest.Function):
                _check_plain(item)
                if _is_ours(item):
                    _take(item)
    return made


def _check_plain(item: pytest.Function) -> None:
    """Refuse a marker of an async framework in front of ``@simulated``, which makes a plain test."""
    if getattr(item.obj, SIMULATED, False):
        for other in ("anyio", "asyncio", "trio"):
            if item.get_closest_marker(other) is not None:
                item.stash[REFUSED] = f"@simulated makes a plain test, which takes no marker {other}"
        if any(True for _ in item.iter_markers("meshq_limit")):
            item.stash[REFUSED] = "@simulated takes no marker meshq_limit, but a keyword: @simulated(limit=...)"


def _is_ours(item: pytest.Function) -> bool:
    if not iscoroutinefunction(item.obj) or not set(TRIO_FIXTURES).intersection(item.fixturenames):
        return False
    return all(item.get_closest_marker(other) is None for other in ("anyio", "asyncio"))


def _take(item: pytest.Function) -> None:
    """Mark a test for pytest-trio, and let it look like a plain function until it is called."""
    if any("run" in marker.kwargs for marker in item.iter_markers("trio")):
        item.stash[REFUSED] = "a test with a fixture of meshq takes no run= in its marker trio"
    test = item.obj
    item.stash[TEST] = test
    item.add_marker(pytest.mark.trio(run=functools.partial(_run, item)), append=False)

    @functools.wraps(test)
    def not_called(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("pytest-trio did not run this test")

    item.obj = not_called


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Give a test of ours to pytest-trio."""
    __tracebackhide__ = True
    test = item.stash.get(TEST, None)
    if test is not None and isinstance(item, pytest.Function):
        item.obj = _closing(test if item.cls is None else getattr(item.instance, item.originalname))
    return (yield)


def _closing(test: Callable[..., Any]) -> Callable[..., Any]:
    """Make a test fail that leaves an object open."""

    @functools.wraps(test)
    async def closing(**keywords: Any) -> None:
        __tracebackhide__ = True
        from meshq.testing.kit._left_open import called

        await called(functools.partial(test, **keywords), (), "the test")

    return closing


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a fixture for trio in a test that is none of trio's, and a marker with which a test can't run."""
    if REFUSED in item.stash:
        pytest.fail(item.stash[REFUSED], pytrace=False)
    asked = [name for name in getattr(item, "fixturenames", ()) if name in TRIO_FIXTURES]
    if asked and TEST not in item.stash and item.config.pluginmanager.hasplugin("trio"):
        plain = isinstance(item, pytest.Function) and not iscoroutinefunction(item.obj)
        hint = "write async def, or use meshq_server" if plain else "use meshq_server"
        pytest.fail(f"{asked[0]} needs a trio test; {hint}", pytrace=False)


# -- the run of a test


def _run(item: pytest.Function, test: Callable[[], Any], *, clock: Any, instruments: Any = ()) -> None:
    """Run a test with its fixtures in a world of its own; called by pytest-trio in the place of ``trio.run``."""
    __tracebackhide__ = True
    from meshq.testing.kit._run import clock_of, run_in_world
    from meshq.testing.kit._world import TEST_S_MAX, SimulatedWorld

    seed = seed_option(item.config)
    clock = clock if clock is not None else clock_of(item.funcargs)
    tell = (lambda event: sys.stdout.write(f"{event}\n")) if trace_option(item.config) else None
    seed = zlib.crc32(item.nodeid.encode()) if seed is None else seed
    world = SimulatedWorld(seed, clock, tell, limit_s=limit_of(item) or TEST_S_MAX)
    item.stash[WORLD] = world
    run_in_world(world, test, instruments)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the section ``meshq`` to the report of a test that failed in a world."""
    report = yield
    world = item.stash.get(WORLD, None)
    if report.when == "call" and report.failed and world is not None:
        events = world.last_events() if item.config.get_verbosity() > 0 else []
        lines = [*world.reports, *events, f"again: {again(item, world.seed)}"]
        report.sections.append(("meshq", "\n".join(lines)))
    return report


# -- fixtures for every framework


@pytest.fixture
def meshq_settings() -> dict[str, Any]:
    """The keywords of ``Broker`` for ``meshq_broker`` and ``meshq_server``; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def meshq_tls(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for brokers of this machine and other hosts, and an authority that clients believe."""
    try:
        from meshq.testing.kit._certificates import Certificates
    except ModuleNotFoundError as error:
        if error.name != "trustme":
            raise
        pytest.fail(f"meshq_tls needs trustme, which is not installed: {INSTALL}", pytrace=False)
    return Certificates(tmp_path_factory.mktemp("meshq_tls"))


@pytest.fixture(scope="session")
def meshq_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of Spark on this machine, with two cores, for all tests of a run; skips where there is no Spark."""
    from meshq.testing.processes._spark_session import spark_session, why_no_spark

    why = why_no_spark()
    if why:
        pytest.skip(f"meshq_spark: {why}")
    with spark_session(tmp_path_factory.mktemp("meshq_spark")) as session:
        yield session


@pytest.fixture
def meshq_server(tmp_path: Path, meshq_settings: dict[str, Any]) -> Iterator[ServerInThread]:
    """A broker in a thread of its own, in real time, with its data in ``tmp_path``; for every framework."""
    from meshq.testing.kit._server import ServerInThread

    with ServerInThread(str(tmp_path / "meshq"), meshq_settings) as server:
        yield server


@pytest.fixture
def meshq_process_cluster(tmp_path: Path) -> Iterator[ProcessClusterFactory]:
    """``meshq_process_cluster(nodes=3, queues=["orders"])`` starts brokers in processes of their own, in real time."""
    from meshq.testing.kit._cluster_settings import ClusterPlan, check_keywords
    from meshq.testing.processes._process_cluster import ProcessCluster

    with ExitStack() as stack:
        numbers = itertools.count(1)

        def make(
            nodes: int = 3, *, queues: Sequence[str] = (), ha: str | None = None, links: bool = False, **others: Any
        ) -> ProcessCluster:
            check_keywords(others, ("nodes", "queues", "ha", "links"))
            settings = ClusterPlan(nodes=nodes, queues=queues, ha=ha)
            cluster = ProcessCluster(tmp_path / f"meshq-{next(numbers)}", settings, links=links)
            stack.callback(cluster.close)
            cluster.form()
            return cluster

        yield make


@pytest.fixture
def meshq_url(meshq_server: ServerInThread) -> str:
    """The URL of ``meshq_server``."""
    return meshq_server.url
