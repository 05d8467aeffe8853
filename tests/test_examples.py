"""The programs in examples/ run, and do what they say."""

from __future__ import annotations

import ast
import asyncio
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from meshq.blocking import Broker

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints; it must end well and quietly, and sees every warning as an error."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "quick_start.py",
        "over_the_network.py",
        "once_and_only_once.py",
        "journal_alone.py",
        "without_async.py",
        "with_asyncio.py",
        "with_fastapi.py",
        "with_flask.py",
    }


def installed_with(extra: str) -> set[str]:
    """The names of what ``pip install 'meshq[extra]'`` brings along, down to the last."""
    ours = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    new = {("meshq", ""), ("meshq", extra)}
    while new:
        name, wanted = new.pop()
        seen.add((name, wanted))
        own = ours["optional-dependencies"][wanted] if wanted else ours["dependencies"]
        for text in own if name == "meshq" else metadata.requires(name) or []:
            one = Requirement(text)
            if one.marker is not None and not one.marker.evaluate({"extra": wanted}):
                continue
            key = canonicalize_name(one.name)
            found.add(key)
            new |= {(key, more) for more in ("", *one.extras)} - seen
    return found


@pytest.mark.examples
def test_what_the_examples_import_is_installed_by_the_extra_of_that_name() -> None:
    known = {*sys.stdlib_module_names, "meshq", "trio"}
    imported = {
        name.partition(".")[0]
        for path in EXAMPLES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    } - known
    assert imported >= {"fastapi", "flask"}
    installed = installed_with("examples")
    homes = metadata.packages_distributions()
    assert {name for name in imported if not {canonicalize_name(one) for one in homes[name]} & installed} == set()
    # What runs them, and what the how-to of TLS makes its certificates with.
    assert {"uvicorn", "trustme"} <= installed


@pytest.mark.examples
def test_the_quick_start_finds_its_queue_again(tmp_path: Path) -> None:
    assert run("quick_start.py", tmp_path).split() == ["umbrella", "for", "emea"]
    assert run("quick_start.py", tmp_path).split()[0] == "raincoat"


@pytest.mark.examples
def test_once_and_only_once_though_the_broker_stops_in_the_middle(tmp_path: Path) -> None:
    said = run("once_and_only_once.py", tmp_path)
    assert said == "200 invoices for 200 orders, each of them once: True; begun anew: True\n"


@pytest.mark.examples
def test_over_the_network_every_measurement_is_taken_once(tmp_path: Path) -> None:
    assert run("over_the_network.py", tmp_path) == "2000 measurements taken, 2000 different\n"


@pytest.mark.examples
def test_without_async_every_measurement_is_taken_once(tmp_path: Path) -> None:
    assert run("without_async.py", tmp_path) == "2000 measurements taken, 2000 different\n"


@pytest.mark.examples
def test_with_asyncio_every_measurement_is_taken_once(tmp_path: Path) -> None:
    assert run("with_asyncio.py", tmp_path) == "2000 measurements taken, 2000 different\n"


def example(name: str) -> Any:
    """An example as a module."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)


async def orders_over_http(app: Any) -> None:
    """A day of the service, over HTTP without a network."""
    import httpx

    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        for name in ("umbrella", "raincoat", "boots"):
            assert (await http.post(f"/orders/{name}")).status_code == 202
        found = {"packed": 0}
        while found != {"waiting": 0, "packed": 3}:
            found = (await http.get("/orders")).json()


@pytest.mark.examples
def test_with_fastapi_what_was_accepted_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = example("with_fastapi")["app"]
    for _ in range(2):
        asyncio.run(orders_over_http(app))
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("meshq")] == []


@pytest.mark.examples
def test_with_fastapi_runs_by_the_command_that_it_names(tmp_path: Path) -> None:
    import httpx

    (command,) = re.findall(r"``(uvicorn .*)``", (EXAMPLES / "with_fastapi.py").read_text())
    program, *arguments = command.replace("--app-dir examples", f"--app-dir {EXAMPLES}").split()
    command = [sys.executable, "-m", program, *arguments, "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        found = None
        while found is None and (line := service.stderr.readline()):
            found = re.search(r"running on (http://127.0.0.1:\d+)", line)
        assert found is not None
        assert httpx.post(f"{found[1]}/orders/umbrella", trust_env=False).status_code == 202
        # A second worker can't have the store, and is told what to do.
        second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert "several processes connect to one broker" in second.stderr
        service.terminate()
        service.stderr.read()
        assert service.wait(30) in (0, -15)


@pytest.mark.examples
def test_with_flask_what_was_accepted_is_packed(tmp_path: Path) -> None:
    packed: list[str] = []
    module = example("with_flask")
    with Broker("shop", data_dir=tmp_path / "shop") as broker, broker.client() as client:
        http = module["make_app"](client, packed).test_client()
        packer = threading.Thread(target=client.serve, args=("orders", partial(module["pack"], packed)))
        packer.start()
        for name in ("umbrella", "raincoat", "boots"):
            assert http.post(f"/orders/{name}").status_code == 202
        while http.get("/orders").get_json() != {"waiting": 0, "packed": 3}:
            pass
        client.stop_serving()
        packer.join()
    assert packed == ["umbrella", "raincoat", "boots"]


@pytest.mark.examples
def test_the_journal_keeps_a_list(tmp_path: Path) -> None:
    position = run("journal_alone.py", tmp_path, "add", "buy milk").split()[1]
    run("journal_alone.py", tmp_path, "add", "mend the roof")
    run("journal_alone.py", tmp_path, "done", position)
    (line,) = run("journal_alone.py", tmp_path, "list").splitlines()
    assert line.endswith("mend the roof")
