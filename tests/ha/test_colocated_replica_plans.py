"""Backups with stores of their own: which of several is kept, which one ends, and where one is."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import RefusedError, SettingsError
from meshq.ha.colocated import (
    HostingPlan,
    HostOffer,
    decode_epoch,
    encode_epoch,
    is_left_behind,
    own_backups,
    own_replicas,
)
from tests.ha.test_colocated_plans import IDS, accepted, offer, request, rules


def test_of_several_stores_the_one_that_is_in_sync_is_kept_and_none_ends_without_it() -> None:
    def told(name: str, life: str, digest: str = "d", ready: bool = True) -> HostOffer:
        return HostOffer(node_id=IDS[name], backups=1, max_backups=1, mine="x", ready=ready, request=digest, life=life)

    a, b, old = told("a", "1"), told("b", "2"), told("c", "3", "old")
    found = own_replicas([offer("f", 0), old, a, b], "d", "2")
    assert (found.kept, set(found.surplus), found.stale) == (b, {a, old}, False)
    # In sync with other settings: it is asked for again where it is.
    found = own_replicas([a, old], "d", "3")
    assert (found.kept, found.surplus, found.stale) == (old, (a,), True)
    for in_sync in ("", "9"):
        found = own_replicas([old, b, a], "d", in_sync)
        assert (found.kept, found.surplus, found.stale) == (a, (), False)
    assert own_replicas([old], "d", "").stale
    assert own_replicas([offer("f", 0)], "d", "") == own_backups([], "d")


def test_a_store_ends_for_good_only_if_its_node_has_all_of_it() -> None:
    def ends(epoch: int, *, acted: bool = False, claimed: bool = False) -> bool:
        return is_left_behind(epoch=epoch, acted=acted, claimed=claimed, node_epoch=5)

    assert ends(0) and ends(4) and ends(4, acted=True) and ends(5)
    assert not (ends(5, acted=True) or ends(6) or ends(6, acted=True) or ends(3, claimed=True))
    assert decode_epoch(encode_epoch(5)) == 5
    for wrong in (b"", b"-1", b"x", b"1" * 30):
        with pytest.raises(SettingsError):
            decode_epoch(wrong)


def test_a_number_of_another_life_is_given_to_nobody_and_a_backup_of_before_keeps_its_ports() -> None:
    about: dict[str, Any] = {"kind": "replication_backup", "data_dir": ""}
    plan = HostingPlan(
        rules(replicates=True, kind="replication_backup", max_backups=1, acceptors=("tcp://127.0.0.1:61616",))
    )
    plan.count_from(3)
    for name, number in (("a", 2), ("c", 1)):
        again = request(name, **about)
        places = plan.places_again(again, number, 4 - number)
        plan.begin_again(again, places)
        assert (places.name, places.place) == (f"colocated_backup_{number}", 4 - number)
        assert places.data_dir == f"/b/colocated_backup_{number}"
    # More than may be are begun; the next one finds room once they are gone, and has a new number.
    with pytest.raises(RefusedError, match="runs 2 backups"):
        plan.places_for(request("d", **about))
    plan.ended(IDS["a"])
    plan.ended(IDS["c"])
    assert plan.places_for(request("d", **about)).name == "colocated_backup_4"


def test_a_host_whose_ports_the_system_chooses_runs_no_backup_with_a_store_of_its_own() -> None:
    about: dict[str, Any] = {"kind": "replication_backup", "replicates": True}
    for wrong in ("tls://127.0.0.1:0", "tcp://127.0.0.1:0"):
        plan = HostingPlan(rules(**about, acceptors=("inproc://b", "tcp://127.0.0.1:61616", wrong)))
        with pytest.raises(RefusedError, match="a port that the system chooses"):
            plan.places_for(request("a", kind="replication_backup", data_dir=""))


def test_other_offsets_and_directories_of_the_host() -> None:
    plan = HostingPlan(
        rules(
            backup_port_offset=33,
            replicates=True,
            kind="replication_backup",
            max_backups=3,
            acceptors=("tcp://127.0.0.1:61616",),
        )
    )
    for number in (1, 2, 3):
        name = "acd"[number - 1]
        places = accepted(plan, request(name, kind="replication_backup", data_dir=""))
        assert (places.data_dir, places.number) == (f"/b/colocated_backup_{number}", number)
        assert places.acceptors[0] == f"tcp://127.0.0.1:{61_616 + 33 * number}"


def test_groups_fit_by_replication_as_with_a_shared_store() -> None:
    fixed: dict[str, Any] = {"acceptors": ("tcp://127.0.0.1:61616",), "replicates": True, "kind": "replication_backup"}
    asked = request("a", kind="replication_backup", data_dir="", group_name="purple")
    with pytest.raises(RefusedError, match="'purple', and backups here in 'tiddles'"):
        HostingPlan(rules(**fixed, group_name="tiddles")).places_for(asked)
    for own in ("purple", None):
        assert HostingPlan(rules(**fixed, group_name=own)).places_for(asked).data_dir == "/b/colocated_backup_1"
