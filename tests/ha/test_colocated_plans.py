"""Which node is asked to run a backup, when, and what the backup's name and places are; and requests that are wrong."""

from __future__ import annotations

import json
import math
import random
import zlib
from typing import Any

import attrs
import pytest

from meshq import (
    Broker,
    ClusterConnection,
    Colocated,
    RefusedError,
    ReplicationBackup,
    ReplicationPrimary,
    SettingsError,
    SharedStoreBackup,
    SharedStorePrimary,
    StoreDirectories,
)
from meshq.ha.colocated import (
    BackupRequest,
    HostedPlaces,
    HostingPlan,
    HostOffer,
    HostRules,
    RequestTries,
    best_host,
    host_to_clear,
    own_backups,
)
from meshq.ha.colocated._backup_request_format import REQUEST_BYTES_MAX, TEXT_BYTES_MAX

OWN = ClusterConnection("c", connector="own")
IDS = {name: name * 32 for name in "abcdef"}


def rules(**changed: Any) -> HostRules:
    about: dict[str, Any] = {
        "name": "b",
        "data_dir": "/b",
        "kind": "shared_store_backup",
        "replicates": False,
        "max_backups": 2,
        "backup_port_offset": 100,
        "acceptors": ("tcp://127.0.0.1:61616", "tls://127.0.0.1:0"),
        "connectors": {"own": "tcp://h:61616?a=b", "inside": "inproc://b", "voter": "tcp://v:61616"},
        "excludes": ("voter",),
        **changed,
    }
    return HostRules(**about)


def request(name: str = "a", **changed: Any) -> BackupRequest:
    about = {"name": name, "node_id": IDS[name], "url": "tcp://x:1", "kind": "shared_store_backup"}
    return BackupRequest(**{**about, "data_dir": f"/{name}", **changed})


def accepted(plan: HostingPlan, asked: BackupRequest) -> HostedPlaces:
    """Accept a request, at the places that the plan has for it."""
    places = plan.places_for(asked)
    plan.accept(asked, places)
    return places


# -- settings


def test_nothing_is_asked_and_one_backup_is_run_unless_the_settings_say_otherwise() -> None:
    policy = Colocated(primary=SharedStorePrimary(), backup=SharedStoreBackup())
    assert (policy.request_backup, policy.backup_request_retries) == (False, math.inf)
    assert (policy.backup_request_retry_interval, policy.max_backups) == (5.0, 1)
    assert (policy.backup_port_offset, policy.excludes, policy.shared_root) == (100, (), None)
    assert policy.wait_for_activation
    waits = SharedStorePrimary(wait_for_activation=False)
    assert not Colocated(primary=waits, backup=SharedStoreBackup()).wait_for_activation
    backup = ReplicationBackup()
    assert (backup.max_saved_replicated_journals, backup.restart_backup, backup.allow_failback) == (2, True, False)
    assert (SharedStoreBackup().restart_backup, SharedStoreBackup().allow_failback) == (True, False)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("primary", SharedStoreBackup()),
        ("primary", None),
        ("backup", SharedStorePrimary()),
        ("backup", "shared_store_backup"),
        ("request_backup", 1),
        ("backup_request_retries", -1),
        ("backup_request_retries", 1.5),
        ("backup_request_retry_interval", 0),
        ("backup_request_retry_interval", math.inf),
        ("max_backups", -1),
        ("max_backups", 65),
        ("backup_port_offset", 0),
        ("backup_port_offset", 65_536),
        ("excludes", "own"),
        ("excludes", [7]),
        ("shared_root", "relative"),
        ("shared_root", "/san/.."),
        ("shared_root", 7),
    ],
)
def test_what_is_not_allowed_is_named(setting: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        Colocated(**{"primary": SharedStorePrimary(), "backup": SharedStoreBackup(), setting: value})
    assert caught.value.setting == setting


def test_the_two_policies_are_of_one_kind() -> None:
    for primary, backup in ((SharedStorePrimary(), ReplicationBackup()), (ReplicationPrimary(), SharedStoreBackup())):
        with pytest.raises(SettingsError, match="of one kind") as caught:
            Colocated(primary=primary, backup=backup)
        assert caught.value.setting == "ha"


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        ("ha", {"services": []}),
        ("ha", {"data_dir": None}),
        ("directories", {"directories": StoreDirectories(journal="/elsewhere")}),
        ("data_dir", {"data_dir": "relative"}),
        ("excludes", {"ha": {"excludes": ["nobody"]}}),
        ("excludes", {"ha": {"excludes": ["own"]}, "connectors": {"own": "tcp://h:1"}, "services": [OWN]}),
        ("cluster_name", {"ha": {"primary": ReplicationPrimary(), "backup": ReplicationBackup(cluster_name="x")}}),
    ],
)
def test_a_broker_has_what_such_a_policy_needs(setting: str, settings: dict[str, Any]) -> None:
    policy = {"primary": SharedStorePrimary(), "backup": SharedStoreBackup(), "request_backup": True}
    about: dict[str, Any] = {"data_dir": "/data", "services": [ClusterConnection("c")], **settings}
    with pytest.raises(SettingsError) as caught:
        Broker("a", **{**about, "ha": Colocated(**{**policy, **settings.get("ha", {})})})
    assert caught.value.setting == setting


# -- whom to ask, and when


def offer(name: str, backups: int, max_backups: int = 1, mine: str = "") -> HostOffer:
    return HostOffer(node_id=IDS[name], backups=backups, max_backups=max_backups, mine=mine)


def chosen(own: str, *offers: HostOffer) -> str:
    found = best_host(IDS[own], offers)
    return found.node_id[0] if found is not None else ""


def test_the_node_with_the_fewest_backups_is_asked_that_has_room() -> None:
    assert chosen("a", offer("b", 2, 3), offer("c", 1, 3), offer("d", 1, 1), offer("e", 2, 9)) == "c"
    assert chosen("a", offer("b", 1), offer("c", 0, 0)) == ""
    assert chosen("a") == chosen("a", offer("a", 0)) == ""


def test_a_node_that_has_refused_is_asked_after_the_others() -> None:
    offers = [offer("b", 0), offer("c", 1, 3), offer("d", 1, 1)]
    assert best_host(IDS["a"], offers) == offers[0]
    assert best_host(IDS["a"], offers, {IDS["b"]}) == offers[1]
    assert best_host(IDS["a"], offers, {IDS["b"], IDS["c"]}) is None
    assert host_to_clear(IDS["a"], True, offers, {IDS["b"], IDS["c"]}) == offers[2]
    assert host_to_clear(IDS["a"], True, offers, {IDS[name] for name in "bcd"}) is None


def test_nodes_that_ask_together_ask_different_ones_in_a_circle() -> None:
    for own, following in zip("abcd", "bcda", strict=True):
        others = [offer(name, 0) for name in "dbca" if name != own]
        assert chosen(own, *others) == following


@pytest.mark.parametrize("most", [1, 2])
def test_whatever_the_order_in_which_nodes_come_and_look_each_gets_a_backup_and_none_runs_more_than_it_may(
    most: int,
) -> None:
    for seed in range(300):
        rng = random.Random(seed)
        names = [IDS[name] for name in rng.sample("abcdef", 4)]
        runs: dict[str, list[str]] = {}
        for number in range(12):
            # The first ones meet before the last one comes.
            there = names[: max(2, min(4, number - 2))]
            for name in there:
                runs.setdefault(name, [])
            for own in rng.sample(there, len(there)):
                if any(own in one for one in runs.values()):
                    continue
                offers = [
                    HostOffer(node_id=one, backups=len(runs[one]), max_backups=most) for one in there if one != own
                ]
                found = best_host(own, offers)
                if found is None:
                    found = host_to_clear(own, len(runs[own]) < most, offers)
                    if found is None:
                        continue
                    del runs[found.node_id][0]
                runs[found.node_id].append(own)
        assert sorted(one for several in runs.values() for one in several) == sorted(names), seed
        assert all(len(one) <= most for one in runs.values())


def test_no_place_is_asked_for_by_a_node_that_has_none_to_give() -> None:
    full = [offer("b", 1), offer("c", 0, 0), offer("d", 1, mine="colocated_backup_1")]
    assert host_to_clear(IDS["a"], False, full) is None
    found = host_to_clear(IDS["a"], True, full)
    assert found is not None and found.node_id == IDS["b"]
    plan = HostingPlan(rules(max_backups=1))
    assert plan.place_of([IDS["c"]]) == ""
    accepted(plan, request("a"))
    assert (plan.place_of([]), plan.place_of([IDS["a"]])) == ("", IDS["a"])


def test_requests_are_made_at_0_5_and_10_seconds_and_once_more_for_each_retry() -> None:
    tries, now, at = RequestTries(math.inf, 5.0), 100.0, []
    for _ in range(3):
        assert not tries.over
        at.append(now - 100)
        now = tries.tried(now + 0.25) - 0.25
    assert at == [0, 5, 10]
    for retries in (0, 3):
        tries, count = RequestTries(retries, 5.0), 0
        while not tries.over:
            tries.tried(count * 5.0)
            count += 1
        assert count == retries + 1
    tries.backed()
    assert not tries.over and tries.tried(1_000.0) == 1_005.0
    # An answer that took longer than the interval is not made up for.
    assert tries.tried(1_020.0) == 1_020.0


def test_a_look_without_a_request_moves_the_next_one() -> None:
    tries = RequestTries(1, 5.0)
    assert tries.looked(90.0) == 95.0
    assert tries.tried(100.0) == 105.0
    # A backup begins, and ends again before it was ready: the request counts.
    assert tries.looked(105.0) == 110.0
    assert not tries.over and tries.tried(110.0) == 115.0
    assert tries.over


def test_the_backup_that_is_kept_is_ready_and_has_the_settings_of_the_node() -> None:
    def told(name: str, ready: bool, digest: str = "d") -> HostOffer:
        return HostOffer(node_id=IDS[name], backups=1, max_backups=1, mine="x", ready=ready, request=digest)

    none = offer("f", 0)
    a, b, c, old = told("a", False), told("b", True), told("c", True), told("d", True, "old")
    found = own_backups([none, old, c, a, b], "d")
    assert (found.kept, set(found.surplus)) == (b, {a, c, old})
    assert own_backups([none, old], "d").kept is None and own_backups([old], "d").surplus == (old,)
    assert own_backups([none], "d") == own_backups([], "d")


@pytest.mark.parametrize(
    "wrong",
    [
        {"backups": "1"},
        {"backups": True},
        {"backups": -1},
        {"max_backups": None},
        {"max_backups": 1.5},
        {"mine": 7},
        {"mine": "a\nanother line"},
        {"mine_ready": 1},
        {"mine_request": b"x"},
        {"mine_life": 1},
    ],
)
def test_an_answer_of_another_node_that_is_none_is_left_out(wrong: dict[str, Any]) -> None:
    told = {"backups": 1, "max_backups": 2, "mine": "x", "mine_ready": True, "mine_request": "d", "more": 1}
    expected = HostOffer(node_id=IDS["a"], backups=1, max_backups=2, mine="x", ready=True, request="d")
    assert HostOffer.of(IDS["a"], told) == expected
    assert HostOffer.of(IDS["a"], {**told, **wrong}) is None
    assert HostOffer.of(IDS["a"], {"why": "it is gone"}) is None
    # A node of an older version tells no life.
    found = HostOffer.of(IDS["a"], {**told, "mine_life": "1f"})
    assert found is not None and (found.life, expected.life) == ("1f", "")


# -- what a backup is


def test_a_host_counts_its_backups_from_one_for_its_life_and_moves_their_ports() -> None:
    plan = HostingPlan(rules())
    first, second = accepted(plan, request("a")), accepted(plan, request("c"))
    assert (first.name, second.name, plan.backups) == ("colocated_backup_1", "colocated_backup_2", 2)
    assert first.acceptors == ("tcp://127.0.0.1:61716", "tls://127.0.0.1:0")
    assert second.acceptors == ("tcp://127.0.0.1:61816", "tls://127.0.0.1:0")
    assert first.connectors == {
        "colocated_host": "inproc://b",
        "own": "tcp://h:61716?a=b",
        "inside": "inproc://b.colocated_backup_1",
        "voter": "tcp://v:61616",
    }
    assert second.connectors["inside"] == "inproc://b.colocated_backup_2"
    assert (first.data_dir, second.data_dir) == ("/a", "/c")
    assert (plan.name_for(IDS["a"]), plan.name_for(IDS["d"])) == ("colocated_backup_1", "")
    plan.ended(IDS["a"])
    plan.ended(IDS["a"])
    third = accepted(plan, request("a"))
    assert (third.name, third.acceptors[0]) == ("colocated_backup_3", "tcp://127.0.0.1:61716")


def test_a_backup_that_is_held_keeps_its_number_and_its_ports_and_counts() -> None:
    plan = HostingPlan(rules(max_backups=2))
    plan.hold(4, 1)
    assert (plan.backups, plan.name_for(IDS["a"]), plan.place_of([IDS["c"]])) == (1, "", "")
    places = accepted(plan, request("a"))
    assert (places.name, places.place) == ("colocated_backup_5", 2)
    with pytest.raises(RefusedError, match="runs 2 backups"):
        plan.places_for(request("c"))
    assert plan.place_of([IDS["a"]]) == IDS["a"]
    plan.release(4)
    plan.release(4)
    places = accepted(plan, request("c"))
    assert (places.name, places.place, plan.backups) == ("colocated_backup_6", 1, 2)


def test_ports_do_not_wander_however_many_backups_end() -> None:
    plan, ports = HostingPlan(rules(acceptors=("tcp://127.0.0.1:65000",), max_backups=1)), []
    for begun in [True] * 700 + [False] * 10:
        ports.append(accepted(plan, request("a")).acceptors[0][-5:])
        if begun:
            plan.began(IDS["a"])
        plan.ended(IDS["a"], begun=begun)
    assert set(ports[:700]) == {"65100"}
    # Where one could not begin, another place is tried, of a few.
    assert ports[700:709] == ["65100", "65200", "65300", "65400"] * 2 + ["65100"]
    # And none whose port would be too high.
    plan = HostingPlan(rules(acceptors=("tcp://127.0.0.1:65350",), max_backups=1))
    for _ in range(3):
        assert accepted(plan, request("a")).place == 1
        plan.ended(IDS["a"], begun=False)


def test_the_place_of_one_that_is_about_to_end_is_free_for_another_one() -> None:
    plan = HostingPlan(rules(max_backups=1))
    accepted(plan, request("a"))
    with pytest.raises(RefusedError, match="max_backups"):
        plan.places_for(request("c"))
    places = plan.places_for(request("c", data_dir="/a"), without=IDS["a"])
    assert (places.name, places.place, plan.backups) == ("colocated_backup_2", 1, 1)
    with pytest.raises(RefusedError, match="max_backups"):
        plan.accept(request("c"), places)
    plan.ended(IDS["a"])
    plan.accept(request("c"), places)
    assert (plan.name_for(IDS["c"]), plan.request_of(IDS["c"])) == ("colocated_backup_2", request("c").digest)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_it_runs_no_more_than_so_many(most: int) -> None:
    plan = HostingPlan(rules(max_backups=most))
    for name in "acd"[:most]:
        accepted(plan, request(name))
    with pytest.raises(RefusedError, match=f"runs {most} backups, which is its max_backups"):
        accepted(plan, request("e"))
    assert plan.backups == most


@pytest.mark.parametrize(
    ("asked", "host", "said"),
    [
        ({"node_id": "x" * 32}, {}, "the id of a node"),
        ({"kind": "replication_backup"}, {}, "'replication_backup'"),
        ({"group_name": "purple"}, {"group_name": "tiddles"}, "'purple', and backups here in 'tiddles'"),
        ({"users": "f" * 64}, {}, "security="),
        ({"encrypted": True}, {}, "encrypted"),
        ({"data_dir": ""}, {}, "an absolute path"),
        ({"data_dir": "relative"}, {}, "an absolute path"),
        ({"data_dir": "/x/../y"}, {}, "without '..' and '~'"),
        ({"data_dir": "~/x"}, {}, "without '..' and '~'"),
        ({"data_dir": "/~root/x"}, {}, "without '..' and '~'"),
        ({}, {"shared_root": "/san"}, "beneath /san, the shared_root of the host"),
        ({"data_dir": "/san"}, {"shared_root": "/san"}, "beneath /san, the shared_root of the host"),
        ({"data_dir": "/sandy/a"}, {"shared_root": "/san/"}, "the shared_root of the host"),
        ({"data_dir": "/b"}, {}, "apart from those in use here"),
        ({"data_dir": "//b/./inside"}, {}, "apart from those in use here"),
        ({"data_dir": "/"}, {}, "apart from those in use here"),
        ({}, {"acceptors": ("tcp://127.0.0.1:65500",)}, r"65500 \+ 100 is a port"),
    ],
)
def test_a_request_that_does_not_fit_changes_nothing(asked: dict[str, Any], host: dict[str, Any], said: str) -> None:
    plan = HostingPlan(rules(**host))
    with pytest.raises((RefusedError, SettingsError), match=said):
        accepted(plan, request("a", **asked))
    assert plan.backups == 0
    if not host:
        assert accepted(plan, request("a")).name == "colocated_backup_1"
        with pytest.raises(RefusedError, match="already"):
            accepted(plan, request("a"))


def test_groups_that_are_equal_or_left_open_fit() -> None:
    for own, theirs in (("x", "x"), (None, "x"), ("x", None)):
        found = accepted(HostingPlan(rules(group_name=own)), request("a", group_name=theirs))
        assert found.name == "colocated_backup_1"


# -- the request on its way


def test_a_request_is_read_as_it_was_made() -> None:
    one = request(settings={"memory_limit": None, "max_session_ttl": math.inf}, address_settings={"q": {"full": 1}})
    assert BackupRequest.decode(one.encode()) == one
    assert len(one.encode()) < 300


def test_each_part_of_a_request_is_in_its_digest() -> None:
    one = request()
    assert BackupRequest.decode(one.encode()).digest == one.digest
    others = [
        request("c"),
        request(url="tcp://x:2"),
        request(settings={"stop_timeout": 3}),
        request(address_settings={"q": {"full_policy": "drop"}}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5


def packed(**changed: Any) -> bytes:
    return zlib.compress(json.dumps({**attrs.asdict(request()), **changed}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        request().encode()[:-1],
        request().encode() + b"x",
        bytes(REQUEST_BYTES_MAX + 1),
        zlib.compress(b" " * (TEXT_BYTES_MAX + 1)),
        zlib.compress(b"[" * 60_000),
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        packed(name=7),
        packed(name="a\nanother line"),
        packed(group_name="a\nanother line"),
        packed(url="x" * 5_000),
        packed(data_dir="a\0b"),
        packed(encrypted="yes"),
        packed(settings=[]),
        packed(group_name=1),
    ],
)
def test_bytes_that_are_no_request_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(SettingsError):
        BackupRequest.decode(data)


def test_a_request_of_a_newer_version_is_refused() -> None:
    with pytest.raises(RefusedError, match="newer version: 'wish' is not known"):
        BackupRequest.decode(packed(wish=1))


def test_settings_that_fit_in_no_request_are_found_out_by_the_one_that_asks() -> None:
    many = {f"{number:x}{hash((number, 'x')):x}": {"max_size_bytes": number} for number in range(1_500)}
    with pytest.raises(SettingsError, match="once compressed"):
        request(address_settings=many).encode()
