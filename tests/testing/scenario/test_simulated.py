"""``@simulated`` in runs of pytest of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshq.errors import UsageError
from meshq.testing import SimulationFailed, simulated
from tests.testing.kit.test_plugin import LOADED, run

FAILING = """
import re
from pathlib import Path

import pytest
import trio
from meshq.testing import Fault, simulated

KILL = Fault(1, "kill", ("n0",), seconds=2)

@simulated(seeds=[5, 6, 7], nodes=2, faults=[KILL, Fault(2, "pause", ("n1",), seconds=1)])
async def test_it(shop):
    await trio.sleep(5)
    assert shop.seed < 6 or shop.broker("n0").statistics().uptime_s > 4, "n0 was away"
"""
MANY = """
import re
from pathlib import Path

import pytest
import trio
from meshq.testing import simulated

SEEN = []

@pytest.fixture
def goods():
    return "umbrellas"

@simulated(seeds=3, nodes=1, faults="none")
async def test_with_fixtures(cluster, tmp_path, goods, request):
    SEEN.append(cluster.seed)
    await trio.sleep(1)
    assert tmp_path.is_dir() and goods == "umbrellas" and request.node.name == "test_with_fixtures"

def test_all_seeds_were_run():
    assert SEEN == [0, 1, 2]

class TestShop:
    @pytest.mark.parametrize("number", [4, 5])
    @simulated(seeds=1, nodes=1, faults="none")
    async def test_in_a_class(self, cluster, number):
        await trio.sleep(1)
        assert isinstance(self, TestShop) and number > 3

@simulated(seeds=1, nodes=1)
async def test_skipped(cluster):
    pytest.skip("not here")
"""


@pytest.mark.parametrize("options", [("-p", "no:asyncio"), ("-o", "trio_mode=true"), ("-o", "asyncio_mode=auto")])
def test_it_runs_all_seeds_with_fixtures_beside_other_plugins(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    both = () if "no:asyncio" in options else ("-o", "asyncio_default_fixture_loop_scope=function")
    run(pytester, MANY, *options, *both).assert_outcomes(passed=4, skipped=1)


@pytest.mark.slow
def test_a_failure_shows_seed_faults_events_and_the_command_which_repeats_it(pytester: pytest.Pytester) -> None:
    text = FAILING.replace('shop.broker("n0").statistics().uptime_s > 4', "not killed(shop)")
    text += '\ndef killed(shop):\n    return "n0        killed" in shop.report()\n'
    result = run(pytester, text, "-p", "no:asyncio")
    result.assert_outcomes(failed=1)
    name = "test_a_failure_shows_seed_faults_events_and_the_command_which_repeats_it.py::test_it"
    told = [
        "E * seed 6 fails, with 1 of its 2 faults: AssertionError: n0 was away*",
        " * Fault(at=1, kind='kill', where=('n0',), seconds=0.01),",
        f" * again: pytest {name} --meshq-seed 6",
    ]
    result.stdout.fnmatch_lines(told)
    again = run(pytester, text, "-p", "no:asyncio", "--meshq-seed", "6")
    again.stdout.fnmatch_lines(told)
    assert "meshq/testing/scenario" not in again.stdout.str()
    asked = run(pytester, text, "-p", "no:asyncio", "--meshq-seed", "6", "-v")
    asked.stdout.fnmatch_lines([*told, "*- Captured meshq call -*", "* n0        killed"])
    run(pytester, text, "-p", "no:asyncio", "--meshq-seed", "5").assert_outcomes(passed=1)
    traced = run(pytester, text, "-p", "no:asyncio", "-s", "--meshq-trace", "--meshq-seed", "5")
    traced.stdout.fnmatch_lines(["* n0        broker active", "* n0        killed"])


def test_other_markers_stand_before_or_behind_it_and_the_one_for_a_limit_is_refused(pytester: pytest.Pytester) -> None:
    text = """
    import pytest
    from meshq.testing import simulated

    @pytest.mark.slow
    @simulated(seeds=1, nodes=1, faults=[])
    @pytest.mark.lengthy
    async def test_it(cluster):
        await cluster.settled()

    @pytest.mark.meshq_limit(5)
    @simulated(seeds=1, nodes=1)
    async def test_limit(cluster):
        pass
    """
    result = run(pytester, text, "-p", "no:asyncio", "-o", "markers=\n    slow: of ours\n    lengthy: too")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["@simulated takes no marker meshq_limit, but a keyword: @simulated(limit=...)"])


@pytest.mark.parametrize("marker", ["asyncio", "trio", "anyio"])
def test_a_marker_of_a_framework_is_refused(pytester: pytest.Pytester, marker: str) -> None:
    text = f"""
    import pytest
    from meshq.testing import simulated

    @pytest.mark.{marker}
    @simulated(nodes=1)
    async def test_it(cluster):
        pass

    def test_other():
        pass
    """
    result = run(pytester, text, "-p", "no:asyncio", "-o", "markers=asyncio: of a plugin that is not loaded here")
    result.stdout.fnmatch_lines([f"*@simulated makes a plain test, which takes no marker {marker}"])
    # The others of its file run all the same.
    result.assert_outcomes(errors=1, passed=1)


def test_a_failure_by_the_means_of_pytest_counts(pytester: pytest.Pytester) -> None:
    text = """
    import pytest
    from meshq.testing import simulated

    @simulated(nodes=1, faults="none")
    async def test_it(cluster):
        pytest.fail("by hand")
    """
    result = run(pytester, text, "-p", "no:asyncio")
    result.stdout.fnmatch_lines(["E * seed 0 fails, with no fault at all: Failed: by hand"])


def test_what_is_decorated_is_an_async_function_with_a_cluster() -> None:
    async def nothing() -> None:
        pass

    with pytest.raises(UsageError, match="needs a parameter for the cluster"):
        simulated(nodes=1)(nothing)
    with pytest.raises(UsageError, match="in front of an async function"):
        simulated(nodes=1)(print)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="faults='x'"):
        simulated(faults="x")
    assert issubclass(SimulationFailed, AssertionError) and LOADED


PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "find-a-lost-order.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_service_of_the_document_loses_an_order_and_the_mended_one_none(pytester: pytest.Pytester) -> None:
    losing, mended = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    mended = mended.replace("seeds=10", "seeds=4")
    result = run(pytester, losing, "-p", "no:asyncio")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *fails, with 1 of its * fault*: missing: *invoice of order*", "* Fault(*kill*"])
    run(pytester, mended, "-p", "no:asyncio").assert_outcomes(passed=1)
