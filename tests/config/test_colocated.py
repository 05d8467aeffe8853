"""A node that runs backups of others, in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import Colocated, ReplicationBackup, ReplicationPrimary, SharedStoreBackup, SharedStorePrimary
from meshq.config import load_broker
from tests.config.test_policies import PAIR, load, said

#: The numbers and names of the example of the ActiveMQ documentation.
EXAMPLE = """\
connectors = { quorum = "tcp://127.0.0.1:7", "own" = "tcp://127.0.0.1:8" }

[ha]
policy = "colocated"
backup_request_retries = 44
backup_request_retry_interval = "33 ms"
max_backups = 3
request_backup = false
backup_port_offset = 33
excludes = ["quorum"]

[ha.primary]
policy = "replication_primary"
group_name = "purple"
check_for_live_server = true
cluster_name = "abcdefg"

[ha.backup]
policy = "replication_backup"
group_name = "tiddles"
max_saved_replicated_journals = 22
cluster_name = "33rrrrr"
restart_backup = false
"""
CLUSTERS = "".join(
    f'\n[[services]]\nkind = "cluster_connection"\nname = "{name}"\nstatic_connectors = ["tcp://127.0.0.1:9"]\n'
    for name in ("abcdefg", "33rrrrr")
)
SHARED = '[ha]\npolicy = "colocated"\n[ha.primary]\npolicy = "{}"\n[ha.backup]\npolicy = "{}"\n'


def test_the_example_of_a_colocated_node_is_read_with_all_its_values(tmp_path: Path) -> None:
    assert load(tmp_path, EXAMPLE, CLUSTERS)._settings.ha == Colocated(
        primary=ReplicationPrimary(group_name="purple", check_for_live_server=True, cluster_name="abcdefg"),
        backup=ReplicationBackup(
            group_name="tiddles", max_saved_replicated_journals=22, cluster_name="33rrrrr", restart_backup=False
        ),
        request_backup=False,
        backup_request_retries=44,
        backup_request_retry_interval=0.033,
        max_backups=3,
        backup_port_offset=33,
        excludes=("quorum",),
    )


def test_what_a_file_leaves_out_has_the_defaults_of_a_program(tmp_path: Path) -> None:
    broker = load(tmp_path, SHARED.format("shared_store_primary", "shared_store_slave"))
    assert broker._settings.ha == Colocated(primary=SharedStorePrimary(), backup=SharedStoreBackup())
    assert broker.ha.policy == "colocated"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('[ha]\npolicy = "colocated"\n', 5, "primary"),
        (SHARED.format("shared_store_primary", "replication_backup"), 5, "of one kind"),
        (SHARED.format("shared_store_backup", "shared_store_backup"), 7, "SharedStorePrimary(...)"),
        (SHARED.format("colocated", "shared_store_backup"), 7, "primary"),
    ],
)
def test_what_does_not_go_together_is_named(tmp_path: Path, text: str, line: int, problem: str) -> None:
    found = said(tmp_path, text, PAIR)
    assert found and any(problem in one for _, one in found), found
    assert line in [at for at, _ in found]


def test_the_files_of_the_page_on_colocated_backups_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "colocated-backups.md"
    texts = [one.partition("```")[0] for one in page.read_text(encoding="utf-8").split("```toml\n")[1:]]
    found = []
    for text in texts:
        file = tmp_path / "broker.toml"
        file.write_text(text)
        found.append(load_broker(file, environ={"SHOP_PASSWORD": "secret"})._settings.ha)
    assert all(isinstance(one, Colocated) and one.request_backup for one in found)
    assert [isinstance(one, Colocated) and one.replicates for one in found] == [False, True]


def test_a_pair_without_a_way_to_its_other_node_is_told_where_the_way_belongs(tmp_path: Path) -> None:
    services = '\n[[services]]\nkind = "cluster_connection"\nname = "shop"\npassword = "secret"\n'
    (problem,) = said(tmp_path, '[ha]\npolicy = "replication_backup"\n', services)
    assert problem[1].startswith("services[0].static_connectors: none is not allowed; allowed: those of the other")
