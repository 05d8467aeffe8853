"""The plugin of pytest, in runs of pytest of its own: fixtures, options, and other plugins beside it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from meshq.errors import SettingsError
from meshq.testing import Certificates, Cluster, SimulatedNetwork, plugin
from meshq.testing.kit._world import SimulatedWorld
from meshq.testing.new_test import NEW_TEST

#: Loaded before any run of pytest in this process, each with what it needs: a run forgets the modules that it was first
#: to load, and neither cryptography nor the table of names of meshq can be loaded twice.
LOADED = (Certificates, Cluster, SimulatedNetwork)
#: Where the installed meshq has no entry point yet, the plugin is named.
NAMED = () if any(one.name == "meshq" for one in entry_points(group="pytest11")) else ("-p", "meshq.testing.plugin")
#: Ten lines in an empty folder.
CLUSTER = """
async def test_a_dead_node_keeps_its_orders(meshq_cluster):
    cluster = await meshq_cluster(nodes=2, queues=["orders"])
    async with cluster.client("n0") as client:
        await client.send("orders", b"x")
    cluster.kill("n0")
    await cluster.restart("n0")
    await cluster.settled()
    async with cluster.client() as client, client.consumer("orders") as consumer:
        assert (await consumer.receive(timeout=30)).body == b"x"
"""
WRONG = """
import pytest

def test_sync(meshq_cluster):
    pass

@pytest.mark.asyncio
async def test_asyncio(meshq_cluster):
    pass

@pytest.mark.anyio
async def test_anyio(meshq_cluster):
    pass
"""


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(textwrap.dedent(text))
    return pytester.runpytest_inprocess(*NAMED, "-p", "no:cacheprovider", "-p", "no:randomly", *options)


@pytest.mark.parametrize(
    "options",
    [
        ("-p", "no:asyncio"),
        ("-p", "no:asyncio", "-o", "trio_mode=true"),
        ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
    ],
    ids=["alone", "trio_mode", "asyncio_auto"],
)
def test_an_async_test_without_a_marker_runs_with_a_fixture_of_ours(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    run(pytester, CLUSTER, *options).assert_outcomes(passed=1)


def test_every_fixture_for_trio_works_and_also_in_a_class_and_through_a_fixture_of_the_user(
    pytester: pytest.Pytester,
) -> None:
    text = """
    import meshq
    import pytest
    import trio
    from meshq import AddressSettings

    @pytest.fixture
    def meshq_settings():
        return {"address_settings": {"orders": AddressSettings(redelivery_delay=3600)}}

    @pytest.fixture
    async def shop(meshq_client):
        await meshq_client.send("orders", b"x")
        return meshq_client

    async def test_an_hour_passes_in_no_time(shop, meshq_broker):
        assert meshq_broker.durable
        async with shop.consumer("orders") as consumer:
            await (await consumer.receive(timeout=5)).nack()
            assert await consumer.receive(timeout=3500) is None
            async with await consumer.receive(timeout=200) as delivery:
                assert delivery.body == b"x"

    class TestOthers:
        async def test_a_journal(self, meshq_journal):
            position = await meshq_journal.append(b"x")
            assert [record.position async for record in meshq_journal.replay()] == [position]

        async def test_a_network(self, meshq_network, meshq_broker):
            async def answer(stream):
                await stream.send_all(b"hello")

            await meshq_network.listen("db:5432", answer)
            async with await meshq_network.connect("db:5432") as stream:
                got = b""
                while more := await stream.receive_some():
                    got += more
            assert got == b"hello"
            assert meshq_network.hosts == ["test", "broker", "db"]
            meshq_network.cut("test", "broker")
            with pytest.raises(meshq.ConnectionBrokenError):
                async with meshq.connect(meshq_broker.urls[0], insecure=True):
                    pass
            with pytest.raises(meshq.UsageError, match="no node is named 'x'"):
                meshq_network.partition(["x"])
            with pytest.raises(meshq.UsageError, match="host:port"):
                await meshq_network.connect("db")

    async def test_the_clock_of_the_test_is_used(meshq_cluster, autojump_clock):
        cluster = await meshq_cluster(nodes=1)
        assert cluster.clock is autojump_clock
        assert trio.current_time() == autojump_clock.current_time() > 0

    async def test_our_clock(meshq_clock):
        pass
    """
    result = run(pytester, text, "-p", "no:asyncio", "-k", "not our_clock")
    result.assert_outcomes(passed=4, deselected=1)


CERTIFICATES = """
    import attrs
    import meshq
    import pytest
    from meshq import Acceptor, Broker, Security, connect

    async def test_another_host_and_a_client_with_a_name(meshq_network, meshq_tls):
        tls = meshq_tls.issue("test")
        asking = attrs.evolve(tls, client_certificates="required")
        acceptors = [Acceptor("tls://test:5671", tls=asking)]
        security = Security(certificates={"CN=shop": "shop"})
        async with Broker("b", data_dir=None, acceptors=acceptors, security=security):
            shop = meshq_tls.issue("shop.example", common_name="shop")
            async with connect("tls://test:5671", tls=shop) as client:
                await client.send("orders", b"x")
            with pytest.raises(meshq.MeshqError):
                async with connect("tls://test:5671", tls=meshq_tls.client, initial_connect_attempts=1):
                    pass

    async def test_a_broker_for_another_host_is_not_believed(meshq_network, meshq_tls):
        acceptors = [Acceptor("tls://test:5671", tls=meshq_tls.server, insecure=True)]
        async with Broker("b", data_dir=None, acceptors=acceptors):
            with pytest.raises(meshq.SecurityError):
                async with connect("tls://test:5671", tls=meshq_tls.client, initial_connect_attempts=1):
                    pass
    """


def test_certificates_are_issued_for_hosts_and_for_names_of_clients(pytester: pytest.Pytester) -> None:
    run(pytester, CERTIFICATES, "-p", "no:asyncio").assert_outcomes(passed=2)


def test_a_certificate_is_for_a_host(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    for hosts in ((), ("a", ""), ("a", 5)):
        with pytest.raises(SettingsError, match=r"hosts=.* at least one"):
            certificates.issue(*hosts)
    for wrong in ("a b", "ä" * 300):
        with pytest.raises(SettingsError, match=r"hosts=.* names or addresses of hosts; "):
            certificates.issue(wrong)
    with pytest.raises(SettingsError, match="common_name=5 is not allowed; allowed: a text, or None"):
        certificates.issue("a", common_name=5)  # type: ignore[arg-type]


def test_without_trustme_the_fixture_of_certificates_says_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    monkeypatch.delitem(sys.modules, "meshq.testing.kit._certificates", raising=False)
    result = run(pytester, "def test_it(meshq_tls): pass", "-p", "no:asyncio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["meshq_tls needs trustme, *: pip install 'meshq[[]testing]'"])


def test_a_fixture_for_trio_in_a_test_of_another_kind_fails_with_one_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, WRONG, "-o", "trio_mode=true", "-o", "asyncio_default_fixture_loop_scope=function")
    outcomes = result.parseoutcomes()
    assert outcomes["errors"] >= 3 and "passed" not in outcomes
    lines = [line for line in result.outlines if line.startswith("meshq_cluster")]
    needs = "meshq_cluster needs a trio test;"
    assert lines.count(f"{needs} write async def, or use meshq_server") == 1
    assert lines.count(f"{needs} use meshq_server") >= 2


def test_a_run_of_the_marker_is_refused(pytester: pytest.Pytester) -> None:
    text = """
    import pytest

    @pytest.mark.trio(run=print)
    async def test_it(meshq_cluster):
        pass
    """
    result = run(pytester, text + "\n    def test_other():\n        pass\n", "-p", "no:asyncio")
    result.stdout.fnmatch_lines(["*takes no run= in its marker trio*"])
    result.assert_outcomes(errors=1, passed=1)


HOW_TO = (Path(__file__).parents[3] / "docs" / "how-to" / "test-your-service.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", HOW_TO, re.M | re.S)


#: Words of blocks that start processes, or several clusters.
LONGER = {
    "meshq_process_cluster": pytest.mark.processes,
    "simulated": pytest.mark.slow,
    "meshq_spark": pytest.mark.spark,
}


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[mark for word, mark in LONGER.items() if word in block])
        for number, block in enumerate(BLOCKS)
    ],
)
def test_the_tests_of_the_document_pass(pytester: pytest.Pytester, number: int) -> None:
    block = BLOCKS[number]
    if "meshq_spark" in block:
        # There is one session of Spark in a process, and here it is that of other tests.
        pytester.makepyfile(block)
        result = pytester.runpytest_subprocess(*NAMED, "-p", "no:asyncio", "-p", "no:cacheprovider")
    else:
        result = run(pytester, block, "-p", "no:asyncio")
    result.assert_outcomes(passed=1)


def test_the_first_test_that_the_command_prints_passes(pytester: pytest.Pytester) -> None:
    run(pytester, NEW_TEST, "-p", "no:asyncio").assert_outcomes(passed=1)


FAILING = """
async def test_it(meshq_cluster):
    cluster = await meshq_cluster(nodes=2, queues=["orders"])
    async with cluster.client("n0") as client:
        await client.send("orders", b"x")
    cluster.kill("n1")
    assert cluster.seed == 0
"""


def test_a_failure_shows_seed_command_nodes_queues_and_events(pytester: pytest.Pytester) -> None:
    name = "test_a_failure_shows_seed_command_nodes_queues_and_events.py::test_it"
    result = run(pytester, FAILING, "-p", "no:asyncio", "-v")
    last = f"again: pytest {name} --meshq-seed *"
    told = ["E       assert * == 0", "*- meshq -*", "seed *, * simulated seconds"]
    nodes = ["n0    active    orders: 1 ready, 0 unacked", "n1    dead      -"]
    result.stdout.fnmatch_lines([*told, *nodes, "*n1        killed", last])
    # The events are for who asks for them, and nothing is shown of what calls the test.
    short = run(pytester, FAILING, "-p", "no:asyncio")
    short.stdout.fnmatch_lines([*told, *nodes, last])
    assert "killed\n" not in short.stdout.str().partition("meshq ---")[2]
    assert "run_in_world" not in short.stdout.str() and len(short.outlines) < 40
    # The same seed alone, in any order, and by the option; each is the same run.
    seed = str(plugin.zlib.crc32(name.encode()))
    again = run(pytester, FAILING, "-p", "no:asyncio", "-v", "--meshq-seed", seed)
    events = [[line for line in one.outlines if "broker active" in line] for one in (result, again)]
    assert f"--meshq-seed {seed}" in again.stdout.str()
    assert events[0] == events[1] != []


def test_the_seed_comes_from_the_command_line_or_the_settings_and_an_argument_wins(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmeshq_seed = 5\nmeshq_trace = true")
    text = """
    async def test_it(meshq_cluster):
        cluster = await meshq_cluster(nodes=1)
        assert cluster.seed == SEED
        async with cluster.client() as client:
            await client.create_queue("orders")
        assert (await meshq_cluster(nodes=1, seed=7)).seed == 7
    """
    result = run(pytester, text.replace("SEED", "5"), "-p", "no:asyncio", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*    0.000000  n0        broker starting", "* n0        queue_created address='*"])
    run(pytester, text.replace("SEED", "6"), "-p", "no:asyncio", "--meshq-seed", "6").assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_every_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(textwrap.dedent(CLUSTER))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    traces = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        options = ("-p", "no:asyncio", "-p", "no:cacheprovider", "-s", "--meshq-trace")
        result = pytester.runpytest_subprocess(*NAMED, *options)
        result.assert_outcomes(passed=1)
        traces.append([line for line in result.outlines if "  n0  " in line or "  n1  " in line])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10


def test_a_wrong_seed_is_an_error_of_usage(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmeshq_seed = x")
    result = run(pytester, "def test_it(): pass", "-p", "no:asyncio")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*meshq_seed='x' is not allowed; allowed: a whole number from 0"])


def test_an_error_of_a_spawned_task_is_the_failure(pytester: pytest.Pytester) -> None:
    text = """
    import trio

    async def fail():
        await trio.sleep(1)
        raise ZeroDivisionError("in the service")

    async def test_it(meshq_cluster):
        cluster = await meshq_cluster(nodes=1)
        cluster.spawn("n0", fail)
        await trio.sleep_forever()
    """
    result = run(pytester, text, "-p", "no:asyncio")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*ZeroDivisionError: in the service", "n0 *active*"])


def test_a_wrong_setting_of_the_broker_is_the_failure(pytester: pytest.Pytester) -> None:
    text = """
    import pytest

    @pytest.fixture
    def meshq_settings():
        return SETTINGS

    async def test_in_the_test(meshq_broker):
        raise AssertionError("it was run with a wrong setting")

    def test_in_a_thread(meshq_server):
        raise AssertionError("it was run with a wrong setting")
    """
    cases = [
        ('{"bogus": 1}', "bogus=1 is not allowed; allowed: no setting of this name; the settings: data_dir, journal, "),
        ('["bogus"]', "meshq_settings=['bogus'] is not allowed; allowed: a dictionary of keywords of Broker"),
    ]
    for number, (settings, message) in enumerate(cases):
        pytester.makepyfile(**{f"test_{number}": textwrap.dedent(text).replace("SETTINGS", settings)})
        options = ("-p", "no:asyncio", "-p", "no:cacheprovider", "-p", "no:randomly")
        result = pytester.runpytest_inprocess(*NAMED, *options, f"test_{number}.py")
        # pytest-trio makes the fixtures of a test inside the test.
        result.assert_outcomes(failed=1, errors=1)
        told = [
            line for line in result.outlines if re.match(rf"E +(meshq\S*)?SettingsError: {re.escape(message)}", line)
        ]
        assert len(told) == 2
        assert "it was run" not in "".join(line for line in result.outlines if line.startswith("E "))


def test_an_unknown_setting_of_a_cluster_is_named_with_those_that_there_are(pytester: pytest.Pytester) -> None:
    text = """
    import pytest
    from meshq import SettingsError

    async def test_it(meshq_cluster):
        with pytest.raises(SettingsError, match="colour='red' is not allowed; .* nodes, queues, ha, .* seed, faults$"):
            await meshq_cluster(colour="red")

    def test_processes(meshq_process_cluster):
        with pytest.raises(SettingsError, match="seed=7 is not allowed; .* the settings: nodes, queues, ha, links$"):
            meshq_process_cluster(seed=7)
    """
    run(pytester, text, "-p", "no:asyncio").assert_outcomes(passed=2)


def test_a_client_that_was_entered_by_hand_and_never_left_is_named(pytester: pytest.Pytester) -> None:
    text = """
    class TestShop:
        async def test_it(self, meshq_cluster):
            cluster = await meshq_cluster(nodes=1)
            await cluster.client("n0").__aenter__()
    """
    result = run(pytester, text, "-p", "no:asyncio")
    result.stdout.fnmatch_lines(["E *UsageError: still open at the end of the test: <Client connected peer='n0:*"])
    assert "internal error" not in result.stdout.str()


def test_a_test_that_never_ends_has_a_limit_and_says_in_a_line_where_it_waits(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmeshq_limit = 120.5")
    text = """
    import pytest

    async def test_by_settings(meshq_client):
        async with meshq_client.consumer("orders") as consumer:
            await consumer.receive()

    @pytest.mark.meshq_limit(60)
    async def test_by_marker(meshq_client):
        async with meshq_client.consumer("orders") as consumer:
            await consumer.receive()

    @pytest.mark.meshq_limit(seconds="x")
    async def test_wrong(meshq_client):
        pass
    """
    result = run(pytester, text, "-p", "no:asyncio", "--strict-markers")
    told = []
    for seconds, name in (("120.5", "settings"), ("60", "marker")):
        told.append(f"E * the test is not done after {seconds} simulated seconds")
        told.append(f"* waits: test_*.py:* in test_by_{name}: await consumer.receive()")
    result.stdout.fnmatch_lines([*told, "*meshq_limit=None is not allowed; allowed: simulated seconds, more than 0"])
    assert len(result.outlines) < 70
    # Without them it is two hours.
    assert SimulatedWorld.__init__.__kwdefaults__["limit_s"] == 7_200


def test_the_command_of_a_failure_is_one_for_the_folder_in_which_pytest_was_begun(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]")
    pytester.mkdir("shop").joinpath("test_shop.py").write_text(textwrap.dedent(NAMED_BADLY), encoding="utf-8")
    folder = pytester.mkdir("other")
    monkeypatch.chdir(folder)
    options = [*NAMED, "-p", "no:asyncio", "-p", "no:cacheprovider", "-p", "no:randomly"]
    result = pytester.runpytest_inprocess(*options, "../shop")
    # A summary that is not cut, as where CI is set, says a line again.
    lines = {line.partition("again: ")[2] for line in result.outlines if line.lstrip("E ").startswith("again: ")}
    assert len(lines) == 2
    for line in lines:
        command, *arguments = shlex.split(line)
        assert command == "pytest" and arguments[0].startswith("../shop/test_shop.py::test_")
        # Found, and failed again.
        pytester.runpytest_inprocess(*options, *arguments).assert_outcomes(failed=1)


NAMED_BADLY = """
    import pytest
    from meshq.testing import simulated

    @pytest.mark.parametrize("name", ["it's", "a"])
    async def test_plain(meshq_cluster, name):
        cluster = await meshq_cluster(nodes=1)
        assert name == "a"

    @pytest.mark.parametrize("name", ['o "quoted" $HOME', "a"])
    @simulated(seeds=1, nodes=1, faults=[])
    async def test_seeds(cluster, name):
        assert name == "a"
        await cluster.settled()
"""


def test_without_pytest_trio_each_fixture_for_trio_says_what_to_install(pytester: pytest.Pytester) -> None:
    text = """
    def test_plain():
        pass

    def test_it(meshq_cluster):
        pass
    """
    result = run(pytester, text, "-p", "no:trio", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["meshq_cluster needs pytest-trio, *: pip install 'meshq[[]testing]'"])


def test_loading_the_plugin_loads_neither_trio_nor_the_broker() -> None:
    code = "import meshq.testing.plugin, sys; print(*sys.modules, sep='\\n')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(shown.stdout.split())
    assert "meshq.testing.plugin" in loaded
    heavy = ("trio", "pytest_trio", "meshq.node", "meshq.broker", "meshq.client")
    assert loaded.isdisjoint(heavy)


def test_the_fixtures_for_trio_load_the_broker_when_a_test_uses_one() -> None:
    code = "import meshq.testing.kit._trio_fixtures, sys; print(*sys.modules, sep='\\n')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(shown.stdout.split())
    assert "pytest_trio" in loaded
    # Each run of pytest beside pytest-trio loads this file.
    assert loaded.isdisjoint(("meshq.node", "meshq.broker", "meshq.client", "meshq.testing.kit._cluster"))
