"""A type checker takes what is meant and refuses what is not: mypy and pyright, on small programs."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest

from meshq.abc import Env
from meshq.bridge._settings import BridgeOptions, BridgeSettings
from meshq.client import ClientOptions, ClientSettings
from meshq.cluster._settings import ClusterOptions, ClusterSettings
from meshq.message import Message, SendOptions
from meshq.node import Broker
from meshq.node._settings import BrokerOptions, BrokerSettings
from meshq.testing import SimNode
from meshq.testing._movable_clock import EnvParts
from meshq.testing._node import NodeOptions

HERE = Path(__file__).parent
pytestmark = pytest.mark.rules
HEAD = """import meshq
from meshq import AddressSettings, Bridge, Broker, ClientFactory, ClusterConnection, Message, TLS, aio, blocking
from meshq.testing import MovableClock

"""
#: Each is refused, and would be taken with the word beside it.
WRONG = [
    ('meshq.connect("tcp://x:1", bogus=1)', "client_id='me'"),
    ('meshq.connect("tcp://x:1", insecure=3)', "insecure=True"),
    ('aio.connect("tcp://x:1", bogus=1)', "client_id='me'"),
    ('blocking.connect("tcp://x:1", bogus=1)', "client_id='me'"),
    ('ClientFactory("tcp://x:1", bogus=1)', "client_id='me'"),
    ('aio.ClientFactory("tcp://x:1", bogus=1)', "client_id='me'"),
    ('blocking.ClientFactory("tcp://x:1", bogus=1)', "client_id='me'"),
    ('Broker("a", data_dir=None).client(bogus=1)', "client_id='me'"),
    ('Broker("a", data_dir=None, qeues=["q"])', "queues=['q']"),
    ('aio.Broker("a", data_dir=None).client(bogus=1)', "client_id='me'"),
    ('aio.Broker("a", data_dir=None, qeues=["q"])', "queues=['q']"),
    ('blocking.Broker("a", data_dir=None, stop_timeout="1")', "stop_timeout=1"),
    ('blocking.Broker("a", data_dir=None).client(bogus=1)', "client_id='me'"),
    ('AddressSettings(full_polcy="page")', "full_policy='page'"),
    ('AddressSettings(full_policy="pag")', "full_policy='page'"),
    ('AddressSettings(default_routing="anycst")', "default_routing='anycast'"),
    ('AddressSettings(duplicate_in_transaction="skp")', "duplicate_in_transaction='skip'"),
    ('TLS(client_certificates="non")', "client_certificates='none'"),
    ('ClusterConnection("a", connector="b", load_balancing="of")', "load_balancing='off'"),
    ('ClusterConnection("a", connector="b", max_hop=1)', "max_hops=1"),
    ('Bridge("a", queue="b", target="c", windw=3)', "window=3"),
    ('Bridge("a", queue="b", target="c", tls=3)', "tls=None"),
    ("Message.json(1, prio=3)", "priority=3"),
    ("MovableClock().env(dsk=1)", "descriptors=1"),
    ('meshq.connect("tcp://x:1").consumer("q", ack="exlicit")', "ack='explicit'"),
    ('meshq.connect("tcp://x:1").create_queue("q", routing="anycst")', "routing='anycast'"),
    ('meshq.connect("tcp://x:1").create_address("q", routing="anycst")', "routing='anycast'"),
    ('meshq.connect("tcp://x:1").send("q", b"", ttl="1")', "ttl=1"),
    ('aio.connect("tcp://x:1").consumer("q", ack="exlicit")', "ack='explicit'"),
    ('aio.connect("tcp://x:1").create_queue("q", routing="anycst")', "routing='anycast'"),
    ('blocking.connect("tcp://x:1").consumer("q", ack="exlicit")', "ack='explicit'"),
]


def right(wrong: str, word: str) -> str:
    """The call with the word that is meant in place of the last keyword."""
    found = re.sub(r"\w+=[^=]*\)$", f"{word})", wrong)
    assert found != wrong
    return found


def program(lines: list[str], folder: Path) -> Path:
    path = folder / "program.py"
    # Each has a name of its own: the results are of different types, and one that is not used is a mistake, too.
    named = [f"result_{number} = {line}" for number, line in enumerate(lines)]
    path.write_text(HEAD + "\n".join([*named, ""]), encoding="utf-8")
    return path


def installed(checker: str) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: pip install '.[lint]'")


def lines_that_mypy_refuses(path: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", str(path)]
    said = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    assert said.returncode in (0, 1), said.stdout + said.stderr
    found = re.findall(rf"^{re.escape(path.name)}:(\d+): error: (.*)$", said.stdout, re.M)
    return {int(line): message for line, message in found}


def lines_that_pyright_refuses(path: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path)]
    said = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    found = json.loads(said.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in found if one["severity"] == "error"}


CHECKERS = {"mypy": lines_that_mypy_refuses, "pyright": lines_that_pyright_refuses}


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_wrong_call_is_refused_and_the_right_one_beside_it_is_not(checker: str, tmp_path: Path) -> None:
    installed(checker)
    head = HEAD.count("\n")
    refused = CHECKERS[checker](program([wrong for wrong, _ in WRONG], tmp_path))
    assert [WRONG[line - head - 1][0] for line in sorted(refused)] == [wrong for wrong, _ in WRONG]
    assert CHECKERS[checker](program([right(*one) for one in WRONG], tmp_path)) == {}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_program_that_is_as_it_should_be_is_taken(checker: str, tmp_path: Path) -> None:
    installed(checker)
    path = tmp_path / "program.py"
    path.write_text((HERE / "right" / "a_program.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert CHECKERS[checker](path) == {}


@pytest.mark.parametrize(
    ("options", "settings", "named"),
    [
        (ClientOptions, ClientSettings, set()),
        (BridgeOptions, BridgeSettings, {"name", "queue", "target"}),
        (ClusterOptions, ClusterSettings, {"name", "connector", "discovery", "static_connectors"}),
        (SendOptions, Message, {"body"}),
        (EnvParts, Env, {"wall", "clock", "local", "failpoint"}),
    ],
)
def test_options_that_are_handed_on_are_the_settings(options: Any, settings: Any, named: set[str]) -> None:
    known = [field.name for field in attrs.fields(settings) if field.init]
    assert set(options.__annotations__) == set(known) - named


def test_the_options_of_a_simulated_node_are_its_keywords() -> None:
    keywords = inspect.signature(SimNode).parameters.values()
    assert set(NodeOptions.__annotations__) == {one.name for one in keywords if one.kind is one.KEYWORD_ONLY}


def test_the_options_of_a_broker_are_its_keywords_with_their_types() -> None:
    keywords = inspect.signature(Broker).parameters.values()
    types = get_type_hints(Broker.__init__)
    assert get_type_hints(BrokerOptions) == {one.name: types[one.name] for one in keywords if one.name != "name"}
    # A broker hands on each of them but the outside world, which is no setting.
    fields = {field.name for field in attrs.fields(BrokerSettings) if field.init}
    assert set(types) - {"env", "return"} == fields


@functools.cache
def verified() -> dict[str, Any]:
    installed("pyright")
    command = [sys.executable, "-m", "pyright", "--verifytypes", "meshq", "--ignoreexternal", "--outputjson"]
    # For this question pyright looks at the first interpreter of the path, whatever it is told otherwise.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    found: dict[str, Any] = json.loads(said.stdout)["typeCompleteness"]
    return found


def test_every_public_name_has_a_type_that_every_checker_infers_alike() -> None:
    symbols = [one for one in verified()["symbols"] if one["isExported"]]
    assert len(symbols) > 1_000
    unclear = [one["name"] for one in symbols if not one["isTypeKnown"] or one["isTypeAmbiguous"]]
    assert unclear == []
    assert verified()["completenessScore"] == 1
