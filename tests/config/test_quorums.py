"""Quorums in a file: of a policy, by its kind or a class of one's own, and a witness that ``meshq run`` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import (
    TLS,
    Acceptor,
    Broker,
    MajorityVote,
    MeshQuorum,
    QuorumNode,
    ReplicationBackup,
    ReplicationPrimary,
    ZooKeeperQuorum,
)
from meshq.abc import QuorumProvider
from meshq.config import dump_config, load_broker, load_nodes
from meshq.config._quorum_table import renamed
from meshq.errors import ConfigError, SettingsError
from tests.config.test_policies import HEAD, load, said
from tests.env.authorities import Authority

PAIR = """
[[services]]
kind = "cluster_connection"
name = "pair"
password = "theirs"
static_connectors = ["tcp://127.0.0.1:1"]
"""
HOSTS = "127.0.0.1:6666,127.0.0.1:6667,127.0.0.1:6668"
LONG = "replication_primary"
OWN = """
[ha]
policy = "replication_primary"
[ha.quorum]
class_name = "tests.config.test_quorums:OwnQuorum"
properties = { place = "here", patience = 2.5 }
"""
WITNESS = """
[quorum]
name = "w0"
data_dir = "{place}/w0"
acceptors = ["tcp://127.0.0.1:0"]
password = "theirs"
tick = "500 ms"
"""


@attrs.frozen(kw_only=True)
class OwnQuorum(QuorumProvider):
    """A provider of one's own, which takes properties."""

    place: str
    patience: float = 1.0

    def session(self, node_id: bytes, instance: bytes) -> Any:
        raise AssertionError("nobody asks it")


def quorum(tmp_path: Path, text: str, policy: str = "replication_primary") -> Any:
    """The quorum of a policy with this table."""
    ha: Any = load(tmp_path, f'[ha]\npolicy = "{policy}"\n[ha.quorum]\n{text}', PAIR)._settings.ha
    return ha.quorum


def test_peers_with_a_provider_are_described_and_others_have_no_id_in_common(tmp_path: Path) -> None:
    head = '[ha]\npolicy = "replication_primary"\ncoordination_id = "x"\n'
    table = f'[ha.quorum]\nkind = "zookeeper"\nhosts = "{HOSTS}"\n'
    policy = load(tmp_path, head + table, PAIR)._settings.ha
    assert policy == ReplicationPrimary(coordination_id="x", quorum=ZooKeeperQuorum(HOSTS))
    assert said(tmp_path, head, PAIR)[0] == (
        7,
        "ha.coordination_id: 'x' is not allowed; allowed: None, unless quorum= is a quorum provider",
    )
    ((line, found),) = said(tmp_path, head.replace("primary", "backup") + table, PAIR)
    assert line == 7 and found.startswith("ha.coordination_id: is not known")


def test_a_quorum_of_ones_own_is_written_with_its_properties(tmp_path: Path) -> None:
    first = load(tmp_path, OWN, PAIR)
    (tmp_path / "again.toml").write_text(dump_config(first, secrets="text"))
    assert load_broker(tmp_path / "again.toml")._settings.ha == first._settings.ha


def test_each_kind_of_quorum_has_the_names_of_a_program(tmp_path: Path) -> None:
    """F44, F45, F46."""
    assert quorum(tmp_path, 'kind = "majority"\n') == MajorityVote()
    text = f'kind = "zookeeper"\nhosts = "{HOSTS}"\nsession = "20 s"\nnamespace = "berlin"\n'
    text += 'auth = { user = "me", password = { file = "' + str(tmp_path / "secret") + '" } }\n'
    (tmp_path / "secret").write_text("theirs\n")
    (tmp_path / "secret").chmod(0o600)
    text += f'insecure = true\ntls = {{ authorities = "{Authority("ours").write(tmp_path / "ours.pem")}" }}\n'
    tls = TLS(authorities=str(tmp_path / "ours.pem"))
    expected = ZooKeeperQuorum(HOSTS, session=20, namespace="berlin", auth=("me", "theirs"), tls=tls, insecure=True)
    for policy in ("replication_primary", "replication_backup", "replication_master", "replication_slave"):
        assert quorum(tmp_path, text, policy) == expected
    servers = [f"tcp://127.0.0.1:{port}" for port in (1, 2, 3)]
    found = quorum(tmp_path, f'kind = "mesh"\nservers = {servers}\npassword = "theirs"\nretries = 3\n')
    assert found == MeshQuorum(servers, password="theirs", retries=3)


def test_with_no_class_named_it_is_that_of_zookeeper_and_one_of_ones_own_gets_its_properties(tmp_path: Path) -> None:
    """F44, F47."""
    words = f'connect-string = "{HOSTS}"\nsession-ms = 20000\nsession-percent = 25\nconnection-ms = 4000\n'
    words += 'retries = 2\nretries-ms = 500\nnamespace = "berlin"\n'
    expected = ZooKeeperQuorum(
        HOSTS,
        session=20.0,
        session_percent=25,
        connection_timeout=4.0,
        retries=2,
        retry_interval=0.5,
        namespace="berlin",
    )
    assert quorum(tmp_path, words) == expected
    assert quorum(tmp_path, f"[ha.quorum.properties]\n{words}") == expected
    assert quorum(tmp_path, f'hosts = "{HOSTS}"\nsession_ms = 20000\n') == ZooKeeperQuorum(HOSTS, session=20.0)
    for key in ("class_name", "class-name"):
        text = f'{key} = "{__name__}:OwnQuorum"\nproperties = {{ place = "here", patience = 2.5 }}\n'
        assert quorum(tmp_path, text) == OwnQuorum(place="here", patience=2.5)


def test_other_words_for_the_settings_of_a_vote_are_understood() -> None:
    """K75."""
    assert renamed({"vote_retries": 3, "vote_retries_wait": 2.0}) == {"vote_retries": 3, "vote_retry_wait": 2.0}
    dashed = {"quorum-size": 3, "vote-retries": 4, "vote-retries-wait": 2_000, "quorum-vote-wait": 30}
    assert renamed(dashed) == {"size": 3, "vote_retries": 4, "vote_retry_wait": 2.0, "quorum_vote_wait": 30}
    assert renamed({"quorum-size": -1}) == renamed({"quorum_size": -1}) == {}
    with pytest.raises(SettingsError, match="the same as 'vote_retry_wait'"):
        renamed({"vote_retry_wait": 1.0, "vote_retries_wait": 2.0})


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (
            '[ha.quorum]\nkind = "etcd"\n',
            8,
            "ha.quorum.kind: 'etcd' is not allowed; allowed: majority, zookeeper, mesh",
        ),
        ("vote-retries = 3\n", 7, "ha.vote-retries: stands in the table 'quorum' of the policy, as 'vote_retries'"),
        ("quorum-vote-wait = 3\n", 7, "ha.quorum-vote-wait: stands in the table 'quorum' of the policy"),
        (
            '[ha.quorum]\nkind = "majority"\nsize = -1\n',
            9,
            "ha.quorum.size: -1 is not allowed; allowed: a whole",
        ),
        ("quorum = 3\n", 7, "ha.quorum: 3 is not allowed; allowed: a table"),
        ("[ha.quorum]\n", 7, "ha.quorum: the key 'kind' is missing; allowed: majority, zookeeper, mesh"),
        ('[ha.quorum]\nhosts = "a"\n', 8, "ha.quorum.hosts: 'a' is not allowed"),
        ('[ha.quorum]\nhosts = "a:1"\n', 8, "ha.quorum.hosts: 'a:1' is not allowed; allowed: a loopback"),
        (
            '[ha.quorum]\nhosts = "a:1"\nsession_ms = "x"\n',
            7,
            "ha.quorum: 'x' is not allowed; allowed: a number of mil",
        ),
        ('[ha.quorum]\nhosts = "[::1]:1"\nsession = 0\n', 9, "ha.quorum.session: 0 is not allowed"),
        ('[ha.quorum]\nhosts = "a:1"\nsession = 9\nsession_ms = 9\n', 7, "ha.quorum: 9 is not allowed; allowed: once"),
        ('[ha.quorum]\nclass_name = "no"\n', 7, "ha.quorum: 'no' is not allowed; allowed: 'module:Class'"),
        ('[ha.quorum]\nclass_name = "meshq:Broker"\n', 7, "ha.quorum: 'meshq:Broker' is not allowed; allowed: 'module"),
        (f'[ha.quorum]\nclass_name = "{__name__}:OwnQuorum"\n', 7, "ha.quorum: 'none' is not allowed; allowed: what"),
        ('[ha.quorum]\nclass_name = "m:C"\nhosts = "a:1"\n', 7, "ha.quorum: hosts: not beside a class"),
        ("[ha.quorum]\nproperties = 5\n", 7, "ha.quorum: 5 is not allowed as properties"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    ((at, found),) = said(tmp_path, f'[ha]\npolicy = "replication_backup"\n{text}', PAIR)
    assert at == line and found.startswith(problem), (at, found)


def test_a_witness_stands_in_a_file_beside_a_broker_or_alone(tmp_path: Path) -> None:
    witness, file = WITNESS.format(place=tmp_path), tmp_path / "nodes.toml"
    file.write_text(HEAD.format(place=tmp_path / "a") + witness)
    first, second = load_nodes(file)
    assert isinstance(first, QuorumNode) and isinstance(second, Broker)
    assert (first.name, second.name, load_broker(file).name) == ("w0", "a", "a")
    file.write_text(witness)
    (alone,) = load_nodes(file)
    assert isinstance(alone, QuorumNode)
    with pytest.raises(ConfigError, match="describes a witness of a quorum, and no broker"):
        load_broker(file)
    for good, bad, text in (
        ('name = "w0"\n', "", "quorum: the key 'name' is missing"),
        ("500 ms", "0 ms", "quorum.tick: 0"),
        (f'"{tmp_path}/w0"', "false", "quorum.data_dir: false is not allowed; allowed: a directory"),
        ("tcp://127.0.0.1:0", "http://127.0.0.1:1", "quorum.acceptors"),
    ):
        file.write_text(witness.replace(good, bad))
        with pytest.raises(ConfigError) as caught:
            load_nodes(file)
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ('backup = true\nshared-store = false\nbackup-group-name = "g"\nallow-failback = true\n', "replication_backup"),
        ("check_for_live_server = true\nshared-store = false\nmax-saved-replicated-journals = 3\n", LONG),
        ("failover-on-shutdown = true\n", "shared_store_primary"),
        ("backup = true\nallow_fail_back = true\n", "shared_store_backup"),
    ],
)  # fmt: skip
def test_the_older_spelling_at_the_top_of_a_file_is_a_policy_with_a_warning(
    tmp_path: Path, text: str, policy: str
) -> None:
    """F10."""
    file = tmp_path / "broker.toml"
    file.write_text(HEAD.format(place=tmp_path / "a") + text + PAIR)
    with pytest.warns(DeprecationWarning, match=f"write \\[ha\\] with policy = '{policy}'"):
        broker = load_broker(file)
    ha: Any = broker._settings.ha
    assert broker.ha.policy == policy
    expected = {
        "replication_backup": lambda: ReplicationBackup(group_name="g", allow_failback=True) == ha,
        "replication_primary": lambda: (
            ReplicationPrimary(check_for_live_server=True, max_saved_replicated_journals=3) == ha
        ),
        "shared_store_primary": lambda: ha.failover_on_shutdown,
        "shared_store_backup": lambda: ha.allow_failback,
    }
    assert expected[policy]()


def test_the_older_spelling_beside_a_policy_is_refused(tmp_path: Path) -> None:
    """F10: nobody guesses which of both is meant."""
    file = tmp_path / "broker.toml"
    policy = '[ha]\npolicy = "shared_store_primary"\n'
    file.write_text(HEAD.format(place=tmp_path / "a") + "backup = true\n" + policy + PAIR)
    with pytest.raises(ConfigError, match="backup: is not known"):
        load_broker(file)
    file.write_text(HEAD.format(place=tmp_path / "a") + "allow_failback = true\nallow-failback = true\n" + PAIR)
    with pytest.raises(ConfigError, match="is not known"):
        load_broker(file)


@pytest.mark.parametrize("alias", ["allow_failback", "allow_fail_back"])
@pytest.mark.parametrize("policy", ["shared_store_backup", "replication_backup"])
def test_failback_has_to_be_allowed_under_either_name(tmp_path: Path, policy: str, alias: str) -> None:
    """F72."""
    for text, allowed in (("", False), (f"{alias} = true\n", True)):
        ha: Any = load(tmp_path, f'[ha]\npolicy = "{policy}"\n{text}', PAIR)._settings.ha
        assert ha.allow_failback is allowed


def test_the_tls_of_a_witness_is_that_of_its_acceptors(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    certificate = Authority("ours").issue(tmp_path / "w0.pem", "127.0.0.1")
    text = '[quorum]\nname = "w0"\ndata_dir = "w0"\npassword = "x"\nacceptors = ["tls://127.0.0.1:0"]\n'
    file.write_text(f'{text}tls = {{ certificate = "{certificate}" }}\n')
    (witness,) = load_nodes(file)
    assert isinstance(witness, QuorumNode)
    assert witness.settings["acceptors"] == (Acceptor("tls://127.0.0.1:0", tls=TLS(certificate=certificate)),)
    file.write_text(text)
    with pytest.raises(ConfigError, match=r":5: quorum.acceptors\[0\]: 'tls://127.0.0.1:0' is not allowed"):
        load_nodes(file)


def test_a_policy_in_a_file_takes_the_settings_of_a_vote(tmp_path: Path) -> None:
    """K75."""
    text = 'kind = "majority"\nsize = 5\nvote_retries = 3\nvote_retries_wait = 2\nquorum_vote_wait = 7\n'
    found = quorum(tmp_path, text)
    assert found == MajorityVote(size=5, vote_retries=3, vote_retry_wait=2.0, quorum_vote_wait=7.0)
    for policy, spelled in (("replication_primary", "_"), ("replication_backup", "_"), ("replication_backup", "-")):
        given = f'[ha]\npolicy = "{policy}"\n{"vote_on_replication_failure".replace("_", spelled)} = true\n'
        ha: Any = load(tmp_path, given, PAIR)._settings.ha
        assert ha.vote_on_replication_failure is True
        assert ha.quorum == MajorityVote()
