"""The settings of balancers and pools, in a program and in a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshq import (
    Acceptor,
    Broker,
    BrokerBalancer,
    ClusterConnection,
    ClusterPool,
    ConfigError,
    ConsistentHash,
    DiscoveryGroup,
    DiscoveryPool,
    FirstElement,
    LeastConnections,
    RoundRobin,
    SettingsError,
    SharedDirectory,
    StaticPool,
)
from meshq.config import load_broker

POOL = StaticPool(["tcp://127.0.0.1:1"])
GROUP = DiscoveryGroup("dg1", SharedDirectory("/nowhere", "lan"))


def test_what_is_not_given_has_the_documented_default() -> None:
    made = BrokerBalancer("lb", pool=POOL).settings
    assert (made.target_key, made.target_key_filter, made.local_target_filter) == ("source_ip", None, None)
    assert made.cache_timeout == math.inf and isinstance(made.policy, RoundRobin)
    assert (POOL.check_period, POOL.quorum_size, POOL.quorum_timeout, POOL.local_target_enabled) == (5.0, 1, 3.0, False)
    assert (POOL.user, POOL.password, POOL.tls, POOL.insecure) == (None, None, None, False)
    assert "experimental" in (BrokerBalancer.__doc__ or "").lower()


def test_policy_and_pool_go_together_or_both_are_missing() -> None:
    alone = BrokerBalancer("lb", local_target_filter="^FOO.*").settings
    assert (alone.pool, alone.policy) == (None, None)
    with pytest.raises(SettingsError, match="a pool for the policy"):
        BrokerBalancer("lb", policy="random", local_target_filter="x")
    with pytest.raises(SettingsError, match="a policy for the pool"):
        BrokerBalancer("lb", policy=None, pool=POOL)
    with pytest.raises(SettingsError, match="all would be refused; or give a pool"):
        BrokerBalancer("lb")


def test_a_policy_is_given_by_name_class_or_object_and_the_same_twice_is_one() -> None:
    for policy in ("least_connections", LeastConnections, LeastConnections()):
        assert isinstance(BrokerBalancer("lb", pool=POOL, policy=policy).settings.policy, LeastConnections)
    twice: Any = ["consistent_hash", "consistent_hash"]
    assert isinstance(BrokerBalancer("lb", pool=POOL, policy=twice).settings.policy, ConsistentHash)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: BrokerBalancer("", pool=POOL), "name"),
    (lambda: BrokerBalancer("lb", pool=POOL, target_key="SOURCE"), "target_key"),
    (lambda: BrokerBalancer("lb", pool=POOL, target_key_filter="("), "target_key_filter"),
    (lambda: BrokerBalancer("lb", pool=POOL, local_target_filter="(a+)+"), "local_target_filter"),
    (lambda: BrokerBalancer("lb", pool=POOL, cache_timeout=-1), "cache_timeout"),
    (lambda: BrokerBalancer("lb", pool=POOL, policy="roundrobin"), "policy"),
    (lambda: BrokerBalancer("lb", pool=POOL, policy=["random", "round_robin"]), "policy"),  # type: ignore[arg-type]
    (lambda: BrokerBalancer("lb", pool=["tcp://a:1"]), "pool"),  # type: ignore[arg-type]
    (lambda: StaticPool([]), "static_connectors"),
    (lambda: StaticPool("tcp://a:1"), "static_connectors"),
    (lambda: StaticPool(["tcp://a:1", "tcp://a:1"]), "static_connectors"),
    (lambda: ClusterPool(""), "cluster_connection"),
    (lambda: DiscoveryPool("dg1"), "discovery_group"),
    (lambda: StaticPool(["a"], quorum_size=0), "quorum_size"),
    (lambda: StaticPool(["a"], quorum_timeout=61), "quorum_timeout"),
    (lambda: StaticPool(["a"], check_period=0), "check_period"),
    (lambda: StaticPool(["a"], user="guest"), "password"),
    (lambda: StaticPool(["a"], password="guest"), "password"),
    (lambda: StaticPool(["a"], local_target_enabled=1), "local_target_enabled"),
    (lambda: Acceptor("tcp://127.0.0.1:0?redirect_to="), "acceptor"),
    (lambda: Acceptor("tcp://127.0.0.1:0", redirect_to=""), "redirect_to"),
    (lambda: Acceptor("tcp://127.0.0.1:0?redirect_to=a", redirect_to="b"), "redirect_to"),
    (lambda: Broker("b", data_dir=None, acceptors=["tcp://127.0.0.1:0?redirect_to=nobody"]), "redirect_to"),
    (
        lambda: Broker("b", data_dir=None, services=[BrokerBalancer("lb", pool=POOL), BrokerBalancer("lb", pool=POOL)]),
        "services",
    ),
    (
        lambda: Broker("b", data_dir=None, services=[BrokerBalancer("lb", pool=ClusterPool("mesh"))]),
        "cluster_connection",
    ),
]


@pytest.mark.parametrize(("make", "setting"), WRONG)
def test_what_is_not_allowed_is_refused_by_name(make: Callable[[], object], setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make()
    assert caught.value.setting == setting and caught.value.outcome == "not_done"


@pytest.mark.parametrize("target", ["connector9", "udp://231.7.7.7:9876", "inproc://other", "tcp://0.0.0.0:1"])
async def test_a_pool_names_connectors_that_clients_can_dial(target: str) -> None:
    balancer = BrokerBalancer("lb", pool=StaticPool([target]))
    with pytest.raises(SettingsError) as caught:
        async with Broker("b", data_dir=None, services=[balancer]):
            pass
    assert caught.value.outcome == "not_done"


def test_the_acceptor_of_the_documentation_is_read_as_two_options() -> None:
    for separator in ";&":
        made = Acceptor(f"tcp://0.0.0.0:61616?redirect-to=simple-balancer{separator}protocols=CORE", insecure=True)
        assert (made.redirect_to, made.protocols) == ("simple-balancer", ("meshq",))
    assert Acceptor("tcp://127.0.0.1:0").redirect_to is None


def test_a_discovery_pool_brings_its_group_along() -> None:
    broker = Broker("b", data_dir=None, services=[BrokerBalancer("lb", pool=DiscoveryPool(GROUP))])
    assert broker.service("dg1") is GROUP


FILE = """
name = "front"
data_dir = false
acceptors = ["tcp://127.0.0.1:0?redirect_to=lb"]
[connectors]
connector1 = "tcp://127.0.0.1:1"
connector2 = "tcp://127.0.0.1:2"
connector3 = "tcp://127.0.0.1:3"
[[services]]
kind = "cluster_connection"
name = "cluster1"
[[services]]
kind = "discovery_group"
name = "dg1"
endpoint.directory = {{ path = "/nowhere", channel = "lan" }}
[[services]]
kind = "broker_balancer"
name = "lb"
{balancer}
"""


def loaded(folder: Path, balancer: str) -> Broker:
    path = folder / "broker.toml"
    path.write_text(FILE.format(balancer=balancer))
    return load_broker(path)


def test_the_pool_of_the_example_is_written_and_read_back(tmp_path: Path) -> None:
    text = """
    pool = { static_connectors = ["connector1", "connector2", "connector3"], quorum_size = 2, check_period = 1.0,
             local_target_enabled = true }
    """.replace("\n             ", " ")
    made = loaded(tmp_path, text).balancer("lb").settings
    names = ["connector1", "connector2", "connector3"]
    assert made.pool == StaticPool(names, quorum_size=2, check_period=1.0, local_target_enabled=True)
    assert isinstance(made.policy, RoundRobin)


def test_the_examples_of_the_documentation_are_files(tmp_path: Path) -> None:
    partition = 'target_key = "client_id"\ntarget_key_filter = "^.{3}"\nlocal_target_filter = "^FOO.*"'
    made = loaded(tmp_path, partition).balancer("lb").settings
    assert (
        made
        == BrokerBalancer(
            "lb", target_key="client_id", target_key_filter="^.{3}", local_target_filter="^FOO.*"
        ).settings
    )
    simple = 'policy = "first_element"\npool.static_connectors = ["connector1", "connector2", "connector3"]'
    made = loaded(tmp_path, simple).balancer("lb").settings
    assert isinstance(made.policy, FirstElement) and made.target_key == "source_ip"
    hashed = """
    target_key = "user_name"
    local_target_filter = "admin"
    policy = ["consistent_hash", "consistent_hash"]
    pool = { discovery_group_ref = "dg1", local_target_enabled = true }
    """
    made = loaded(tmp_path, hashed).balancer("lb").settings
    assert isinstance(made.policy, ConsistentHash) and isinstance(made.pool, DiscoveryPool)
    assert made.pool.local_target_enabled and made.pool.discovery_group.name == "dg1"
    evenly = """
    target_key = "client_id"
    target_key_filter = "^.{3}"
    policy = "least_connections"
    pool = { discovery_group = "dg1", user = "guest", password = "guest" }
    """
    made = loaded(tmp_path, evenly).balancer("lb").settings
    assert isinstance(made.policy, LeastConnections) and made.pool is not None and made.pool.user == "guest"
    clustered = 'cache_timeout = "5 min"\npool.cluster_connection = "cluster1"'
    made = loaded(tmp_path, clustered).balancer("lb").settings
    assert made.pool == ClusterPool("cluster1") and made.cache_timeout == 300


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('pool = { cluster_connection = "cluster1", discovery_group = "dg1" }', "exactly one of static_connectors"),
        ("pool = { quorum_size = 2 }", "no source"),
        ('pool = { discovery_group = "dg2" }', "the name of a discovery_group of this file"),
        ('pool.static_connectors = ["connector4"]', "pool.static_connectors[0]: 'connector4' is not allowed"),
        ('pool.cluster_connection = "cluster2"', "pool.cluster_connection: 'cluster2' is not allowed"),
        ('policy = ["random", "round_robin"]\npool.cluster_connection = "cluster1"', "allowed: one policy"),
        ('policy = "nearest"\npool.cluster_connection = "cluster1"', "'round_robin', 'random'"),
        ("policy = 3", "allowed: a text"),
        ('target_key = "SNI"\npool.cluster_connection = "cluster1"', "'client_id' or 'sni_host' or 'source_ip'"),
        ('local_target_filter = "(a+)+"', "begin it with ^"),
    ],
)
def test_a_wrong_table_is_named_with_what_is_allowed(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert problem in str(caught.value)


def test_a_broker_in_a_cluster_has_a_pool_of_it() -> None:
    cluster = ClusterConnection("mesh", connector="me")
    made = Broker("b", data_dir=None, services=[cluster, BrokerBalancer("lb", pool=ClusterPool("mesh"))])
    assert made.balancer("lb").name == "lb"
