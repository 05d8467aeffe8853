"""The fuzzing targets of filters, URLs and settings files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from meshq.client.settings._url import parse_url
from meshq.client.settings._url_format import Url
from meshq.config import dump_config, load_nodes
from meshq.endpoint import Endpoint
from meshq.errors import ConfigError, FilterError, SettingsError
from meshq.ha import QuorumNode
from meshq.node import Broker
from meshq.selector import ABSENT, index_key, parse_filter
from qa.fuzz.target import Target, text_of


@attrs.frozen
class _Message:
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]

    def header(self, name: str) -> Any:
        return self.headers.get(name)

    def shadow(self, name: str, encoded: bytes) -> Any:
        return self.properties.get(name, ABSENT)


_HEADERS: Final = {"priority": 4, "durable": True, "size": 10, "address": "a.b", "timestamp": 1_000, "group": "g"}
_MESSAGES: Final = (
    _Message({}, {}),
    _Message({"a": 1, "b": "text", "c": True, "d": 2.5, "e": None, "f": b"bytes"}, _HEADERS),
    _Message(
        {"a": "1", "b": 10**18, "c": float("inf"), "d": False, "e": -1, "f": "%_"}, {**_HEADERS, "durable": False}
    ),
    _Message({"a": -(2**63), "b": "", "c": "\u20ac", "d": b"", "priority": "high"}, _HEADERS),
)


def filters(data: bytes) -> None:
    """Parse a filter, and ask it about messages."""
    text = text_of(data)
    found = parse_filter(text)
    assert parse_filter(found.text) == found, "the text of a filter is the filter"
    try:
        opposite = parse_filter(f"NOT ({text})")
    except FilterError:
        # One bracket more than a filter may have.
        opposite = None
    for message in _MESSAGES:
        verdict = found.verdict(message)
        assert verdict in (True, False, None), "a verdict is true, false or unknown"
        assert found.matches(message) is (verdict is True), "what is unknown does not match"
        if opposite is not None:
            expected = None if verdict is None else not verdict
            assert opposite.verdict(message) is expected, "the opposite of what is unknown is unknown"
        if found.index is not None:
            inside = index_key(found.index.read(message)) in found.index.keys
            assert inside or verdict is not True, "a filter is true for no value that its index has not"
            assert not (inside and found.index.exact) or verdict is True, "an exact index is the whole filter"


def _some_filters() -> Sequence[bytes]:
    return [
        text.encode()
        for text in (
            "a = 1",
            "a <> '1' AND b LIKE 't_x%' ESCAPE '\\'",
            "NOT (a >= 1.5e3 OR c) AND e IS NULL",
            "a BETWEEN 1 AND 10 AND b NOT IN ('x', 'y') ",
            "-a + 2 * d / 0 - (1) < 0.7",
            "AMQPriority > 3 AND AMQDurable = 'DURABLE'",
            "size >= 10 AND durable AND address LIKE 'a.%' AND timestamp < 2",
            '"a""b" IS NOT NULL OR "priority" = \'high\'',
            "a = 1 OR a = 2 OR 3 = a",
            "b IN ('text', 'it''s')",
            "TRUE = c OR FALSE",
            "b LIKE '%te%xt%'",
            "d NOT BETWEEN -1 AND 1",
        )
    ]


def urls(data: bytes) -> None:
    """Read a URL by the grammar, as an endpoint, and as the URL of a client."""
    text = text_of(data)
    problems: list[SettingsError] = []
    try:
        found = Url.parse(text)
        assert Url.parse(str(found)) == found, "a URL is read as it was written"
        assert str(found) == text or ", " in text or "( " in text, "a URL is written as it was read, without spaces"
        assert found.options is not None
    except SettingsError as error:
        problems.append(error)
    try:
        endpoint = Endpoint.parse(text)
        assert Endpoint.parse(str(endpoint)) == endpoint, "an endpoint is read as it was written"
        assert endpoint.loopback in (True, False) and endpoint.wildcard in (True, False)
    except SettingsError as error:
        problems.append(error)
    try:
        read = parse_url(text)
        assert read.targets or read.heard_at is not None, "a URL of a client says where brokers are"
    except SettingsError as error:
        problems.append(error)
    if len(problems) == 3:
        raise problems[0]


def _some_urls() -> Sequence[bytes]:
    return [
        text.encode()
        for text in (
            "tcp://localhost:61616?call_timeout=5&reconnect_attempts=-1",
            "tls://[::1]:7?insecure=true;connectionTTL=60000",
            "inproc://A Broker",
            "(tcp://a:1?name=n,tcp://b:2)?reconnectAttempts=5",
            "udp://231.7.7.7:9876?initial_wait_for=3&localBindPort=-1",
            "multicast://default?refreshTimeout=1000",
            "zeroconf://shop",
            "discovery:(multicast://default)?maxReconnectAttempts=3&useExponentialBackOff=false",
            "fanout:(static:(tcp://a:1,tcp://b:2))?min_ack_count=2",
            "fanout://udp://231.7.7.7:9876?minAckCount=1",
            "static:(tcp://a:1)",
            "tcp://user:password@host:1",
            "tcp://0x7f.1:99999999",
        )
    ]


#: In the memory of the machine where it has such a folder: thousands of files a second.
_FILES: Final = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def settings_files(data: bytes) -> None:
    """Read a settings file, write its brokers to another file, and read that file again."""
    nodes = _load(data)
    try:
        text = dump_config(*nodes, secrets="text")
    except SettingsError:
        # A URL of a user and a password stands in no file.
        return
    again = dump_config(*_load(text.encode()), secrets="text")
    assert again == text, "a file that was written is read as what was written"


def _load(data: bytes) -> Sequence[Broker | QuorumNode]:
    with tempfile.NamedTemporaryFile(dir=_FILES, suffix=".toml") as file:
        file.write(data)
        file.flush()
        try:
            return load_nodes(file.name, environ={"SET": "value"})
        except ConfigError as error:
            lines = data.count(b"\n") + 1
            assert error.problems, "an error of a file names a problem"
            for _, line, _, text in error.problems:
                assert 1 <= line <= lines and text, "a problem stands in a line of the file"
            raise


_BROKER: Final = """
name = "shop"
data_dir = "data/shop"
acceptors = ["tcp://127.0.0.1:61616", { url = "tls://0.0.0.0:1", tls = { certificate = "a.pem", key = "b.pem" } }]
queues = ["orders.emea", "b"]
stop_timeout = "10 s"
[security.users]
app = { env = "SET" }
[address_settings."orders.#"]
dead_letter_address = "orders.dead"
max_delivery_attempts = 5
max_size_bytes = "10 MiB"
[connectors]
own = "tcp://127.0.0.1:61616"
"""
_SERVICES: Final = """
name = "first"
data_dir = "/san/orders"
acceptors = ["tcp://127.0.0.1:61616"]
connectors = { me = "tcp://127.0.0.1:61616" }
[ha]
policy = "shared_store_primary"
fence_command = ["fence", "{host}", "{pid}"]
[[services]]
kind = "cluster_connection"
name = "pair"
password = { env = "SET" }
static_connectors = ["tcp://127.0.0.1:61617"]
[[services]]
kind = "broadcast_group"
name = "lan"
connectors = ["me"]
endpoint = { udp = { group = "231.7.7.7", port = 9876 } }
[[services]]
kind = "broker_balancer"
name = "by-tenant"
target_key = "client_id"
target_key_filter = "^[^.]+"
policy = "consistent_hash"
pool = { cluster_connection = "pair", quorum_size = 2 }
"""
_QUORUM: Final = """
name = "second"
data_dir = "b"
acceptors = ["tcp://127.0.0.1:2"]
[quorum]
name = "w"
data_dir = "w"
acceptors = ["tcp://127.0.0.1:1"]
password = "secret"
[ha]
policy = "replication_primary"
[ha.quorum]
kind = "zookeeper"
hosts = "127.0.0.1:2182"
session = "18 s"
"""


def _some_files() -> Sequence[bytes]:
    odd = "a.'b.c'.\"d\\u0022\" = [1, {x = 2_0, y = [[]]}, '''\nz''']\n[[t.u]]\n[t.u.v]\nw = 1979-05-27T07:32:00Z # end"
    return [b"", b'name = "a"\ndata_dir = "b"', _BROKER.encode(), _SERVICES.encode(), _QUORUM.encode(), odd.encode()]


FILTERS: Final = Target("filters", filters, (SettingsError,), _some_filters, 512)
URLS: Final = Target("urls", urls, (SettingsError,), _some_urls, 512)
SETTINGS: Final = Target("settings", settings_files, (ConfigError,), _some_files, 2_048, inputs_max=20)
