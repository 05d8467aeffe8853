"""The policies of a shared store keep the contract of policies, over a disk that several nodes have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs
import pytest
import trio
import trio.testing

from meshq import SettingsError
from meshq.abc import Activation, HAPolicy, NodeControl, Programs, StepBack
from meshq.env import real_env
from meshq.errors import NotActiveError, RefusedError
from meshq.ha import SharedDirectory, SharedStoreBackup, SharedStorePrimary
from meshq.ha._store_term import StoreTerm
from meshq.store.directory._identity import load_identity
from meshq.store.formats._layout_format import Layout
from meshq.testing import HA_POLICY_CHECKS, MakePolicies, SimDisk
from tests.ha.stores import Store


class Killing(Programs):
    """A fence command that kills the node that hangs."""

    def __init__(self, kill: Callable[[], None], status: int = 0) -> None:
        self.commands: list[tuple[str, ...]] = []
        self._kill = kill
        self._status = status

    async def run(self, command: Sequence[str]) -> int:
        await trio.lowlevel.checkpoint()
        self.commands.append(tuple(command))
        self._kill()
        return self._status


def competitors(policy: HAPolicy) -> MakePolicies:
    def make(number: int) -> list[tuple[HAPolicy, NodeControl]]:
        store = Store()
        return [(policy, store.control(f"n{index}")) for index in range(number)]

    return make


@pytest.mark.parametrize(
    "policy",
    [SharedStorePrimary(lock_check_period=0.5), SharedStoreBackup(failover_on_shutdown=True, lock_check_period=0.5)],
    ids=["primary", "backup"],
)
@pytest.mark.parametrize("check", HA_POLICY_CHECKS)
async def test_the_policies_conform(check: Callable[[MakePolicies], Awaitable[None]], policy: HAPolicy) -> None:
    await check(competitors(policy))


async def active(activation: Activation, seconds: float = 15.0) -> bool:
    with trio.move_on_after(seconds) as scope:
        await activation.wait()
    return not scope.cancelled_caught


async def test_each_activation_begins_the_next_epoch_and_a_plain_store_becomes_the_first() -> None:
    store = Store()
    store.disk.make_directory("/data/journal")
    store.disk.open("/data/journal/x.seg", create=True).close()
    async with SharedStorePrimary().activation(store.control("a")) as activation:
        for epoch in (1, 2, 3):
            term = await activation.wait()
            assert term.data_dir == f"/data/epoch-{epoch}"
            assert store.disk.is_file(f"/data/epoch-{epoch}/journal/x.seg")
            await activation.release(failover=False)
    assert [name for name in store.disk.names("/data") if name.startswith("epoch")] == ["epoch-3"]


async def test_a_primary_that_waits_comes_before_a_backup_that_waits_longer() -> None:
    store = Store()
    held = SharedStoreBackup(failover_on_shutdown=True)
    async with (
        held.activation(store.control("b1")) as first,
        SharedStoreBackup().activation(store.control("b2")) as second,
        SharedStorePrimary().activation(store.control("a")) as primary,
        trio.open_nursery() as nursery,
    ):
        await first.wait()
        got: list[str] = []

        async def wait(name: str, one: Activation) -> None:
            await one.wait()
            got.append(name)

        nursery.start_soon(wait, "b2", second)
        await trio.sleep(2)
        nursery.start_soon(wait, "a", primary)
        await trio.sleep(2)
        assert not got
        await first.release(failover=False)
        await trio.sleep(2)
        assert got == ["a"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("failover", [False, True])
@pytest.mark.parametrize("on_shutdown", [False, True])
@pytest.mark.parametrize("crash", [False, True])
async def test_backups_take_over_after_a_crash_and_after_a_stop_that_says_so(
    crash: bool, on_shutdown: bool, failover: bool
) -> None:
    store = Store()
    control = store.control("a")
    async with SharedStoreBackup().activation(store.control("b")) as backup:
        async with SharedStorePrimary(failover_on_shutdown=on_shutdown).activation(control) as primary:
            await primary.wait()
            if crash:
                control.env.disk.kill()  # type: ignore[attr-defined]
            else:
                await primary.release(failover=failover)
        takes_over = crash or on_shutdown or failover
        assert await active(backup) == takes_over
        if takes_over:
            await backup.release(failover=False)
        # A primary that starts ends the wait in any case.
        async with SharedStorePrimary().activation(store.control("a")) as again:
            assert await active(again)


@pytest.mark.parametrize("on_shutdown", [False, True])
async def test_a_backup_that_is_active_has_a_flag_of_its_own_for_the_next_one(on_shutdown: bool) -> None:
    store = Store()
    policy = SharedStoreBackup(failover_on_shutdown=on_shutdown)
    async with SharedStoreBackup().activation(store.control("c")) as following:
        async with policy.activation(store.control("b")) as backup:
            await backup.wait()
            await backup.release(failover=False)
        assert await active(following) == on_shutdown


async def test_a_backup_of_a_primary_that_was_stopped_takes_over_when_an_operator_says_so() -> None:
    store = Store()
    async with SharedStoreBackup().activation(store.control("b")) as backup, trio.open_nursery() as nursery:
        async with SharedStorePrimary().activation(store.control("a")) as primary:
            await primary.wait()
            nursery.start_soon(backup.wait)
            await trio.sleep(1)
            with pytest.raises(NotActiveError, match="'a' at tcp://a:1 has the store"):
                await backup.hand_over(back=False, force=False)
            await primary.release(failover=False)
        await trio.sleep(10)
        with trio.fail_after(1):
            async with trio.open_nursery() as ordering:
                ordering.start_soon(lambda: backup.hand_over(back=False, force=False))
                await trio.sleep(0.5)
                backup.served()


async def test_the_acting_node_hands_over_on_demand_only_if_somebody_waits() -> None:
    store = Store()
    async with (
        SharedStorePrimary().activation(store.control("a")) as primary,
        SharedStoreBackup().activation(store.control("b")) as backup,
        trio.open_nursery() as nursery,
    ):
        await primary.wait()
        primary.served()
        with pytest.raises(RefusedError, match="no other node waits"):
            await primary.hand_over(back=False, force=False)
        with pytest.raises(RefusedError, match="no primary waits"):
            await primary.hand_over(back=True, force=False)
        nursery.start_soon(backup.wait)
        await trio.sleep(1)
        nursery.start_soon(lambda: primary.hand_over(back=False, force=False))
        order = await primary.lost()
        assert order == StepBack(reason="forced")
        await primary.release(failover=False)
        await trio.sleep(1)
        backup.served()
        # The primary lets the other one go first, although a primary comes first otherwise.
        with trio.move_on_after(1) as scope:
            await primary.wait()
        assert scope.cancelled_caught


async def test_a_lease_that_is_not_renewed_in_time_ends_the_term_at_once() -> None:
    store = Store()
    async with SharedStorePrimary(lease=5.0).activation(store.control("a")) as activation:
        term = await activation.wait()
        assert term.guard is not None and term.guard.may_act()
        await trio.sleep(60)
        assert term.guard.may_act()
        # The disk does not answer any more.
        store.disk.faults.inject("open", error=5, times=float("inf"))
        begun = trio.current_time()
        assert await activation.lost() == StepBack(reason="lease_lost", at_once=True)
        assert 5.0 * 2 / 3 <= trio.current_time() - begun <= 5.0
        assert not term.guard.may_act()
        store.disk.faults.clear()


async def test_a_node_finds_out_that_another_epoch_has_begun_although_it_never_lost_its_lock() -> None:
    store = Store()
    async with SharedStorePrimary().activation(store.control("a")) as activation:
        term = await activation.wait()
        assert term.guard is not None
        disk = term.guard.disk(store.disk)
        file = disk.open("/data/epoch-1/x", create=True)
        file.sync()
        disk.sync_directory("/data/epoch-1")
        store.disk.move_directory("/data/epoch-1", "/data/epoch-2")
        file.write_at(0, [b"late"])
        for late in (
            file.sync,
            lambda: disk.open("/data/epoch-1/y", create=True),
            lambda: disk.make_directory("/data/epoch-1/z"),
            lambda: disk.sync_directory("/data/epoch-1"),
        ):
            with pytest.raises(OSError):
                late()
        assert not term.guard.may_act()
        assert term.guard.over == StepBack(reason="superseded", at_once=True)
        assert await activation.lost() == StepBack(reason="superseded", at_once=True)
        assert "epoch-1" not in store.disk.names("/data")


async def test_an_owner_that_hangs_is_fenced_and_its_lock_must_be_got_all_the_same() -> None:
    store = Store()
    a = store.control("a")
    fence = Killing(lambda: a.env.disk.kill())  # type: ignore[attr-defined]
    policy = SharedStoreBackup(fence_command=["stonith", "{name}", "{host}", "{pid}", "{epoch}"])
    async with policy.activation(store.control("b", programs=fence)) as backup:
        # The owner gets its lock, and nothing more: it is stopped.
        directory = SharedStorePrimary().activation(a)
        primary = await directory.__aenter__()
        await primary.wait()
        primary._rules = attrs.evolve(primary._rules, lock_check_period=1e6)  # type: ignore[attr-defined]
        primary._term.renewal_due = 1e9  # type: ignore[attr-defined]
        begun = trio.current_time()
        await backup.wait()
        assert fence.commands == [("stonith", "a", "h", "7", "1")]
        assert trio.current_time() - begun > 5.0
        await backup.release(failover=False)
        await directory.__aexit__(None, None, None)


async def test_a_hand_over_is_done_when_the_other_node_serves_and_not_before() -> None:
    store = Store()
    async with (
        SharedStorePrimary().activation(store.control("a")) as primary,
        SharedStoreBackup().activation(store.control("b")) as backup,
        trio.open_nursery() as nursery,
    ):
        await primary.wait()
        primary.served()
        nursery.start_soon(backup.wait)
        await trio.sleep(1)
        done = trio.Event()

        async def order() -> None:
            await primary.hand_over(back=False, force=False)
            done.set()

        nursery.start_soon(order)
        await primary.lost()
        await primary.release(failover=False)
        nursery.start_soon(primary.wait)
        await trio.sleep(3)
        assert not done.is_set()
        backup.served()
        await trio.sleep(1)
        assert done.is_set()
        nursery.cancel_scope.cancel()


async def test_a_hand_over_by_a_backup_that_does_not_restart_ends_when_it_has_stopped() -> None:
    store = Store()
    async with trio.open_nursery() as nursery, SharedStorePrimary().activation(store.control("a")) as primary:
        async with SharedStoreBackup(restart_backup=False).activation(store.control("b")) as backup:
            await backup.wait()
            backup.served()
            nursery.start_soon(primary.wait)
            await trio.sleep(1)
            nursery.start_soon(lambda: backup.hand_over(back=True, force=False))
            assert await backup.lost() == StepBack(reason="failback", final=True)
            await backup.release(failover=False)
        with trio.fail_after(1):
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("end", "reason"), [("lease", "lease_lost"), ("epoch", "superseded"), ("order", "forced"), ("stop", "stopped")]
)
async def test_the_reason_of_the_next_node_is_that_of_the_one_before(end: str, reason: str) -> None:
    store = Store()
    a, b = store.control("a"), store.control("b")
    policy = SharedStorePrimary(failover_on_shutdown=True)
    async with (
        policy.activation(a) as primary,
        policy.activation(b) as second,
        trio.open_nursery() as nursery,
    ):
        term = await primary.wait()
        primary.served()
        nursery.start_soon(second.wait)
        await trio.sleep(1)
        assert isinstance(term.guard, StoreTerm)
        if end == "lease":
            # The store fails because the lease is over, before anybody has ordered anything.
            term.guard.lease.until = trio.current_time()
        elif end == "epoch":
            store.disk.move_directory("/data/epoch-1", "/data/epoch-2")
            with pytest.raises(OSError):
                term.guard.fence.check()
        elif end == "order":
            term.guard.order = StepBack(reason="forced")
        await primary.release(failover=False)
        assert a.board.report.reason == reason
        assert not [
            name for name in store.disk.names("/data/epoch-2" if end == "epoch" else "/data/epoch-1") if "stop" in name
        ]
        await trio.sleep(0.5)
        assert b.board.report.reason == ("crash" if end == "epoch" else reason)
        nursery.cancel_scope.cancel()


async def test_a_store_that_failed_since_the_lease_was_over_is_not_marked_as_stopped() -> None:
    store = Store()
    async with SharedStoreBackup().activation(store.control("b")) as backup:
        async with SharedStorePrimary().activation(store.control("a")) as primary:
            term = await primary.wait()
            assert isinstance(term.guard, StoreTerm)
            term.guard.lease.until = trio.current_time()
            await primary.release(failover=False)
        assert await active(backup)


async def test_a_lease_that_runs_out_while_the_node_steps_back_ends_the_term_at_once() -> None:
    store = Store()
    async with (
        SharedStorePrimary(lease=5.0).activation(store.control("a")) as activation,
        SharedStoreBackup().activation(store.control("b")) as backup,
        trio.open_nursery() as nursery,
    ):
        await activation.wait()
        activation.served()
        nursery.start_soon(backup.wait)
        await trio.sleep(1)
        nursery.start_soon(lambda: activation.hand_over(back=False, force=False))
        assert await activation.lost() == StepBack(reason="forced")
        store.disk.faults.inject("open", error=5, times=float("inf"))
        with trio.fail_after(5.1):
            assert await activation.lost() == StepBack(reason="lease_lost", at_once=True)
        store.disk.faults.clear()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("known", [False, True])
async def test_the_id_of_another_node_is_refused_before_anything_is_changed(known: bool) -> None:
    store = Store()
    root = "/data/epoch-4" if known else "/data"
    load_identity_in(store.disk, root, bytes(range(16)))
    before = sorted(store.disk.names(root))
    async with SharedStorePrimary().activation(store.control("a", wanted_id=bytes(16))) as activation:
        with pytest.raises(SettingsError, match=bytes(range(16)).hex()) as caught:
            await activation.wait()
    assert caught.value.setting == "node_id"
    assert sorted(store.disk.names(root)) in (before, sorted([*before, "lock", "waiting"]))
    lock = store.disk.open("/data/lock")
    assert lock.lock()
    lock.close()
    # The right one, or none, is served, and written down for the fence_command.
    async with SharedStorePrimary().activation(store.control("a", wanted_id=bytes(range(16)))) as activation:
        await activation.wait()
        owner = SharedDirectory(store.disk, "/data").look().owner
        assert owner is not None and owner.node_id == bytes(range(16)).hex()


def load_identity_in(disk: SimDisk, root: str, node_id: bytes) -> None:
    layout = Layout(root)
    disk.make_directory(layout.bindings)
    load_identity(disk, layout, real_env().entropy, node_id, is_new=True)


async def test_a_primary_that_cannot_take_the_store_holds_up_no_backup() -> None:
    store = Store()
    a = store.control("a")
    async with (
        SharedStorePrimary().activation(a) as primary,
        SharedStoreBackup().activation(store.control("b")) as backup,
        trio.open_nursery() as nursery,
    ):
        # It can say that it waits, and can't begin an epoch.
        directory = primary._directory  # type: ignore[attr-defined]

        def broken() -> None:
            raise OSError(5, "the disk says no")

        directory.begin = broken
        nursery.start_soon(primary.wait)
        await trio.sleep(0.05)
        assert await active(backup, 10.0)
        assert "the disk says no" in a.board.report.last_error
        nursery.cancel_scope.cancel()


async def test_parts_that_lie_elsewhere_are_refused_with_the_lock_given_back() -> None:
    store = Store()
    store.disk.make_directory("/data/journal")
    store.disk.open("/data/places-0", create=True).close()
    async with SharedStorePrimary().activation(store.control("a")) as activation:
        with pytest.raises(SettingsError, match="places-0"):
            await activation.wait()
    assert store.disk.open("/data/lock").lock()
    assert "journal" in store.disk.names("/data")


# -- settings


def test_the_fields_and_defaults_are_those_of_the_contract() -> None:
    shared = {
        "failover_on_shutdown": False,
        "lease": 5.0,
        "lock_check_period": 0.1,
        "fence_command": None,
        "fence_timeout": 30.0,
        "check_hosts": (),
        "check_hosts_period": 10.0,
        "check_hosts_timeout": 1.0,
    }
    assert attrs.asdict(SharedStorePrimary()) == {**shared, "wait_for_activation": True}
    more = {"wait_for_activation": False, "allow_failback": False, "restart_backup": True, "scale_down": None}
    assert attrs.asdict(SharedStoreBackup()) == {**shared, **more}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lease", 0),
        ("lease", 3_601),
        ("lease", "5"),
        ("lock_check_period", 0),
        ("lock_check_period", 2.6),
        ("fence_command", "kill"),
        ("fence_timeout", -1),
        ("check_hosts", ["a"]),
        ("check_hosts_period", 0),
        ("check_hosts_timeout", float("inf")),
        ("failover_on_shutdown", 1),
        ("wait_for_activation", None),
    ],
)
@pytest.mark.parametrize("kind", [SharedStorePrimary, SharedStoreBackup])
def test_a_setting_that_is_not_allowed_is_named(kind: type[HAPolicy], setting: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        kind(**{setting: value})
    assert caught.value.setting == setting
