"""What ``import meshq`` loads, and what it offers."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import meshq
from meshq import aio, blocking, errors
from meshq.client import DeliveredRun
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.wire import Deliver, Frame, FrameType, encode_run


def loaded_by(statement: str) -> set[str]:
    """The modules in a fresh interpreter after this statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def type_checked_names() -> dict[str, str]:
    """Public name to module, as the type checker sees it."""
    tree = ast.parse(Path(meshq.__file__).read_text())
    return {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("meshq.")
        for alias in node.names
        if alias.asname
    }


def test_importing_meshq_loads_neither_trio_nor_the_broker() -> None:
    modules = loaded_by("import meshq")
    assert "meshq" in modules
    assert [name for name in modules if name == "trio" or name.startswith("meshq.")] == []


def test_a_vocabulary_name_loads_neither_trio_nor_the_broker() -> None:
    modules = loaded_by("from meshq import MeshqError, MessageId")
    assert "meshq.errors" in modules
    assert "trio" not in modules
    assert "meshq.broker" not in modules


@pytest.mark.slow
def test_a_broker_without_a_cluster_loads_none() -> None:
    modules = loaded_by("from meshq import Broker, connect")
    assert "meshq.node" in modules
    assert [name for name in modules if name.startswith(("meshq.cluster", "meshq.bridge"))] == []


def test_every_error_is_importable_from_meshq() -> None:
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert {name for name, home in meshq._HOME.items() if home == "meshq.errors"} == defined


@pytest.mark.parametrize("name", sorted(meshq._HOME))
def test_every_public_name_comes_from_its_home(name: str) -> None:
    home = importlib.import_module(meshq._HOME[name])
    assert getattr(meshq, name) is getattr(home, name)
    assert name in getattr(home, "__all__", [name])


def test_the_type_checker_sees_the_same_names() -> None:
    assert type_checked_names() == meshq._HOME


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'Brokr'"):
        meshq.Brokr  # noqa: B018


def test_dir_lists_every_public_name() -> None:
    assert set(meshq.__all__) <= set(dir(meshq))


def test_the_reference_has_every_public_name() -> None:
    text = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()
    modules = re.findall(r"automodule:: (meshq\.(?:errors|notifications))", text)
    named = set(re.findall(r"auto(?:class|function):: meshq\.([\w.]+)", text))
    missing = {name for name, home in meshq._HOME.items() if home not in modules} - named
    for face in (blocking, aio):
        missing |= {f"{face.__name__}.{name}" for name in face.__all__} - {f"meshq.{name}" for name in named}
    assert missing == set()
    roots = {*meshq._HOME, "blocking", "aio", "testing"}
    assert [name for name in sorted(named) if name.partition(".")[0] not in roots] == []


def test_whatever_a_public_call_gives_can_be_imported_from_here() -> None:
    """Types in signatures; those of ``meshq.abc`` stand there, and what begins with an underscore is nobody's."""
    names = {name: getattr(meshq, name) for name in meshq.__all__}
    public = set(names.values())
    missing: dict[type, str] = {}
    for owner in public:
        for name, member in inspect.getmembers(owner) if inspect.isclass(owner) else [("", owner)]:
            function = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            given = typing.get_type_hints(function, localns=names).get("return")
            missing |= {kind: f"{owner.__name__}.{name}" for kind in classes_in(given) if kind not in public}
    # What a service, a journal's owner and a node's own parts are given.
    assert {kind.__name__ for kind in missing} <= {
        "BrokerProbe",
        "CommitLog",
        "LogLink",
        "PeerLink",
        "Replay",
        "LargeBodyFiles",
        "RunView",
    }, missing


def classes_in(annotation: object) -> list[type]:
    """Classes of meshq that an annotation names."""
    parts = [one for part in typing.get_args(annotation) for one in classes_in(part)]
    origin = typing.get_origin(annotation) or annotation
    module = origin.__module__ if inspect.isclass(origin) else ""
    if module.startswith("meshq.") and not module.startswith("meshq.abc"):
        parts.append(origin)
    return parts


def for_tasks(owner: type) -> list[str]:
    """The public methods of a class that a task awaits, or enters, or iterates over."""
    return [
        name
        for name, _ in inspect.getmembers(owner, inspect.iscoroutinefunction)
        if not name.startswith("_") or name in {"__aenter__", "__anext__"}
    ]


#: Each of them, of every public class: a new one is asked without being named here.
ENTRIES = [
    (name, entry)
    for name in meshq.__all__
    if inspect.isclass(getattr(meshq, name))
    for entry in for_tasks(getattr(meshq, name))
    # A journal is opened first; until then its other calls say that it is not open.
    if name != "Journal" or entry in {"__aenter__", "open"}
]
#: What the parameters without a default are given.
GIVEN: dict[str, typing.Any] = {
    "to": 1,
    "lo": 1,
    "hi": 2,
    "body": b"x",
    "message_id": meshq.MessageId(bytes(16), 1),
    "messages": [b"x"],
    "n": 1,
    "node_id": "0" * 32,
    "payload": b"x",
    "payloads": [b"x"],
    "pattern": "#",
    "position": 1,
    "positions": [1],
    "settings": meshq.AddressSettings(),
    "batch": 1,
    "stages": [1],
    "timeout": 1,
    "xid": b"x",
}


def made(name: str) -> typing.Any:
    """An object of a class of the trio face, as somebody has it who never entered it."""
    cluster = meshq.ClusterConnection("c", connector="here")
    balancer = meshq.BrokerBalancer("l", local_target_filter="x")
    broker = meshq.Broker(
        "b", data_dir=None, services=[cluster, balancer, meshq.NetworkConnector("n", "static:(tcp://127.0.0.1:1)")]
    )
    multicast = meshq.UDPMulticast("231.7.7.7", 9876, bind_address="127.0.0.1")
    client = meshq.connect("tcp://127.0.0.1:1")
    consumer = client.consumer("q")
    delivery = meshq.Delivery(DeliveredRun(consumer, 0, run_of(b"x")), 0)
    found: dict[str, typing.Callable[[], object]] = {
        "BodyStream": delivery.open,
        "Bridge": lambda: meshq.Bridge("b", queue="q", target="tcp://127.0.0.1:1"),
        "BrokerBalancer": lambda: meshq.BrokerBalancer("l", local_target_filter="x"),
        "BrokerBalancerInThread": lambda: broker.run_in_thread().balancer("l"),
        "ClientBalancer": lambda: client.balancer("l"),
        "BroadcastGroup": lambda: meshq.BroadcastGroup("g", multicast, connectors=["here"]),
        "Broker": lambda: broker,
        "BrokerInThread": broker.run_in_thread,
        "Client": lambda: client,
        "ClusterConnection": lambda: broker.cluster("c"),
        "Consumer": lambda: consumer,
        "Cursor": lambda: client.cursor("q", "c"),
        "Delivery": lambda: delivery,
        "DiscoveryGroup": lambda: meshq.DiscoveryGroup("g", multicast),
        "Drain": broker.drain,
        "EventStream": client.events,
        "FanoutClient": lambda: meshq.connect("fanout:(static:(tcp://127.0.0.1:1,tcp://127.0.0.1:2))"),
        "ClusterConnectionInThread": lambda: broker.run_in_thread().cluster("c"),
        "HighAvailability": lambda: broker.ha,
        "HighAvailabilityInThread": lambda: broker.run_in_thread().ha,
        "ReplicaStore": lambda: broker.ha.replica("b"),
        "ReplicaStoreInThread": lambda: broker.run_in_thread().ha.replica("b"),
        "Journal": lambda: meshq.Journal("nowhere"),
        "NetworkConnectorInThread": lambda: broker.run_in_thread().network("n"),
        "NetworkConnector": lambda: meshq.NetworkConnector("n", "static:(tcp://127.0.0.1:1)"),
        "QuorumNode": lambda: meshq.QuorumNode("w", data_dir="nowhere", acceptors=["tcp://127.0.0.1:0"], password="x"),
        "Producer": lambda: client.producer("q"),
        "ServiceInThread": lambda: broker.run_in_thread().service("c"),
        "SharedDirectory": lambda: meshq.SharedDirectory("nowhere", "c"),
        "StaticUnicast": lambda: meshq.StaticUnicast(["127.0.0.1:1"]),
        "Transaction": client.transaction,
        "UDPMulticast": lambda: multicast,
        "Zeroconf": lambda: meshq.Zeroconf("g"),
    }
    return found[name]()


def run_of(body: bytes) -> Frame:
    """A frame that delivers one message."""
    run = encode_run([body], [EnvelopeEncoder().row(None, None, None, "answers", None)])
    header = Deliver(address="q", producer=bytes(16), number=1, sequence=1).encode()
    return Frame(FrameType.DELIVER, first=1, header=header, count=1, table=run.table, body=run.body)


@pytest.mark.parametrize(("name", "entry"), ENTRIES)
def test_what_is_for_trio_says_under_asyncio_what_is_there_for_it(name: str, entry: str) -> None:
    async def handler(delivery: meshq.Delivery) -> None:
        raise AssertionError("it was called")

    async def call() -> None:
        method = getattr(made(name), entry)
        needed = [
            parameter
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        values = {one.name: GIVEN.get(one.name, handler if one.name == "handler" else "name") for one in needed}
        await method(**values)

    with pytest.raises(meshq.UsageError) as raised:
        asyncio.run(call())
    found = re.fullmatch(
        r"meshq\.(\w+) needs a task of trio, and this is none; use "
        r"(?:meshq\.aio\.(\w+) for asyncio, meshq\.blocking\.(\w+) without async|trio\.run)",
        str(raised.value),
    )
    assert found is not None, raised.value
    assert found[1] in meshq.__all__
    if name not in ("Journal", "QuorumNode"):
        assert found[2] in aio.__all__ and found[3] in blocking.__all__
