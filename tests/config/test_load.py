"""A broker from a file: what it becomes, and what is said of every key that is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from meshq import Bridge, ClusterConnection, ConfigError, Permissions, Security, load_broker
from meshq.limits import TIME_S_MAX
from meshq.settings import Secret

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The connector that a cluster connection names.
OWN = '[connectors]\nc = "tcp://127.0.0.1:61616"'
KINDS = (
    "'bridge' or 'cluster_connection' or 'broadcast_group' or 'discovery_group' or 'broker_balancer' "
    "or 'network_connector'"
)
WHOLE = 'name = "hq"\ndata_dir = false\n'


def problems(tmp_path: Path, text: str, **environ: str) -> list[tuple[int, str]]:
    """What is said of a file: lines and texts; it must not load."""
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_broker(file, environ=environ)
    assert str(raised.value).splitlines() == [f"{f}:{line}: {text}" for f, line, _, text in raised.value.problems]
    assert {found for found, *_ in raised.value.problems} == {str(file)}
    return [(line, text) for _, line, _, text in raised.value.problems]


def settings_of(tmp_path: Path, text: str, **environ: str) -> object:
    """What a broker is built with."""
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return load_broker(file, environ=environ)._settings


def test_the_example_is_a_broker() -> None:
    broker = load_broker(EXAMPLES / "broker.toml", environ={"SHOP_PASSWORD": "secret"})
    settings = broker._settings
    assert (broker.name, broker.state, settings.data_dir) == ("shop", "new", "data/shop")
    assert [acceptor.url for acceptor in settings.acceptors] == ["tcp://127.0.0.1:61616"]
    assert settings.queues == ("orders.emea", "orders.us")
    assert (settings.memory_limit, settings.stop_timeout) == (256 * 2**20, 10)
    assert settings.journal.segment_bytes == 16 * 2**20
    assert settings.security is not None
    assert settings.security.users == {"app": Secret("secret")}
    orders = settings.address_settings["orders.#"]
    assert (orders.dead_letter_address, orders.max_delivery_attempts, orders.redelivery_delay) == (
        "orders.dead",
        5,
        0.5,
    )
    assert orders.given == ("dead_letter_address", "max_delivery_attempts", "redelivery_delay")
    (bridge,) = settings.services
    assert isinstance(bridge, Bridge)
    assert (bridge.settings.queue, bridge.settings.retry_interval) == ("orders.us", 2)


async def test_a_broker_from_a_file_runs(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(WHOLE + 'queues = ["a", "b"]')
    async with load_broker(file) as broker, broker.client() as client:
        assert await client.queues() == ["a", "b"]


def test_every_wrong_key_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
name = "hq"
data_dir = 5
stop_timeout = "10 MB"
memory_limit = "1 KiB"
quees = ["a"]
acceptors = [
    "tcp://127.0.0.1:0",
    "http://127.0.0.1",
    { url = "tls://127.0.0.1:0", tls = { certificat = "x.pem" } },
]
node_id = "xyz"
ha = "primary"

[address_settings."a.#"]
max_delivery_attempts = 0
redelivery_delay = -1
auto_create_queues = "yes"

[[services]]
kind = "brigde"

[[services]]
kind = "bridge"
queue = "q"
target = "tcp://127.0.0.1:1"
window = 0
"""
    assert problems(tmp_path, text) == [
        (2, "data_dir: 5 is not allowed; allowed: a directory, or false for memory only"),
        (3, "stop_timeout: '10 MB' is not allowed; allowed: a number, or one with a unit (ms, s, min, h, d)"),
        (5, "quees: is not known; the nearest known key is 'queues'"),
        (
            8,
            "acceptors[1]: 'http://127.0.0.1' is not allowed; allowed: tcp://HOST:PORT, tls://HOST:PORT or inproc://NAME",
        ),
        (9, "acceptors[2].tls.certificat: is not known; the nearest known key is 'certificate'"),
        (11, "node_id: 'xyz' is not allowed; allowed: hexadecimal digits, two for each byte"),
        (12, "ha: 'primary' is not allowed; allowed: a table with a policy"),
        (15, 'address_settings."a.#".max_delivery_attempts: 0 is not allowed; allowed: a whole number from 1 to inf'),
        (16, f'address_settings."a.#".redelivery_delay: -1 is not allowed; allowed: a number from 0 to {TIME_S_MAX}'),
        (17, "address_settings.\"a.#\".auto_create_queues: 'yes' is not allowed; allowed: true or false"),
        (20, f"services[0].kind: 'brigde' is not allowed; allowed: {KINDS}"),
        (22, "services[1]: the key 'name' is missing"),
    ]


def test_what_is_right_for_itself_and_wrong_together_is_told_too(tmp_path: Path) -> None:
    assert problems(tmp_path, WHOLE + 'memory_limit = "1 KiB"\nstop_timeout = -1\n') == [
        (3, "memory_limit: 1024 is not allowed; allowed: a number of bytes, 1048576 at least, or None"),
        (4, "stop_timeout: -1 is not allowed; allowed: a number of seconds, 0 or more"),
    ]
    text = WHOLE + 'acceptors = ["tcp://127.0.0.1:0", { url = "tcp://0.0.0.0:0" }]'
    ((line, said),) = problems(tmp_path, text)
    assert (line, said.partition(":")[0]) == (3, "acceptors[1]")


def test_secrets_come_from_the_environment_or_a_file_and_are_never_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n")
    users = f"""\
[security.users]
ann = {{ env = "ANN" }}
bob = {{ file = "{tmp_path / "password"}" }}
cid = "as it is"
"""
    settings = settings_of(tmp_path, WHOLE + users, ANN="from outside")
    assert settings.security.users == {  # type: ignore[attr-defined]
        "ann": Secret("from outside"),
        "bob": Secret("from a file"),
        "cid": Secret("as it is"),
    }
    users = """\
[security.users]
ann = { env = "ANN" }
bob = { file = "/nowhere/password" }
cid = { text = "hidden" }
dot = ["hidden"]
eve = ""
[security]
userss = "hidden"
"""
    said = problems(tmp_path, WHOLE + users.replace("[security]\nuserss", "[[services]]\nkind = 'bridge'\npasword"))
    allowed = 'allowed: { env = "NAME" }, { file = "PATH" } or a text'
    assert said[:5] == [
        (4, "security.users.ann: the environment has no ANN"),
        (5, "security.users.bob: /nowhere/password can't be read: No such file or directory"),
        (6, f"security.users.cid: {allowed}"),
        (7, f"security.users.dot: {allowed}"),
        (8, "security.users.eve: *** is not allowed; allowed: a text of 1 to 1024 bytes in UTF-8"),
    ]
    assert "hidden" not in str(said)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('security = "app:hidden"', "security"),
        ('security.users = "app:hidden"', "security.users"),
        ('security.users = ["hidden"]', "security.users"),
        ('journal = "hidden"', "journal"),
        ('journal.encryption_keys = "hidden"', "journal.encryption_keys"),
        ('services = "hidden"', "services"),
        ('services = ["hidden"]', "services[0]"),
        ('services = [{ kind = { password = "hidden" } }]', "services[0].kind"),
        ('acceptors = ["tcp://127.0.0.1:0?password=hidden"]', "acceptors[0]"),
        ('acceptors = ["tcp://127.0.0.1?password=hidden"]', "acceptors[0]"),
    ],
)
def test_what_stands_where_secrets_belong_is_not_shown_either(tmp_path: Path, text: str, key: str) -> None:
    ((line, said),) = problems(tmp_path, WHOLE + text)
    assert (line, said.partition(":")[0]) == (3, key)
    assert "hidden" not in said and "not allowed" in said


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        # Of several, the one that is wrong.
        ('connectors = { a = "tcp://127.0.0.1:1", b = "nowhere" }', 3, "connectors.b"),
        ('[connectors]\na = "tcp://127.0.0.1:1"\n"b::c" = "tcp://127.0.0.1:1"', 5, 'connectors."b::c"'),
        ('queues = [\n"a",\n"b::c"]', 5, "queues[1]"),
        ('[address_settings."a"]\n[address_settings."a..b"]', 4, 'address_settings."a..b"'),
        ('[directories]\njournal = "a\\u0000"', 4, "directories.journal"),
        ('[security.users]\nann = "x"\n[security.roles]\nann = ["a"]', 3, "security.permissions"),
        (
            '[security]\nusers = { ann = "x" }\npermissions = { "#" = { send = ["a"] } }\n'
            '[security.roles]\nann = ["a"]\nbob = ["a"]',
            8,
            "security.roles.bob",
        ),
        (
            '[security]\nusers = { ann = "x" }\npermissions = { "#" = { send = ["a"] } }\n'
            '[security.roles]\nann = ["a", "b"]',
            7,
            "security.roles.ann",
        ),
        # What the broker says of them all together.
        ('[security]\n[security.certificates]\n"CN=ann" = "ann"', 4, "security.certificates"),
        ('[[services]]\nkind = "cluster_connection"\nname = "m"\nconnector = "c"\n' * 2 + OWN, 7, "services[1]"),
        (
            'acceptors = [{ url = "tcp://0.0.0.0:0", insecure = true }]\n'
            '[[services]]\nkind = "bridge"\nname = "b"\nqueue = "q"\ntarget = "tcp://127.0.0.1:1"\n'
            '[[services]]\nkind = "cluster_connection"\nname = "m"\nconnector = "c"\n' + OWN,
            9,
            "services[1].password",
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_own_key(tmp_path: Path, text: str, line: int, key: str) -> None:
    ((found, said),) = problems(tmp_path, WHOLE + text)
    assert (found, said.partition(": ")[0]) == (line, key)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'stop_timeout = "{"9" * 400} s"', "stop_timeout: '999"),
        ('[[services]]\nkind = ["bridge"]', "services[0].kind: a list is not allowed; allowed: 'bridge' or"),
        ('[security.users]\nann = { file = "a\\u0000b" }', "security.users.ann: 'a\\x00b' can't be read: "),
        ("[security]\nusers = {}", "security.users: a table is not allowed; allowed: one user at least"),
        (f"a = {'[' * 5_000}{']' * 5_000}", "is no TOML that can be read: it is nested too deeply"),
    ],
)
def test_what_nobody_would_write_is_refused_too(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, WHOLE + text)
    assert found[1].startswith(said)


@pytest.mark.parametrize("path", ["", "a\\u0000b"])
def test_a_path_that_can_not_be_one_is_no_directory(tmp_path: Path, path: str) -> None:
    ((line, said),) = problems(tmp_path, f'name = "hq"\ndata_dir = "{path}"')
    assert line == 2
    assert said.startswith("data_dir: ")
    assert said.endswith(" is not allowed; allowed: a directory, or false for memory only")


def test_roles_and_permissions_are_lists_of_names(tmp_path: Path) -> None:
    text = """\
[security]
users = { app = "secret" }
roles = { app = ["writers"] }
[security.permissions."orders.#"]
send = ["writers"]
"""
    security = settings_of(tmp_path, WHOLE + text).security  # type: ignore[attr-defined]
    permissions = {"orders.#": Permissions(send={"writers"})}
    assert security == Security(users={"app": "secret"}, roles={"app": {"writers"}}, permissions=permissions)
    assert problems(tmp_path, WHOLE + text.replace('send = ["writers"]', 'send = "writers"')) == [
        (7, "security.permissions.\"orders.#\".send: 'writers' is not allowed; allowed: a list")
    ]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "the key 'name' is missing"),
        ("name = \n", 1, "is not TOML"),
        ("name = 'a'\n\nname = 'b'\n", 3, "is not TOML"),
        ("\n\n[", 3, "is not TOML"),
    ],
)
def test_a_file_that_is_none_is_told_where(tmp_path: Path, text: str, line: int, said: str) -> None:
    found = problems(tmp_path, text)[0]
    assert found[0] == line
    assert found[1].startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        'stop_timeout = "' + "9" * 400 + ' s"',
        "memory_limit = " + "9" * 5_000,
        "queues = " + "[" * 3_000 + "]" * 3_000,
        'security.users.app = { file = "a\\u0000b" }',
        'connectors = { there = "nowhere" }',
    ],
)
def test_whatever_stands_there_is_told_as_what_is_wrong(tmp_path: Path, text: str) -> None:
    ((line, said),) = problems(tmp_path, WHOLE + text)
    key = text.partition(" = ")[0]
    assert (line, said.partition(":")[0].partition(".there")[0]) in {(3, key), (1, "is no TOML that can be read")}


def test_a_file_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml:1: can't be read: No such file"):
        load_broker(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"# a\n# \xff")
    with pytest.raises(ConfigError, match=r"bytes.toml:2: is not UTF-8"):
        load_broker(tmp_path / "bytes.toml")


def test_no_limit_is_inf_and_numbers_are_as_in_a_program(tmp_path: Path) -> None:
    text = WHOLE + '[address_settings."#"]\nmax_delivery_attempts = inf\nredelivery_delay = 1.5\n'
    found = settings_of(tmp_path, text).address_settings["#"]  # type: ignore[attr-defined]
    assert (found.max_delivery_attempts, found.redelivery_delay) == (math.inf, 1.5)
    assert settings_of(tmp_path, WHOLE + f'node_id = "{"ab" * 16}"').node_id == b"\xab" * 16  # type: ignore[attr-defined]


@pytest.mark.parametrize("setting", ["dead_letter_address", "expiry_address"])
def test_no_file_moves_messages_to_a_pattern(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'name = "hq"\ndata_dir = false\n\n[address_settings."#"]\n{setting} = "dlq.*"\n')
    with pytest.raises(ConfigError, match="wildcards") as caught:
        load_broker(file)
    ((_, line, key, _),) = caught.value.problems
    assert line == 5 and key.endswith(setting)


CONNECTORS = """name = "b"
data_dir = false
[connectors]
self = "tcp://127.0.0.1:5000"
[[services]]
kind = "bridge"
name = "out"
queue = "q"
target = "far"
[[services]]
kind = "cluster_connection"
name = "mesh"
connector = "me"
static_connectors = ["self", "tcp://127.0.0.1:5001", "x", "y"]
"""


def test_each_name_of_a_connector_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    allowed = "is not allowed; allowed:"
    several = f"{allowed} URLs, or connectors of the broker: self"
    assert problems(tmp_path, CONNECTORS) == [
        (9, f"services[0].target: 'far' {allowed} a URL, or one of the broker's connectors: self"),
        (13, f"services[1].connector: 'me' {allowed} one of the broker's connectors: self"),
        (14, f"services[1].static_connectors[2]: 'x' {several}"),
        (14, f"services[1].static_connectors[3]: 'y' {several}"),
    ]
    for good, wrong in (('"far"', '"self"'), ('"me"', '"self"'), (', "x", "y"', "")):
        CONNECTORS.index(good)
        assert len(problems(tmp_path, CONNECTORS.replace(good, wrong))) < 4


CLUSTER = '[[services]]\nkind = "cluster_connection"\nname = "mesh"\nconnector = "c"\n'


@pytest.mark.parametrize("value", ['"nope"', "5", "[]", '""'])
@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        (f"{OWN}\n{CLUSTER}load_balancing = ", "services[0].load_balancing", "'on_demand'"),
        ('[address_settings."orders"]\nfull_policy = ', "address_settings.orders.full_policy", "'page'"),
        (
            '[[acceptors]]\nurl = "tls://127.0.0.1:1"\n[acceptors.tls]\nclient_certificates = ',
            "acceptors[0].tls.client_certificates",
            "'required'",
        ),
    ],
)
def test_one_of_several_words_is_refused_with_those_that_are_allowed(
    tmp_path: Path, text: str, key: str, allowed: str, value: str
) -> None:
    found = [said for _, said in problems(tmp_path, f"{WHOLE}{text}{value}\n") if said.startswith(f"{key}: ")]
    assert len(found) == 1 and "is not allowed; allowed: " in found[0] and allowed in found[0]


def test_the_older_name_of_a_cluster_s_mode_is_read_with_a_warning_and_not_beside_the_newer_one(tmp_path: Path) -> None:
    service = f'{WHOLE}{OWN}\n[[services]]\nkind = "cluster_connection"\nname = "mesh"\nconnector = "c"\n'
    file = tmp_path / "broker.toml"
    file.write_text(service + "forward_when_no_consumers = true")
    with pytest.warns(DeprecationWarning, match="load_balancing='strict'"):
        (cluster,) = load_broker(file)._settings.services
    assert isinstance(cluster, ClusterConnection)
    assert cluster.settings.load_balancing == "strict"
    both = service + 'forward_when_no_consumers = true\nload_balancing = "off"'
    ((line, text),) = problems(tmp_path, both)
    assert "nothing beside load_balancing" in text
    assert line


def test_the_explicit_cluster_connection_is_read_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        f"""{WHOLE}
[connectors]
netty-connector = "tcp://127.0.0.1:61616"
server1-connector = "tcp://127.0.0.1:61617"

[[services]]
kind = "cluster_connection"
name = "my-cluster"
connector = "netty-connector"
static_connectors = ["server1-connector"]
allow_direct_connections_only = true
address = "jms"
retry_interval = "500 ms"
use_duplicate_detection = true
load_balancing = "strict"
max_hops = 1
"""
    )
    (cluster,) = load_broker(file)._settings.services
    assert isinstance(cluster, ClusterConnection)
    read = cluster.settings
    assert (read.connector, read.static_connectors) == ("netty-connector", ("server1-connector",))
    assert (read.allow_direct_connections_only, read.address, read.max_hops) == (True, "jms", 1)
    assert (read.retry_interval, read.use_duplicate_detection, read.load_balancing) == (0.5, True, "strict")
