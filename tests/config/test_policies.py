"""Policies of high availability in a file: the names and fields of a program, and every wrong one with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq import Broker, DiscoveryGroup, LiveOnly, ReplicationBackup, ScaleDown, SharedStoreBackup, SharedStorePrimary
from meshq.config import load_broker
from meshq.errors import ConfigError

HEAD = """\
name = "a"
data_dir = "{place}"
acceptors = ["tcp://127.0.0.1:0"]

"""
PAIR = """
[[services]]
kind = "cluster_connection"
name = "pair"
password = "theirs"
"""


def load(tmp_path: Path, text: str, services: str = PAIR) -> Broker:
    file = tmp_path / "broker.toml"
    file.write_text(HEAD.format(place=tmp_path / "data") + text + services)
    return load_broker(file)


def said(tmp_path: Path, text: str, services: str = PAIR) -> list[tuple[int, str]]:
    try:
        load(tmp_path, text, services)
    except ConfigError as error:
        return [(line, found) for _, line, _, found in error.problems]
    return []


def test_every_field_of_a_shared_store_has_the_name_and_the_default_of_a_program(tmp_path: Path) -> None:
    broker = load(tmp_path, '[ha]\npolicy = "shared_store_primary"\n')
    assert broker._settings.ha == SharedStorePrimary()
    assert broker.ha.policy == "shared_store_primary"
    text = """\
[ha]
policy = "shared_store_backup"
allow_failback = true
restart_backup = false
failover_on_shutdown = true
wait_for_activation = true
lease = "10 s"
lock_check_period = "50 ms"
fence_command = ["/sbin/fence", "{host}"]
fence_timeout = "1 min"
check_hosts = ["127.0.0.1:53"]
check_hosts_period = 5
check_hosts_timeout = "500 ms"
"""
    assert load(tmp_path, text)._settings.ha == SharedStoreBackup(
        allow_failback=True,
        restart_backup=False,
        failover_on_shutdown=True,
        wait_for_activation=True,
        lease=10,
        lock_check_period=0.05,
        fence_command=["/sbin/fence", "{host}"],
        fence_timeout=60,
        check_hosts=["127.0.0.1:53"],
        check_hosts_period=5,
        check_hosts_timeout=0.5,
    )


def test_a_pair_by_replication_stands_in_a_file(tmp_path: Path) -> None:
    for word in ("replication_primary", "replication_backup", "replication_slave"):
        text = f'[ha]\npolicy = "{word}"\ninitial_replication_sync_timeout = "10 s"\ngroup_name = "fish"\n'
        kind = word.replace("slave", "backup")
        services = PAIR.rstrip() + '\nstatic_connectors = ["tcp://127.0.0.1:1"]\n'
        broker = load(tmp_path, text, services)
        assert broker.ha.policy == kind
        ha: Any = broker._settings.ha
        assert (ha.initial_replication_sync_timeout, ha.group_name) == (10, "fish")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("shared_store_master", SharedStorePrimary),
        ("shared_store_live", SharedStorePrimary),
        ("shared_store_slave", SharedStoreBackup),
        ("live_only", LiveOnly),
    ],
)
def test_other_words_for_the_roles_are_understood(tmp_path: Path, name: str, kind: type) -> None:
    assert load(tmp_path, f'[ha]\npolicy = "{name}"\n')._settings.ha == kind()
    if kind is SharedStoreBackup:
        policy = load(tmp_path, f'[ha]\npolicy = "{name}"\nallow_fail_back = true\n')._settings.ha
        assert policy == SharedStoreBackup(allow_failback=True)


def test_a_node_that_scales_down_may_name_a_group_that_stands_behind_it(tmp_path: Path) -> None:
    text = '[ha]\npolicy = "live_only"\n[ha.scale_down]\ndiscovery = "g"\n'
    group = '\n[[services]]\nkind = "discovery_group"\nname = "g"\n'
    group += '[services.endpoint.directory]\npath = "/tmp/x"\nchannel = "c"\n'
    policy = load(tmp_path, text, PAIR + group)._settings.ha
    assert isinstance(policy, LiveOnly) and isinstance(policy.scale_down, ScaleDown)
    assert isinstance(policy.scale_down.discovery, DiscoveryGroup)
    assert load(tmp_path, '[ha]\npolicy = "live_only"\n[ha.scale_down]\n')._settings.ha == LiveOnly(
        scale_down=ScaleDown()
    )
    backup = load(tmp_path, '[ha]\npolicy = "shared_store_backup"\n[ha.scale_down]\ngroup_name = "x"\n')._settings.ha
    assert backup == SharedStoreBackup(scale_down=ScaleDown(group_name="x"))
    text = '[ha]\npolicy = "replication_backup"\n[ha.scale_down]\ngroup_name = "x"\n'
    replica = load(tmp_path, text, PAIR + 'static_connectors = ["tcp://127.0.0.1:9"]\n')._settings.ha
    assert replica == ReplicationBackup(scale_down=ScaleDown(group_name="x"))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("[ha]\n", 5, "ha: the key 'policy' is missing; allowed: live_only, shared_store_primary, shared_store_backup"),
        ('[ha]\npolicy = "primary"\n', 6, "ha.policy: 'primary' is not allowed; allowed: live_only, shared_store"),
        ('[ha]\npolicy = "master"\n', 6, "ha.policy: 'master' is not allowed; allowed: live_only, shared_store"),
        ("[ha]\npolicy = 5\n", 6, "ha.policy: 5 is not allowed"),
        ('[ha]\npolicy = "shared_store_primary"\nleese = 5\n', 7, "ha.leese: is not known; the nearest known key is"),
        ('[ha]\npolicy = "shared_store_primary"\nlease = 0\n', 7, "ha.lease: 0 is not allowed"),
        ('[ha]\npolicy = "shared_store_primary"\nlease = "5 m"\n', 7, "ha.lease: '5 m' is not allowed"),
        ('[ha]\npolicy = "shared_store_primary"\nfence_command = "kill"\n', 7, "ha.fence_command: 'kill' is not"),
        ('[ha]\npolicy = "shared_store_primary"\nallow_failback = true\n', 7, "ha.allow_failback: is not known"),
        (
            '[ha]\npolicy = "shared_store_backup"\nallow_fail_back = true\nallow_failback = true\n',
            7,
            "ha.allow_fail_back: is the same as 'allow_failback', which is there, too",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    ((at, found),) = said(tmp_path, text)
    assert at == line and found.startswith(problem), (at, found)


def test_a_policy_that_does_not_go_with_the_rest_is_told(tmp_path: Path) -> None:
    ((line, found),) = said(tmp_path, '[ha]\npolicy = "shared_store_primary"\n', services="")
    assert line == 5 and found.startswith("ha: ")
