"""A network connector from a file: what it becomes, and what is said of keys that are wrong."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from meshq import ConfigError, NetworkConnector, Queues, Topics, load_broker
from meshq.settings import Secret

BROKER = 'name = "A"\ndata_dir = false\n'
LINK = """\
[[services]]
kind = "network_connector"
name = "linkToBrokerB"
uri = "static:(tcp://localhost:61002)"
network_ttl = 3
"""


def connector_of(tmp_path: Path, text: str) -> NetworkConnector:
    """The connector of a file."""
    file = tmp_path / "broker.toml"
    file.write_text(text)
    (service,) = load_broker(file, environ={"HQ": "a long password"})._settings.services
    assert isinstance(service, NetworkConnector)
    return service


def problems(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    """Line and text of each problem."""
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_broker(file, environ={})
    return [(line, text) for _, line, _, text in caught.value.problems]


def test_the_example_of_two_brokers_is_read_as_it_is_written(tmp_path: Path) -> None:
    users = '[security]\nusers = { link = "a long password" }\n'
    for name, port in (("A", 61001), ("B", 61002)):
        file = tmp_path / f"{name}.toml"
        about = f'name = "{name}"\ndata_dir = false\nacceptors = ["tcp://0.0.0.0:{port}?insecure=true"]\n'
        file.write_text(about + users + (LINK if name == "A" else ""))
        settings = load_broker(file)._settings
        assert settings.name == name
        assert [one.url for one in settings.acceptors] == [f"tcp://0.0.0.0:{port}?insecure=true"]
        if name == "A":
            (link,) = settings.services
            assert isinstance(link, NetworkConnector)
            built = NetworkConnector("linkToBrokerB", "static:(tcp://localhost:61002)", network_ttl=3)
            assert link.settings == built.settings
            assert (link.name, link.settings.uri, link.settings.network_ttl) == (
                "linkToBrokerB",
                "static:(tcp://localhost:61002)",
                3,
            )


def test_every_setting_of_a_connector_can_stand_in_a_file(tmp_path: Path) -> None:
    more = """\
duplex = true
conduit_subscriptions = false
decrease_network_consumer_priority = true
suppress_duplicate_queue_subscriptions = true
dynamically_included = [{ queues = "TRADE.STOCK.>" }, { topics = "PRICE.>" }]
excluded = [{ queues = "TRADE.STOCK.NYSE.*" }]
statically_included = [{ topics = "AUDIT" }]
prefetch = 10
retry_interval = "2 s"
user = "link"
password = { env = "HQ" }
tls = { authorities = "ca.pem" }
"""
    found = connector_of(tmp_path, BROKER + LINK.replace("tcp://", "tls://") + more)
    built = NetworkConnector(
        "linkToBrokerB",
        "static:(tls://localhost:61002)",
        network_ttl=3,
        duplex=True,
        conduit_subscriptions=False,
        decrease_network_consumer_priority=True,
        suppress_duplicate_queue_subscriptions=True,
        dynamically_included=[Queues("TRADE.STOCK.>"), Topics("PRICE.>")],
        excluded=[Queues("TRADE.STOCK.NYSE.*")],
        statically_included=[Topics("AUDIT")],
        prefetch=10,
        retry_interval=2,
    )
    assert attrs.asdict(found.settings) == attrs.asdict(built.settings)
    assert (found.login["user"], found.login["password"]) == ("link", Secret("a long password"))
    assert found.login["tls"].authorities == "ca.pem"


WORDS = "words between dots, each of them a name, '*' for one word or '>' for any number of them"


def test_how_far_messages_go_is_a_number_of_brokers(tmp_path: Path) -> None:
    for wrong in ("17", '"3 s"'):
        text = BROKER + LINK.replace("network_ttl = 3", f"network_ttl = {wrong}")
        ((line, said),) = problems(tmp_path, text)
        assert (line, said.partition(" is not")[0]) == (7, f"services[0].network_ttl: {wrong}".replace('"', "'"))
        assert "a whole number" in said


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("network_tll = 3", "network_tll: is not known; the nearest known key is 'network_ttl'"),
        ("prefetch = 0", "prefetch: 0 is not allowed; allowed: a whole number from 1 to 20000"),
        ('duplex = "yes"', "duplex: 'yes' is not allowed; allowed: true or false"),
        ('excluded = ["q"]', "excluded[0]: 'q' is not allowed; allowed: a table"),
        ("excluded = [{}]", "excluded[0]: neither is not allowed; allowed: exactly one of queues and topics"),
        (
            'excluded = [{ queues = "a", topics = "b" }]',
            "excluded[0]: both is not allowed; allowed: exactly one of queues and topics",
        ),
        ('excluded = [{ queue = "a" }]', "excluded[0].queue: is not known; the nearest known key is 'queues'"),
        ('excluded = [{ topics = "a.b*" }]', f"excluded[0].topics: 'a.b*' is not allowed; allowed: {WORDS}"),
        (
            'statically_included = [{ queues = "a" }, { queues = "TEST.>" }]',
            "statically_included[1]: 'TEST.>' is not allowed; allowed: names without wildcards: what is forwarded "
            "unasked",
        ),
        ('password = { env = "NONE" }', "password: the environment has no NONE"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, key: str, said: str) -> None:
    assert problems(tmp_path, f"{BROKER}{LINK}{key}\n") == [(8, f"services[0].{said}")]


def test_a_connector_needs_a_name_of_its_own_and_a_uri_that_can_be_dialed(tmp_path: Path) -> None:
    unnamed = LINK.replace('name = "linkToBrokerB"\n', "")
    assert problems(tmp_path, BROKER + unnamed) == [(3, "services[0]: the key 'name' is missing")]
    ((line, said),) = problems(tmp_path, BROKER + LINK + LINK)
    assert "different names for services of the kind 'network_connector'" in said
    ((line, said),) = problems(tmp_path, BROKER + LINK.replace("static:(tcp://localhost:61002)", "tcp://localhost"))
    assert (line, said.partition(":")[0]) == (6, "services[0].uri")
    ((line, said),) = problems(tmp_path, BROKER + LINK.replace("tcp://localhost", "tcp://192.0.2.1"))
    assert (line, said.partition(":")[0]) == (6, "services[0].uri")
    assert "plaintext to this machine only" in said
