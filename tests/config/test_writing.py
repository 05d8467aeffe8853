"""A configuration file that the library writes is read back with equal settings."""

from __future__ import annotations

import ssl
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import meshq
from meshq import (
    TLS,
    Acceptor,
    AddressSettings,
    Bridge,
    BroadcastGroup,
    Broker,
    BrokerBalancer,
    ClusterConnection,
    ClusterPool,
    Colocated,
    ConfigError,
    DiscoveryGroup,
    DiscoveryPool,
    JournalSettings,
    LiveOnly,
    MajorityVote,
    MeshQuorum,
    NetworkConnector,
    Permissions,
    Queues,
    QuorumNode,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
    Security,
    SettingsError,
    SharedDirectory,
    SharedStoreBackup,
    SharedStorePrimary,
    StaticPool,
    StaticUnicast,
    StoreDirectories,
    Topics,
    UDPMulticast,
    ZooKeeperQuorum,
    abc,
    dump_config,
    load_broker,
)
from meshq.config import load_nodes
from meshq.config._keys import keys_of, tables
from meshq.config._lines_format import KeyLines
from meshq.config._reader import Reader
from meshq.config._toml_format import toml_text
from meshq.lb import KeyFilter
from meshq.testing import MemoryQuorum
from tests.config.test_colocated import CLUSTERS, EXAMPLE

LAN = UDPMulticast("231.7.7.7", 9876)
#: What backups scale down to in the example of the ActiveMQ documentation.
LEAVES = """
[ha.backup.scale_down]
group_name = "boo!"
discovery = "wahey"

[[services]]
kind = "discovery_group"
name = "wahey"
endpoint = { udp = { group = "231.7.7.7", port = 9876 } }
"""


def plain(value: Any) -> Any:
    """Return settings as something that is equal when they are: services are compared by their settings."""
    if isinstance(value, Broker):
        return plain(value._settings)
    if isinstance(value, QuorumNode):
        return plain(value.settings)
    if isinstance(value, abc.Service):
        login = getattr(value, "login", {})
        keywords = login if isinstance(login, dict) else login.keywords()
        return type(value), plain(getattr(value, "settings", value.name)), plain(keywords)
    if isinstance(value, KeyFilter):
        return value.text
    if isinstance(value, abc.BalancerPolicy):
        return type(value)
    if attrs.has(type(value)):
        fields = [one.name for one in attrs.fields(type(value)) if one.eq]
        return type(value), {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return tuple(map(plain, value)) if isinstance(value, tuple | list) else value


def read_back(tmp_path: Path, text: str, **environ: str) -> Any:
    file = tmp_path / "written.toml"
    file.write_text(text)
    found = load_nodes(file, environ=environ)
    return found if len(found) > 1 else found[0]


def broker(ha: abc.HAPolicy | None = None, **given: Any) -> Broker:
    clusters = [ClusterConnection(name, static_connectors=["tcp://127.0.0.1:9"]) for name in ("abcdefg", "33rrrrr")]
    about: dict[str, Any] = {"data_dir": "/nowhere/data", "acceptors": ["tcp://127.0.0.1:0"], "services": clusters}
    return Broker("a", **{**about, **given}, ha=ha)


# -- E17


def test_the_example_of_a_colocated_node_is_written_and_read_back_with_all_its_values(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    head = f'name = "a"\ndata_dir = "{tmp_path}/data"\nacceptors = ["tcp://127.0.0.1:0"]\n'
    file.write_text(head + EXAMPLE + LEAVES + CLUSTERS)
    first = load_broker(file)
    again = read_back(tmp_path, dump_config(first))
    assert plain(again) == plain(first)
    ha = again._settings.ha
    assert isinstance(ha, Colocated) and isinstance(ha.primary, ReplicationPrimary)
    assert isinstance(ha.backup, ReplicationBackup) and ha.backup.scale_down is not None
    assert (ha.backup_request_retries, ha.backup_request_retry_interval, ha.max_backups) == (44, 0.033, 3)
    assert (ha.request_backup, ha.backup_port_offset, ha.excludes) == (False, 33, ("quorum",))
    primary, backup, order = ha.primary, ha.backup, ha.backup.scale_down
    assert (primary.group_name, primary.check_for_live_server, primary.cluster_name) == ("purple", True, "abcdefg")
    assert (backup.group_name, backup.max_saved_replicated_journals) == ("tiddles", 22)
    assert (backup.cluster_name, backup.restart_backup) == ("33rrrrr", False)
    assert order.group_name == "boo!" and order.discovery is not None and order.discovery.name == "wahey"
    assert again.service("wahey") is order.discovery


# -- every policy

SECONDS = st.floats(0.1, 100.0) | st.integers(1, 100)
NAMES = st.none() | st.text("ab.ö!", min_size=1, max_size=4).filter(lambda text: "." not in text)
HOSTS = st.lists(st.sampled_from(["h:1", "g:53"]), unique=True, max_size=2).map(tuple)
ORDERS = st.none() | st.builds(
    ScaleDown,
    connectors=st.sampled_from([(), ("tcp://127.0.0.1:9",)]),
    group_name=NAMES,
    cluster_name=st.sampled_from([None, "abcdefg"]),
    enabled=st.booleans(),
)
WAITS = {"retry_interval": st.floats(0.1, 1.0), "max_retry_interval": st.floats(1.0, 9.0)}
CHECKS = {"check_hosts_period": SECONDS, "check_hosts_timeout": SECONDS}
STORES: dict[str, Any] = {
    "lease": st.floats(2.0, 60.0),
    "lock_check_period": st.floats(0.01, 1.0),
    "failover_on_shutdown": st.booleans(),
    "fence_command": st.none() | st.just(("/sbin/fence", '{host} "\\')),
    "fence_timeout": SECONDS,
    "check_hosts": HOSTS,
    **CHECKS,
}
VOTES = st.builds(MajorityVote, size=st.none() | st.integers(2, 9), vote_retries=st.sampled_from([0, 5, float("inf")]))
ENSEMBLES = st.builds(
    ZooKeeperQuorum,
    st.just("h:1,g:2"),
    namespace=NAMES,
    auth=st.sampled_from([None, ("u", "pw")]),
    insecure=st.just(True),
)
WITNESSES = st.builds(
    MeshQuorum,
    st.just(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"]),
    password=st.just("pw"),
    session=st.floats(10.0, 20.0),
    tls=st.sampled_from([None, TLS(authorities="/ca.pem")]),
)
PAIRS: dict[str, Any] = {
    "group_name": NAMES,
    "cluster_name": st.sampled_from([None, "abcdefg"]),
    **WAITS,
    **CHECKS,
    "quorum": VOTES | ENSEMBLES | WITNESSES,
    "vote_on_replication_failure": st.booleans(),
    "max_saved_replicated_journals": st.sampled_from([0, 22, float("inf")]),
    "initial_replication_sync_timeout": SECONDS,
}
BACKUPS: dict[str, Any] = {"allow_failback": st.booleans(), "restart_backup": st.booleans(), "scale_down": ORDERS}
STORE_PRIMARIES = st.builds(SharedStorePrimary, wait_for_activation=st.booleans(), **STORES)
STORE_BACKUPS = st.builds(SharedStoreBackup, **STORES, **BACKUPS)
PRIMARIES = st.builds(
    ReplicationPrimary, check_for_live_server=st.booleans(), wait_for_activation=st.booleans(), **PAIRS
)
PEERS = st.builds(ReplicationPrimary, coordination_id=st.just("x"), check_hosts=HOSTS, quorum=WITNESSES)
REPLICAS = st.builds(ReplicationBackup, **PAIRS, **BACKUPS)
HOSTED: dict[str, Any] = {
    "backup_request_retries": st.sampled_from([0, 44, float("inf")]),
    "backup_request_retry_interval": SECONDS,
    "max_backups": st.integers(0, 9),
    "backup_port_offset": st.integers(1, 99),
    "shared_root": st.sampled_from([None, "/srv"]),
}
COLOCATED = st.builds(Colocated, primary=PRIMARIES, backup=REPLICAS, **HOSTED) | st.builds(
    Colocated, primary=STORE_PRIMARIES, backup=STORE_BACKUPS, request_backup=st.booleans(), **HOSTED
)
READER = Reader(KeyLines(""), {})
POLICIES = st.builds(LiveOnly, scale_down=ORDERS)
POLICIES |= STORE_PRIMARIES | STORE_BACKUPS | PRIMARIES | PEERS | REPLICAS | COLOCATED


@given(POLICIES)
@settings(max_examples=60, deadline=None)
def test_every_policy_with_any_settings_is_read_back_as_it_was(policy: abc.HAPolicy) -> None:
    written = tomllib.loads(dump_config(broker(policy), secrets="text"))["ha"]
    assert plain(READER._item("ha", written, abc.HAPolicy)) == plain(policy) and not READER.problems


# -- everything that a file may have


CLIENT: dict[str, Any] = {
    "check_period": 3,
    "connection_ttl": 6.5,
    "call_timeout": 7,
    "call_failover_timeout": 8,
    "retry_interval": 0.25,
    "retry_interval_multiplier": 2.0,
    "max_retry_interval": 9,
    "initial_connect_attempts": 4,
    "reconnect_attempts": 5,
    "confirmation_window_size": 9_000,
}
LOGIN: dict[str, Any] = {"user": "cluster ü", "password": 'p"\\\n', "tls": TLS(authorities="/ca.pem")}
MORE: dict[str, Any] = {
    "address": "a,!b",
    "load_balancing": "off",
    "group_name": "g",
    "max_hops": 2,
    "min_large_message_size": 5_000,
    "use_duplicate_detection": False,
    "producer_window_size": 4_000_000,
    "notification_interval": 0.5,
    "notification_attempts": 3,
    "group_timeout": 9.0,
    "max_group_pins": 100,
    "stuck_timeout": 12.5,
}
POOL: dict[str, Any] = {"check_period": 2.0, "quorum_size": 2, "quorum_timeout": 1.5, "local_target_enabled": True}
SERVED = TLS(certificate="/c.pem", key="/k.pem", authorities="/a.pem", client_certificates="optional")
NETWORK: dict[str, Any] = {
    "network_ttl": 3,
    "duplex": True,
    "conduit_subscriptions": False,
    "prefetch": 7,
    "decrease_network_consumer_priority": True,
    "suppress_duplicate_queue_subscriptions": True,
    "dynamically_included": [Queues("a.>"), Topics("b.*")],
    "excluded": [Topics("c")],
}


def services(lan: DiscoveryGroup) -> list[abc.Service]:
    """Services of every kind, with nearly every setting."""
    return [
        lan,
        DiscoveryGroup("near", StaticUnicast(["h:1"])),
        BroadcastGroup("lan", LAN, connectors=["me"], broadcast_period=1.0, secret="s1"),
        BroadcastGroup("dir", SharedDirectory("/shared", "c"), connectors=["me"]),
        ClusterConnection("mesh", connector="me", discovery=lan, **LOGIN, **CLIENT, **MORE),
        ClusterConnection(
            "z",
            static_connectors=["far"],
            allow_direct_connections_only=True,
            address="z",
            user="z",
            password="secret-z",
        ),
        Bridge(
            "b",
            queue="q",
            target="far",
            user="u",
            password="secret-p",
            tls=TLS(),
            forwarding_address="x",
            filter="a = 1",
            use_duplicate_detection=False,
            window=5,
            **CLIENT,
        ),
        NetworkConnector("n", uri="static:(tcp://127.0.0.1:9)", user="u", password="secret-u", **NETWORK, **CLIENT),
        NetworkConnector("m", uri="static:(tcp://127.0.0.1:9)", statically_included=[Queues("s")]),
        BrokerBalancer(
            "sticky",
            target_key="user_name",
            target_key_filter="^.",
            local_target_filter="x",
            cache_timeout=5,
            pool=StaticPool(["far"], user="p", password="pp", tls=TLS(), insecure=True, **POOL),
            policy="consistent_hash",
        ),
        BrokerBalancer("in", pool=ClusterPool("mesh")),
        BrokerBalancer("heard", pool=DiscoveryPool(lan), policy="least_connections"),
    ]


def everything() -> tuple[QuorumNode, Broker]:
    """A broker and a witness with nearly every setting, and as few defaults as one broker can have."""
    lan = DiscoveryGroup("lan", LAN, refresh_timeout=4.0, initial_wait_timeout=3, secret="s2")
    reads = Permissions(send={"w"}, consume={"r", "w"}, create={"w"}, manage={"m"}, browse={"r"})
    address = AddressSettings(
        max_size_bytes=5_000, redistribution_delay=0.0, dead_letter_address="dead", full_policy="fail"
    )
    made = Broker(
        "a",
        data_dir="/nowhere/data",
        journal=JournalSettings(segment_bytes=2**22, encryption_keys=[bytes(range(32)), bytes(32)]),
        directories=StoreDirectories(journal="/nowhere/j", paging="/nowhere/p"),
        acceptors=[
            "tcp://127.0.0.1:1",
            Acceptor("tls://0.0.0.0:2", tls=SERVED, redirect_to="sticky"),
            Acceptor("tcp://127.0.0.1:3", discovery="multicast://default"),
        ],
        connectors={"me": "tcp://127.0.0.1:1", "far": "tls://h:2", "a b.c": "tcp://127.0.0.1:5"},
        queues=["q", 'a"b'],
        address_settings={"#": AddressSettings(), "orders.#": address},
        security=Security(
            users={"app": "pa", "ö p": "pb"},
            certificates={"CN=x": "app"},
            roles={"app": {"r", "w"}, "ö p": {"m"}},
            permissions={"#": reads},
        ),
        services=services(lan),
        ha=LiveOnly(scale_down=ScaleDown(discovery=lan)),
        node_id=bytes(range(16)),
        memory_limit=2**26,
        stop_timeout=0.5,
        transaction_timeout=5,
        max_session_ttl=400.0,
        max_sessions_per_user=7,
        advisory_support=False,
    )
    witness = QuorumNode(
        "w",
        data_dir="/nowhere/w",
        acceptors=["tcp://127.0.0.1:7"],
        password="secret-q",
        user="x",
        ensemble="e",
        tick=0.5,
    )
    return witness, made


def test_all_that_a_file_may_have_is_read_back_and_the_settings_are_equal(tmp_path: Path) -> None:
    nodes = everything()
    text = dump_config(*nodes, secrets="text")
    assert plain(read_back(tmp_path, text)) == plain(nodes)
    # Each table that stands beside the policies is there with a key at least.
    document = tomllib.loads(text)
    assert {one["kind"] for one in document["services"]} >= {"bridge", "cluster_connection", "network_connector"}
    unwritten = set(document) ^ set(keys_of(Broker))
    assert unwritten == {"quorum"}
    assert len(tables()) > 20
    # A broker in memory only, and nothing else.
    bare = Broker("b", data_dir=None)
    assert dump_config(bare) == 'name = "b"\ndata_dir = false\n'
    assert plain(read_back(tmp_path, dump_config(bare))) == plain(bare)


def test_no_password_and_no_key_is_written_unless_asked_for(tmp_path: Path) -> None:
    nodes = everything()
    text = dump_config(*nodes)
    clear = tomllib.loads(dump_config(*nodes, secrets="text"))
    told = text.partition("\n\n")[0].splitlines()
    names = [line.removeprefix("# ").partition(": ")[0] for line in told[1:]]
    assert told[0] == "# These variables have to be set when this file is read:"
    values = list(secrets_of(tomllib.loads(text), clear))
    assert [name for name, _ in values] and sorted(dict(values)) == sorted(names) and len(set(names)) == 12
    assert not any(f'"{value}"' in text for _, value in values)
    assert "MESHQ_SERVICES_CLUSTER_CONNECTION_MESH_PASSWORD" in names and "MESHQ_SECURITY_USERS_APP" in names
    assert plain(read_back(tmp_path, text, **dict(values))) == plain(nodes)
    with pytest.raises(ConfigError, match="the environment has no MESHQ_QUORUM_PASSWORD"):
        read_back(tmp_path, text)
    # What every node has by default is no secret.
    assert "PASSWORD" not in dump_config(broker())


def secrets_of(written: Any, clear: Any) -> Any:
    """Yield the variables of a document, each with what another one has in its place."""
    if isinstance(written, dict) and set(written) == {"env"}:
        yield written["env"], clear
    elif isinstance(written, dict):
        for key in written:
            yield from secrets_of(written[key], clear[key])
    elif isinstance(written, list):
        for one, other in zip(written, clear, strict=True):
            yield from secrets_of(one, other)


def test_a_group_that_only_an_order_names_is_written_among_the_services(tmp_path: Path) -> None:
    order = ScaleDown(discovery=DiscoveryGroup("wahey", LAN))
    both = Colocated(primary=SharedStorePrimary(), backup=SharedStoreBackup(scale_down=order))
    again = read_back(tmp_path, dump_config(broker(both)))
    assert plain(again._settings.ha) == plain(both)
    assert again.service("wahey") is again._settings.ha.backup.scale_down.discovery


# -- what can't be written


class OwnEndpoint(UDPMulticast):
    """An endpoint of a program's own."""


class OwnPolicy(LiveOnly):
    """A policy of a program's own."""


class OwnChoice(meshq.RoundRobin):
    """A policy of balancing with a setting."""

    def __init__(self, weight: int = 1) -> None:
        super().__init__()
        self.weight = weight


def balanced(policy: Any) -> Broker:
    return broker(services=[BrokerBalancer("b", pool=StaticPool(["tcp://127.0.0.1:9"]), policy=policy)])


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: broker(OwnPolicy()), "ha"),
        (lambda: broker(ReplicationBackup(quorum=MemoryQuorum(session=5.0))), "ha.quorum"),
        (
            lambda: broker(acceptors=[Acceptor("tls://127.0.0.1:0", tls=ssl.create_default_context())]),
            "acceptors[0].tls",
        ),
        (
            lambda: broker(services=[DiscoveryGroup("g", OwnEndpoint("231.7.7.7", 9))]),
            "services.discovery_group_g.endpoint",
        ),
        (
            lambda: broker(services=[Bridge("b", queue="q", target="tcp://127.0.0.1:9", transformer=lambda one: one)]),
            "services.bridge_b.transformer",
        ),
        (lambda: balanced(OwnChoice(2)), "services.broker_balancer_b.policy"),
    ],
)
def test_what_only_a_program_can_say_is_named(make: Any, setting: str) -> None:
    with pytest.raises(SettingsError, match="what a file can say") as caught:
        dump_config(make())
    assert caught.value.setting == setting


def test_a_policy_of_balancing_of_ones_own_is_written_by_its_module_and_class() -> None:
    assert 'policy = "tests.config.test_writing:OwnChoice"' in dump_config(balanced(OwnChoice()))


@pytest.mark.parametrize("nodes", [(), (broker(), broker()), ("a",)])
def test_a_file_is_of_one_broker_or_one_witness_or_of_both(nodes: Any) -> None:
    with pytest.raises(SettingsError, match=r"one meshq\.Broker, none of meshq\.aio or"):
        dump_config(*nodes)


@pytest.mark.parametrize("url", ["tcp://u:hidden@h:1", "(tcp://h:1,tcp://h:2)?user=u&Password=hidden"])
def test_a_password_in_a_url_is_written_with_the_other_ones_only(url: str) -> None:
    made = broker(connectors={"far": url})
    with pytest.raises(SettingsError, match="a URL without a password, unless secrets='text'") as caught:
        dump_config(made)
    assert caught.value.setting == "connectors.far" and "hidden" not in str(caught.value)
    assert url in dump_config(made, secrets="text")


def test_the_ways_to_write_secrets_are_two() -> None:
    with pytest.raises(SettingsError, match="'env' or 'text'"):
        dump_config(broker(), secrets="hidden")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="texts that UTF-8 can encode"):
        dump_config(Broker("a", data_dir="/data/\udcff"))


# -- the text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = (
    TEXTS | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.lists(TEXTS | st.integers(), max_size=2)
)
TABLES = st.recursive(
    st.dictionaries(TEXTS, VALUES, max_size=3),
    lambda inner: st.dictionaries(TEXTS, VALUES | inner | st.lists(inner, max_size=2), max_size=3),
    max_leaves=6,
)


@given(TABLES)
@example({"": {"a.b": [{"\x7f\n": {}}, {}], "x": -0.0}, "y": [[1e-7, "\\"]], "z": float("inf")})
@settings(max_examples=60, deadline=None)
def test_any_table_is_read_from_its_text_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(table)) == table
