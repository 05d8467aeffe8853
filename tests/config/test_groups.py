"""Groups of discovery in a file: endpoints, the group that a cluster connection names, and the worked examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio

from meshq import (
    BroadcastGroup,
    ClusterConnection,
    DiscoveryGroup,
    SharedDirectory,
    StaticUnicast,
    UDPMulticast,
    Zeroconf,
)
from meshq.abc import BroadcastEndpoint, Service
from meshq.config import load_broker
from meshq.settings import Secret
from tests.cluster.kit import free_ports
from tests.config.test_load import problems

HEAD = """\
name = "{name}"
data_dir = false
acceptors = ["tcp://127.0.0.1:{port}"]
[connectors]
netty-connector = "tcp://127.0.0.1:{port}"
"""
UDP = """
[[services]]
kind = "broadcast_group"
name = "my-broadcast-group"
connectors = ["netty-connector"]
broadcast_period = "2000 ms"
[services.endpoint.udp]
bind_address = "172.16.9.3"
bind_port = 5432
group = "231.7.7.7"
port = 9876

[[services]]
kind = "discovery_group"
name = "my-discovery-group"
refresh_timeout = "10000 ms"
[services.endpoint.udp]
bind_address = "172.16.9.7"
group = "231.7.7.7"
port = 9876
"""
DIRECTORY = """
[[services]]
kind = "broadcast_group"
name = "my-broadcast-group"
connectors = ["netty-connector"]
broadcast_period = "2000 ms"
[services.endpoint.directory]
path = "{directory}test-jgroups-file_ping.xml"
channel = "activemq_broadcast_channel"

[[services]]
kind = "discovery_group"
name = "my-discovery-group"
refresh_timeout = "10000 ms"
[services.endpoint.directory]
path = "{directory}test-jgroups-file_ping.xml"
channel = "activemq_broadcast_channel"
"""
CLUSTER = """
[[services]]
kind = "cluster_connection"
name = "my-cluster"
connector = "netty-connector"
discovery = "my-discovery-group"
user = "u"
password = "p"
"""


def services(folder: Path, text: str, name: str = "hq", port: int = 61616, **environ: str) -> list[Service]:
    """The services of a broker that a file describes."""
    file = folder / "broker.toml"
    file.write_text(HEAD.format(name=name, port=port) + text)
    return list(load_broker(file, environ=environ)._settings.services)


def settings_of(folder: Path, text: str) -> list[Any]:
    """The settings of each service, as a program would give them."""
    return [cast(Any, service).settings for service in services(folder, text)]


# -- the worked examples


def test_the_groups_of_the_udp_examples_are_those_of_a_program(tmp_path: Path) -> None:
    announced = UDPMulticast("231.7.7.7", 9876, bind_address="172.16.9.3", bind_port=5432)
    heard = UDPMulticast("231.7.7.7", 9876, bind_address="172.16.9.7")
    assert settings_of(tmp_path, UDP) == [
        BroadcastGroup("my-broadcast-group", announced, connectors=["netty-connector"], broadcast_period=2.0).settings,
        DiscoveryGroup("my-discovery-group", heard, refresh_timeout=10.0).settings,
    ]


def test_the_groups_of_the_channel_examples_are_those_of_a_program(tmp_path: Path) -> None:
    endpoint = SharedDirectory("test-jgroups-file_ping.xml", "activemq_broadcast_channel")
    assert settings_of(tmp_path, DIRECTORY.format(directory="")) == [
        BroadcastGroup("my-broadcast-group", endpoint, connectors=["netty-connector"], broadcast_period=2.0).settings,
        DiscoveryGroup("my-discovery-group", endpoint, refresh_timeout=10.0).settings,
    ]


@pytest.mark.real
async def test_two_brokers_with_the_files_of_the_channel_example_form_a_cluster(tmp_path: Path) -> None:
    text = DIRECTORY.format(directory=f"{tmp_path}/") + CLUSTER
    nodes = []
    for name, port in zip("ab", free_ports(2), strict=True):
        file = tmp_path / f"{name}.toml"
        file.write_text(HEAD.format(name=name, port=port) + text)
        nodes.append(load_broker(file))
    with trio.fail_after(60):
        async with nodes[0] as a, nodes[1] as b:
            for node in (a, b):
                await node.cluster("my-cluster").wait_for(nodes=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.toml", "b.toml", "test-jgroups-file_ping.xml"]


FULL = """
[[services]]
kind = "discovery_group"
name = "my-discovery-group"
endpoint = { udp = { group = "231.7.7.7", port = 9876 } }

[[services]]
kind = "cluster_connection"
name = "my-cluster"
connector = "netty-connector"
check_period = "1000 ms"
connection_ttl = "5000 ms"
min_large_message_size = 50000
call_timeout = "5000 ms"
retry_interval = "500 ms"
retry_interval_multiplier = 1.0
max_retry_interval = "5000 ms"
initial_connect_attempts = inf
reconnect_attempts = inf
use_duplicate_detection = true
load_balancing = "on_demand"
max_hops = 1
confirmation_window_size = 32000
call_failover_timeout = "30000 ms"
notification_interval = "1000 ms"
notification_attempts = 2
discovery = "my-discovery-group"
user = "u"
password = "p"
"""


def test_the_full_example_of_a_cluster_connection_is_that_of_a_program_and_can_be_read_back(tmp_path: Path) -> None:
    found = services(tmp_path, FULL)
    (read,) = [one for one in found if isinstance(one, ClusterConnection)]
    group = DiscoveryGroup("my-discovery-group", UDPMulticast("231.7.7.7", 9876))
    given: dict[str, Any] = {
        "connector": "netty-connector",
        "check_period": 1.0,
        "connection_ttl": 5.0,
        "min_large_message_size": 50_000,
        "call_timeout": 5.0,
        "retry_interval": 0.5,
        "retry_interval_multiplier": 1.0,
        "max_retry_interval": 5.0,
        "initial_connect_attempts": math.inf,
        "reconnect_attempts": math.inf,
        "use_duplicate_detection": True,
        "load_balancing": "on_demand",
        "max_hops": 1,
        "confirmation_window_size": 32_000,
        "call_failover_timeout": 30.0,
        "notification_interval": 1.0,
        "notification_attempts": 2,
    }
    made = ClusterConnection("my-cluster", discovery=group, user="u", password="p", **given)
    assert {name: getattr(read.settings, name) for name in given} == given
    assert read.settings.discovery is not None
    assert read.settings.discovery.settings == group.settings
    # What was read is what a program would give, and gives the same again.
    fields = {field.name: getattr(read.settings, field.name) for field in attrs.fields(type(read.settings))}
    again = ClusterConnection(**fields, user="u", password="p")
    assert again.settings == read.settings
    assert attrs.evolve(again.settings, discovery=group) == made.settings


# -- endpoints


def group(endpoint: str, more: str = "") -> str:
    """A discovery group with an endpoint, and a broadcast group with the same one."""
    return f"""
[[services]]
kind = "discovery_group"
name = "lan"
endpoint = {endpoint}
{more}
[[services]]
kind = "broadcast_group"
name = "lan"
connectors = ["netty-connector"]
endpoint = {endpoint}
{more}
"""


@pytest.mark.parametrize(
    ("written", "endpoint"),
    [
        ('{ udp = { group = "231.7.7.7", port = 9876 } }', UDPMulticast("231.7.7.7", 9876)),
        ('{ directory = { path = "/shared", channel = "ours" } }', SharedDirectory("/shared", "ours")),
        ('{ unicast = { addresses = ["a:1", "b:2"] } }', StaticUnicast(["a:1", "b:2"])),
        (
            '{ zeroconf = { group = "NEGroup", bind_address = "127.0.0.1" } }',
            Zeroconf("NEGroup", bind_address="127.0.0.1"),
        ),
    ],
)
def test_each_kind_of_endpoint_is_a_table_for_both_sides(
    tmp_path: Path, written: str, endpoint: BroadcastEndpoint
) -> None:
    found = settings_of(tmp_path, group(written, 'secret = "ours"'))
    assert [settings.endpoint for settings in found] == [endpoint] * 2
    assert [settings.secret for settings in found] == [Secret("ours")] * 2


KINDS = "udp, directory, unicast, zeroconf"


@pytest.mark.parametrize(
    ("written", "key", "said"),
    [
        (
            '{ udp = { group = "231.7.7.7", port = 9876 }, directory = { path = "/s", channel = "c" } }',
            "endpoint",
            f"udp and directory is not allowed; allowed: exactly one of {KINDS}",
        ),
        ("{}", "endpoint", f"none of them is not allowed; allowed: exactly one of {KINDS}"),
        ('"udp"', "endpoint", f"'udp' is not allowed; allowed: a table with one of the tables {KINDS}"),
        ("{ tcp = {} }", "endpoint.tcp", f"is no kind of endpoint; allowed: one of {KINDS}"),
        ('{ udp = "231.7.7.7:9876" }', "endpoint.udp", "'231.7.7.7:9876' is not allowed; allowed: a table"),
        # A place without its channel, and a channel without its place.
        ('{ directory = { path = "/s" } }', "endpoint.directory", "the key 'channel' is missing"),
        ('{ directory = { channel = "c" } }', "endpoint.directory", "the key 'path' is missing"),
        ("{ udp = { port = 9876 } }", "endpoint.udp", "the key 'group' is missing"),
        # Settings of two kinds in one table.
        (
            '{ udp = { group = "231.7.7.7", port = 9876, channel = "c" } }',
            "endpoint.udp.channel",
            "is not known; the nearest known key is",
        ),
        (
            '{ directory = { path = "/s", channel = "c", bind_port = 5 } }',
            "endpoint.directory.bind_port",
            "is not known; the nearest known key is",
        ),
        (
            '{ udp = { group = "127.0.0.1", port = 9876 } }',
            "endpoint.udp.group",
            "'127.0.0.1' is not allowed; allowed: an address from 224.0.0.1 to 239.255.255.255",
        ),
    ],
)
def test_a_wrong_endpoint_is_refused_by_name_on_both_sides(tmp_path: Path, written: str, key: str, said: str) -> None:
    text = HEAD.format(name="hq", port=1) + group(written)
    found = problems(tmp_path, text)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith("endpoint")]
    assert [line for line, _ in found] == lines
    for number, (_, text) in enumerate(found):
        assert text.startswith(f"services[{number}].{key}: {said}"), text


def test_a_group_needs_an_endpoint(tmp_path: Path) -> None:
    found = problems(tmp_path, HEAD.format(name="hq", port=1) + group("").replace("endpoint = \n", ""))
    assert [text for _, text in found] == [f"services[{number}]: the key 'endpoint' is missing" for number in (0, 1)]


# -- the group of a cluster connection


@pytest.mark.parametrize("order", [(UDP, CLUSTER), (CLUSTER, UDP)], ids=["before", "behind"])
def test_a_cluster_connection_has_the_group_that_it_names_wherever_that_stands(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    found = services(tmp_path, "".join(order))
    (mesh,) = [one for one in found if isinstance(one, ClusterConnection)]
    (lan,) = [one for one in found if isinstance(one, DiscoveryGroup)]
    assert mesh.settings.discovery is lan
    assert len(found) == 3


def test_a_group_that_is_not_in_the_file_is_refused_and_those_that_are_are_named(tmp_path: Path) -> None:
    allowed = "is not allowed; allowed: the name of a discovery_group of this file; known:"
    # A broadcast group of this name announces, and finds nobody.
    wrong = CLUSTER.replace("my-discovery", "my-broadcast")
    text = HEAD.format(name="hq", port=1) + wrong
    assert problems(tmp_path, text) == [(11, f"services[0].discovery: 'my-broadcast-group' {allowed} none")]
    ((_, said),) = problems(tmp_path, text + UDP)
    assert said == f"services[0].discovery: 'my-broadcast-group' {allowed} 'my-discovery-group'"
    ((_, said),) = problems(tmp_path, text.replace('"my-broadcast-group"', "5") + UDP)
    assert said == f"services[0].discovery: 5 {allowed} 'my-discovery-group'"


def test_a_group_with_a_mistake_is_told_once_and_not_where_it_is_named(tmp_path: Path) -> None:
    text = HEAD.format(name="hq", port=1) + UDP.replace("refresh_timeout", "refresh") + CLUSTER
    assert [said for _, said in problems(tmp_path, text)] == [
        "services[1].refresh: is not known; the nearest known key is 'refresh_timeout'"
    ]


def test_the_connectors_of_a_broadcast_group_are_looked_at(tmp_path: Path) -> None:
    wrong = UDP.replace('["netty-connector"]', '["netty-connector", "netty"]')
    ((line, said),) = problems(tmp_path, HEAD.format(name="hq", port=1) + wrong)
    assert (line, said) == (
        10,
        "services[0].connectors[1]: 'netty' is not allowed; allowed: connectors of the broker: netty-connector",
    )


def test_two_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    ((_, said),) = problems(tmp_path, HEAD.format(name="hq", port=1) + UDP + UDP.partition("\n\n")[2])
    assert "different names for services of the kind 'discovery_group'" in said
