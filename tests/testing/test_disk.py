"""The simulated disk: what it promises to those who sync, and how it betrays those who don't."""

from __future__ import annotations

import errno
import random

import pytest

from meshq.testing import SimDisk, SimulatedCrash


def durable_file(disk: SimDisk, path: str = "/a", content: bytes = b"") -> None:
    file = disk.open(path, create=True)
    file.write_at(0, [content])
    file.sync()
    disk.sync_directory(path.rpartition("/")[0] or "/")
    file.close()


def test_what_was_synced_in_a_synced_directory_survives_every_power_loss() -> None:
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        disk.make_directory("/data/x")
        disk.sync_directory("/")
        disk.sync_directory("/data")
        durable_file(disk, "/data/x/f", b"kept" * 1000)
        disk.open("/data/x/f").write_at(8192, [b"not synced"])
        disk.power_loss()
        assert disk.content("/data/x/f")[:4000] == b"kept" * 1000


def test_a_write_that_was_not_synced_may_go_in_sectors() -> None:
    seen = set()
    for seed in range(200):
        disk = SimDisk(random.Random(seed))
        durable_file(disk, content=bytes(1024))
        disk.open("/a").write_at(0, [b"x" * 512, b"y" * 512])
        disk.power_loss()
        content = disk.content("/a")
        seen.add((content[:512] == b"x" * 512, content[512:] == b"y" * 512))
        assert content[:512] in (bytes(512), b"x" * 512)
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


def test_a_killed_process_leaves_all_that_it_wrote() -> None:
    disk = SimDisk()
    file = disk.open("/a", create=True)
    file.write_at(0, [b"written"])
    assert file.lock()
    disk.kill()
    assert disk.content("/a") == b"written"
    assert disk.open("/a").lock()


def test_a_dead_handle_does_nothing_and_closes_in_silence() -> None:
    disk = SimDisk()
    mount = disk.mount()
    file = mount.open("/a", create=True)
    mount.kill()
    for call in (lambda: file.write_at(0, [b"x"]), file.sync, lambda: mount.open("/a"), lambda: mount.remove("/a")):
        with pytest.raises(OSError, match="dead") as caught:
            call()
        assert caught.value.errno == errno.EIO
    file.close()
    assert disk.content("/a") == b""


def test_a_lock_belongs_to_one_open_file_until_it_is_closed() -> None:
    disk = SimDisk()
    first = disk.open("/a", create=True)
    second = disk.open("/a")
    assert first.lock()
    assert first.lock()
    assert not second.lock()
    second.close()
    third = disk.open("/a")
    assert not third.lock()
    first.close()
    assert third.lock()


def test_a_name_is_durable_only_after_its_directory_was_synced() -> None:
    outcomes = set()
    for seed in range(100):
        disk = SimDisk(random.Random(seed))
        durable_file(disk, "/old", b"old")
        durable_file(disk, "/new", b"new")
        disk.replace("/new", "/old")
        disk.power_loss()
        outcomes.add((tuple(disk.files()), disk.content("/old")))
    assert outcomes == {(("/new", "/old"), b"old"), (("/old",), b"new")}


def test_a_directory_that_was_not_synced_into_its_parent_goes_with_all_it_holds() -> None:
    lost = 0
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        disk.make_directory("/d")
        durable_file(disk, "/d/f", b"x")
        disk.power_loss()
        lost += disk.names("/") == []
        assert disk.files() in ([], ["/d/f"])
    assert 0 < lost < 50


def test_a_moved_directory_is_at_one_of_its_paths_with_all_that_was_durable_in_it() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimDisk(random.Random(seed))
        disk.make_directory("/old/inner")
        for path in ("/", "/old"):
            disk.sync_directory(path)
        durable_file(disk, "/old/inner/kept", b"k")
        disk.open("/old/inner/before", create=True).close()
        disk.move_directory("/old", "/new")
        disk.open("/new/inner/after", create=True).close()
        assert disk.files() == ["/new/inner/after", "/new/inner/before", "/new/inner/kept"]
        disk.power_loss()
        (name,) = disk.names("/")
        outcomes.add((name, *disk.names(f"/{name}/inner")))
    inner = [("kept",), ("before", "kept"), ("after", "kept"), ("after", "before", "kept")]
    assert outcomes == {(name, *names) for name in ("old", "new") for names in inner}


def test_a_sync_of_what_is_in_a_moved_directory_and_one_of_its_parent_make_durable_what_they_say() -> None:
    for images_of in ("inner", "parent", "both"):
        disk = SimDisk()
        disk.make_directory("/old")
        disk.sync_directory("/")
        disk.open("/old/before", create=True).close()
        disk.move_directory("/old", "/new")
        disk.open("/new/after", create=True).close()
        if images_of != "parent":
            disk.sync_directory("/new")
        if images_of != "inner":
            disk.sync_directory("/")
        found = {tuple(image.files()) for image in disk.crash_images()}
        if images_of == "both":
            assert found == {("/new/after", "/new/before")}
        elif images_of == "inner":
            assert found == {("/new/after", "/new/before"), ("/old/after", "/old/before")}
        else:
            assert found == {(), ("/new/after",), ("/new/before",), ("/new/after", "/new/before")}


def test_a_length_can_be_durable_without_its_bytes() -> None:
    disk = SimDisk()
    durable_file(disk, content=b"head")
    disk.open("/a").write_at(512, [b"tail"])
    contents = {image.content("/a") for image in disk.crash_images()}
    assert contents == {b"head", b"head" + bytes(512), b"head" + bytes(508) + b"tail"}


def test_a_removed_file_shows_through_where_a_new_one_lost_its_sectors() -> None:
    disk = SimDisk()
    durable_file(disk, "/gone", b"s" * 1024)
    disk.remove("/gone")
    disk.sync_directory("/")
    durable_file(disk, "/a")
    disk.open("/a").write_at(0, [b"n" * 1024])
    contents = {image.content("/a") for image in disk.crash_images()}
    assert contents >= {bytes(1024), b"s" * 1024, b"s" * 512 + b"n" * 512, bytes(512) + b"n" * 512, b"n" * 1024}


def test_crash_images_are_all_subsets_and_each_once() -> None:
    disk = SimDisk()
    durable_file(disk, content=bytes(4 * 512))
    file = disk.open("/a")
    file.write_at(0, [b"1" * 1024])
    file.write_at(512, [b"2" * 1024])
    images = [image.content("/a") for image in disk.crash_images()]
    # Sector 0: old or 1; sector 1: old, 1 or 2; sector 2: old or 2.
    assert len(images) == len(set(images)) == 2 * 3 * 2


def test_beyond_the_limit_crash_images_are_all_prefixes() -> None:
    disk = SimDisk()
    durable_file(disk, content=bytes(20 * 512))
    disk.open("/a").write_at(0, [b"x" * (20 * 512)])
    images = [image.content("/a") for image in disk.crash_images(limit_subset=12)]
    assert images == [b"x" * (512 * k) + bytes(512 * (20 - k)) for k in range(21)]


def test_an_image_is_a_disk_of_its_own() -> None:
    disk = SimDisk()
    durable_file(disk, content=bytes(512))
    disk.open("/a").write_at(0, [b"x"])
    first, second = disk.crash_images()
    file = second.open("/a")
    file.write_at(0, [b"image"])
    file.sync()
    disk.open("/a").write_at(100, [b"original"])
    assert first.content("/a") == bytes(512)
    assert second.content("/a").startswith(b"image\0")
    assert disk.content("/a").startswith(b"x\0")
    untouched = first.open("/a")
    untouched.write_at(0, [b"only in its cache"])
    assert next(iter(disk.crash_images())).content("/a") == bytes(512)
    assert disk.copy().content("/a").startswith(b"x\0")
    first.power_loss(random.Random(1))
    disk.open("/a").sync()
    assert [image.content("/a")[:1] for image in disk.crash_images()] == [b"x"]
    assert first.content("/a")[:1] in (b"\0", b"o")
    disk.open("/a").write_at(100, [b"again"])
    twin = disk.copy()
    twin.open("/a").write_at(0, [b"twin"])
    assert disk.content("/a").startswith(b"x\0")
    assert len(list(twin.crash_images())) == 3


def test_a_sync_of_the_original_does_not_reach_images_taken_before() -> None:
    disk = SimDisk()
    durable_file(disk, content=bytes(512))
    file = disk.open("/a")
    lost = next(iter(disk.crash_images()))
    file.write_at(0, [b"later"])
    file.sync()
    assert lost.content("/a") == bytes(512)
    lost.open("/a").write_at(0, [b"there"])
    disk.power_loss()
    assert disk.content("/a").startswith(b"later")


def test_an_unsynced_part_of_a_sector_carries_its_neighbours_along() -> None:
    disk = SimDisk()
    durable_file(disk, content=bytes(512))
    file = disk.open("/a")
    file.write_at(0, [b"1"])
    file.write_at(1, [b"2"])
    file.write_at(0, [b"3"])
    assert {image.content("/a")[:2] for image in disk.crash_images()} == {b"\0\0", b"1\0", b"12", b"32"}


def test_after_a_failed_sync_a_second_one_does_not_save_the_bytes() -> None:
    lost = False
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        durable_file(disk, content=b"old")
        file = disk.open("/a")
        file.write_at(0, [b"new"])
        disk.faults.inject("sync")
        with pytest.raises(OSError) as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        file.sync()
        assert disk.unsynced() == 0
        disk.power_loss()
        lost = lost or disk.content("/a") == b"old"
    assert lost


def test_an_injected_error_strikes_where_and_as_often_as_it_was_told_to() -> None:
    disk = SimDisk()
    one, two = disk.open("/one", create=True), disk.open("/two", create=True)
    disk.faults.inject("write", errno.ENOSPC, path="two", skip=1, times=2)
    one.write_at(0, [b"x"])
    two.write_at(0, [b"x"])
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            two.write_at(1, [b"y"])
        assert caught.value.errno == errno.ENOSPC
    two.write_at(1, [b"z"])
    assert disk.content("/two") == b"xz"
    assert {kind: n for kind, n in disk.faults.counts.items() if n} == {"disk.write.ENOSPC": 2}


def test_random_errors_come_at_their_rate_and_end_when_cleared() -> None:
    disk = SimDisk(random.Random(2))
    file = disk.open("/a", create=True)

    def failures() -> int:
        failed = 0
        for _ in range(1000):
            try:
                file.sync()
            except OSError:
                failed += 1
        return failed

    disk.faults.rate("sync", errno.EIO, 0.1)
    assert 60 < failures() < 140
    disk.faults.rate("sync", errno.EIO, 0)
    assert failures() == 0
    disk.faults.rate("sync", errno.EIO, 1)
    disk.faults.clear()
    assert failures() == 0
    assert 60 < disk.faults.counts["disk.sync.EIO"] < 140


def test_errors_have_the_class_of_their_number() -> None:
    disk = SimDisk()
    durable_file(disk)
    disk.make_directory("/d")
    with pytest.raises(FileNotFoundError):
        disk.open("/nothing")
    with pytest.raises(FileNotFoundError):
        disk.names("/nothing")
    with pytest.raises(FileExistsError):
        disk.open("/a", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open("/no/where", create=True)
    with pytest.raises(IsADirectoryError):
        disk.open("/d")
    with pytest.raises(NotADirectoryError):
        disk.names("/a")
    with pytest.raises(FileNotFoundError):
        disk.remove("/nothing")
    with pytest.raises(FileNotFoundError):
        disk.replace("/nothing", "/b")
    file = disk.open("/a")
    file.close()
    file.close()
    with pytest.raises(OSError) as caught:
        file.write_at(0, [b""])
    assert caught.value.errno == errno.EBADF


def test_a_full_disk_takes_what_fits_and_has_room_again_after_a_removal() -> None:
    disk = SimDisk(capacity_bytes=1000)
    durable_file(disk, "/a", bytes(600))
    file = disk.open("/b", create=True)
    with pytest.raises(OSError) as caught:
        file.write_at(0, [bytes(500)])
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 400
    disk.remove("/a")
    file.write_at(0, [bytes(1000)])
    file.write_at(0, [b"over what is there"])


def test_a_removed_file_stays_readable_by_those_who_have_it_open() -> None:
    disk = SimDisk(capacity_bytes=100)
    durable_file(disk, "/a", b"x" * 100)
    file = disk.open("/a")
    disk.remove("/a")
    assert file.read_at(0, 100) == b"x" * 100
    assert disk.free_bytes() == 0
    file.close()
    assert disk.free_bytes() == 100


def test_the_fuse_cuts_the_power_right_after_the_call_it_was_set_to() -> None:
    for calls in range(1, 5):
        disk = SimDisk(random.Random(1))
        done = 0
        disk.fuse(calls)
        with pytest.raises(SimulatedCrash):
            file = disk.open("/a", create=True)
            done = 1
            file.write_at(0, [b"x"])
            done = 2
            file.sync()
            done = 3
            disk.sync_directory("/")
        assert done == calls - 1
        assert disk.faults.counts["disk.power_loss"] == disk.faults.counts["disk.fuse"] == 1
        assert disk.files() == ["/a"] if calls == 4 else True


def test_a_fuse_can_report_an_error_for_a_call_that_was_carried_out() -> None:
    disk = SimDisk()
    file = disk.open("/a", create=True)
    disk.fuse(2, errno.EIO, only=["write"])
    file.write_at(0, [b"1"])
    with pytest.raises(OSError):
        file.write_at(1, [b"2"])
    file.write_at(2, [b"3"])
    assert disk.content("/a") == b"123"


def test_short_writes_are_continued_and_a_fuse_can_fall_between_their_parts() -> None:
    disk = SimDisk(random.Random(3))
    file = disk.open("/a", create=True)
    disk.faults.short_write_rate = 0.7
    file.write_at(0, [b"a" * 600, b"b" * 600])
    assert disk.content("/a") == b"a" * 600 + b"b" * 600
    assert disk.faults.counts["disk.short_write"] > 0
    lengths = set()
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        file = disk.open("/a", create=True)
        disk.faults.short_write_rate = 0.7
        disk.fuse(1, disk.kill, only=["write"])
        try:
            file.write_at(0, [b"a" * 1200])
        except SimulatedCrash:
            lengths.add(len(disk.content("/a")))
    assert len(lengths) > 3


def test_a_flipped_bit_is_one_bit_in_cache_and_medium() -> None:
    disk = SimDisk()
    durable_file(disk, content=bytes(10))
    image = disk.copy()
    assert image.flip_random_bit(random.Random(4)) is not None
    assert sum(byte.bit_count() for byte in image.content("/a")) == 1
    assert disk.content("/a") == bytes(10)
    image.power_loss()
    assert sum(byte.bit_count() for byte in image.content("/a")) == 1
    assert SimDisk().flip_random_bit() is None


def test_every_call_takes_the_time_that_the_latency_model_says() -> None:
    disk = SimDisk()
    spent: list[float] = []
    disk.latency = lambda call, size: {"sync": 0.25, "write": size / 1000}.get(call, 0.0)
    disk.spend = spent.append
    file = disk.open("/a", create=True)
    file.write_at(0, [bytes(500)])
    assert file.sync() == 0.25
    assert spent == [0.0, 0.5, 0.25]


def test_a_watcher_sees_every_call_and_can_take_images_there() -> None:
    disk = SimDisk()
    images: list[int] = []
    calls: list[str] = []

    def watch(operation: object) -> None:
        calls.append(operation.call)  # type: ignore[attr-defined]
        images.append(sum(1 for _ in disk.crash_images()))

    disk.watch = watch
    durable_file(disk, content=b"x")
    assert calls == ["create", "write", "sync", "sync_directory"]
    # No name, or the name with nothing, the length alone, or all of it.
    assert images == [2, 4, 2, 1]


def test_the_same_seed_loses_the_same_sectors() -> None:
    def run(seed: int) -> bytes:
        disk = SimDisk(random.Random(seed))
        durable_file(disk, content=bytes(50 * 512))
        disk.open("/a").write_at(0, [random.Random(seed).randbytes(50 * 512)])
        disk.power_loss()
        return disk.content("/a")

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]


def test_ten_files_used_for_long_leave_nothing_behind() -> None:
    disk = SimDisk()
    for round_ in range(100):
        durable_file(disk, f"/f{round_ % 10}", b"x" * 5000)
        disk.remove(f"/f{round_ % 10}")
    disk.sync_directory("/")
    assert disk.files() == []
    assert disk.tree.inodes == {}


def test_a_node_that_loses_its_power_beside_a_disk_that_does_not_loses_what_it_has_not_synced() -> None:
    kept = set()
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        one, other = disk.mount(), disk.mount()
        files = [mount.open(path, create=True) for mount, path in ((one, "/a"), (one, "/b"), (other, "/c"))]
        files[0].write_at(0, [b"synced"])
        files[0].sync()
        files[0].write_at(6, [b"not"])
        files[2].write_at(0, [b"of another node"])
        assert files[1].lock()
        one.power_loss()
        kept.add(disk.content("/a"))
        # The other node goes on, with what it has written, and gets the lock of the dead one.
        assert disk.content("/c") == b"of another node"
        assert other.open("/b").lock()
        with pytest.raises(OSError, match="dead"):
            files[0].sync()
    assert kept == {b"synced", b"syncednot"}


def test_a_fuse_of_one_process_is_not_burnt_by_the_calls_of_another() -> None:
    disk = SimDisk()
    one, other = disk.mount(), disk.mount()
    disk.fuse(2, one.kill, of=one)
    for _ in range(3):
        other.names("/")
    one.names("/")
    with pytest.raises(SimulatedCrash):
        one.names("/")
    assert other.alive


def test_a_directory_is_removed_when_nothing_is_left_in_it() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_directory("/d/x")
    durable_file(disk, "/d/x/f", b"1")
    with pytest.raises(OSError, match="not empty"):
        disk.remove("/d/x")
    disk.remove("/d/x/f")
    disk.sync_directory("/d/x")
    disk.remove("/d/x")
    assert disk.names("/d") == []
    with pytest.raises(FileNotFoundError):
        disk.names("/d/x")
    disk.sync_directory("/d")
    disk.make_directory("/d/x")
    assert disk.names("/d/x") == []
