"""Where a backup would listen, and who listens there already: its host, or its node on the same machine."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from meshq import Acceptor, Broker, ClusterConnection, Colocated, SettingsError, SharedStoreBackup, SharedStorePrimary
from meshq.ha.colocated import HostingPlan
from tests.ha.test_colocated_plans import IDS, accepted, request, rules


def test_a_backup_that_would_listen_where_its_host_does_is_an_error_that_names_both(tmp_path: Path) -> None:
    policy = Colocated(primary=SharedStorePrimary(), backup=SharedStoreBackup(), max_backups=2)
    meeting: list[list[str | Acceptor]] = [
        ["tcp://127.0.0.1:61616", "tcp://127.0.0.1:61816"],
        ["tcp://127.0.0.1:61616", Acceptor("tcp://0.0.0.0:61716", insecure=True)],
        ["tcp://127.0.0.1:61716", "tcp://localhost:61616"],
    ]
    for acceptors in meeting:
        with pytest.raises(
            SettingsError, match=r":61616' would be at '.*61[78]16', which meets '.*61[78]16'"
        ) as caught:
            Broker("a", data_dir=tmp_path / "a", acceptors=acceptors, services=[ClusterConnection("c")], ha=policy)
        assert caught.value.setting == "backup_port_offset"
        assert not list(tmp_path.iterdir())
    apart = ["tcp://127.0.0.1:61616", "tcp://127.0.0.1:61916", "tcp://127.0.0.2:61716"]
    Broker("a", data_dir=tmp_path / "a", acceptors=apart, services=[ClusterConnection("c")], ha=policy)
    # A place beyond is left out.
    plan = HostingPlan(rules(acceptors=("tcp://127.0.0.1:61616", "tcp://127.0.0.1:61916"), max_backups=1))
    for _ in range(8):
        assert accepted(plan, request("a")).place != 3
        plan.ended(IDS["a"], begun=False)
    with pytest.raises(SettingsError, match="61916"):
        plan.places_again(request("a"), 1, 3)


def test_an_offset_with_which_no_backup_can_listen_is_an_error_that_names_the_port() -> None:
    def made(port: int, **settings: int) -> None:
        policy = Colocated(primary=SharedStorePrimary(), backup=SharedStoreBackup(), **settings)
        acceptors = ["tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}"]
        Broker("a", data_dir="/a", acceptors=acceptors, services=[ClusterConnection("c")], ha=policy)

    with pytest.raises(SettingsError, match=r"backup_port_offset=100 .* 65436 \+ 100 is a port"):
        made(65436)
    with pytest.raises(SettingsError, match=r"backup_port_offset=65535 .* 1 \+ 65535 is a port"):
        made(1, backup_port_offset=65535)
    # The first place is one; and who runs no backup needs none.
    made(65435, max_backups=2)
    made(65436, max_backups=0)


def test_a_backup_listens_elsewhere_than_its_node_on_the_same_machine_or_is_an_error_that_names_both() -> None:
    plan = HostingPlan(rules(connectors={"own": "tcp://h:61616", "voter": "tcp://v:61616"}))
    for url, met in (
        ("tcp://127.0.0.1:61716", True),
        ("tls://localhost:61716?a=b", True),
        ("tcp://h:61716", False),
        ("tcp://127.0.0.1:0", False),
        ("no url", False),
    ):
        asked = request("a", url=url)
        assert plan.places_for(asked).place == (2 if met else 1), url
        if met:
            with pytest.raises(SettingsError, match=r"would be at 'tcp://127.0.0.1:61716', which meets 't.*:61716'"):
                plan.places_again(asked, 1, 1)
    # Where every address of the machine is listened at, its names are those of the host's own connectors.
    everywhere = HostingPlan(attrs.evolve(plan.rules, acceptors=("tcp://0.0.0.0:61616",)))
    for url, place in (("tcp://h:61716", 2), ("tcp://127.0.0.3:61716", 2), ("tcp://v:61716", 1)):
        assert everywhere.places_for(request("a", url=url)).place == place, url
