"""The kits' kill is one: after it nothing is written, nothing is said, and the next life finds what it would find."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from meshq import Broker, ConnectionBrokenError, abc, connect
from meshq.env import real_env
from meshq.testing import SimDisk
from tests.node.lives import Lives, bodies, lives, machine
from tests.process import CALL_S, Process


def disk_of(life: Lives) -> SimDisk:
    """The disk that outlives the broker."""
    disk = life.env.disk
    assert isinstance(disk, SimDisk)
    return disk


async def test_a_broker_that_is_stopped_writes_to_the_end() -> None:
    """What the next test looks at is something."""
    async with lives() as life, life.client() as client:
        await client.send_many("q", [b"1", b"2"])
        before = disk_of(life).calls
        await life.end("stopped")
        assert disk_of(life).calls > before
        await life.start()


async def test_nothing_is_written_or_synced_after_a_kill() -> None:
    async with lives() as life, life.client() as client, client.consumer("q") as consumer:
        await client.send_many("q", [b"1", b"2"])
        got = await consumer.receive_many(2, timeout=1)
        assert len(got) == 2
        # All of this is under way when the process dies.
        await consumer.ack(*got)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "q", b"3")
            await trio.sleep(CALL_S / 2)
            disk = disk_of(life)
            calls, unsynced = disk.calls, disk.unsynced()
            content = {path: disk.content(path) for path in disk.files()}
            await life.end("killed")
            await trio.sleep(1)
            assert (disk.calls, disk.unsynced()) == (calls, unsynced)
            assert {path: disk.content(path) for path in disk.files()} == content
            # Its lock is gone all the same.
            await life.start()
        assert sorted(await bodies(consumer)) == [b"1", b"2", b"3"]


async def test_a_kill_keeps_what_was_written_and_a_power_cut_what_was_synced() -> None:
    found = {}
    for kind in ("killed", "power"):
        async with lives() as life:
            for path, synced in (("/data/written", False), ("/data/synced", True)):
                file = life.process.env.disk.open(path, create=True)
                life.process.env.disk.sync_directory("/data")
                file.write_at(0, [b"x" * 1_000])
                if synced:
                    file.sync()
            await life.again(end=kind)  # type: ignore[arg-type]
            found[kind] = [disk_of(life).content(path).count(b"x") for path in ("/data/written", "/data/synced")]
    assert found == {"killed": [1_000, 1_000], "power": [0, 1_000]}


async def test_a_kill_says_good_bye_to_nobody() -> None:
    for kind, said in (("stopped", "is stopping"), ("killed", "was ended by the other side")):
        async with lives() as life:
            with pytest.raises(ConnectionBrokenError) as caught:
                async with life.client(reconnect_attempts=0) as client:
                    await client.send("q", b"1")
                    with trio.CancelScope(shield=True):
                        await life.end(kind)  # type: ignore[arg-type]
                    await client.send("q", b"2")
            assert said in str(caught.value)
            await life.start()


async def test_a_process_that_is_gone_has_no_disk_no_network_and_no_door() -> None:
    env = machine()
    process = Process(env)
    other = Process(env)
    async with trio.open_nursery() as nursery:
        await nursery.start(process.live, Broker("one", env=process.env, data_dir="/data/one"))
        two = Broker("two", env=other.env, data_dir=None)
        await nursery.start(other.live, two)
        assert set(env.local) == {"one", "two"}
        with trio.move_on_after(1) as patience:
            async with connect("inproc://two", env=process.env, reconnect_attempts=0) as client:
                await client.create_queue("q")
                process.kill()
                process.kill()
                assert set(env.local) == {"two"}
                # It is of the dead process, and hears nothing of its own end.
                await client.create_queue("p")
        assert patience.cancelled_caught
        assert two.statistics().connections == 0
        await process.ended()
        with pytest.raises(ConnectionBrokenError):
            async with connect("inproc://two", env=process.env, reconnect_attempts=0) as client:
                await client.queues()
        with pytest.raises(OSError, match="was killed"):
            process.env.disk.names("/data")
        with pytest.raises(ConnectionBrokenError, match="was killed"):
            await process.env.network.connect("127.0.0.1", 1)
        async with connect("inproc://two", env=env) as client:
            assert await client.queues() == ["q"]
        other.kill()


@pytest.mark.real
def test_on_real_disks_and_sockets_a_kill_is_one_too(tmp_path: Path) -> None:
    def written() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(tmp_path.rglob("*"))
            if path.is_file()
        }

    async def main() -> None:
        env = real_env()
        async with trio.open_nursery() as nursery:
            process = Process(env)
            broker = Broker(
                "hq", env=process.env, data_dir=str(tmp_path / "hq"), acceptors=["tcp://127.0.0.1:0"], queues=["q"]
            )
            await nursery.start(process.live, broker)
            stream = await env.network.connect("127.0.0.1", int(broker.urls[0].rpartition(":")[2]))
            async with connect(broker.urls[0], env=env, reconnect_attempts=0) as client:
                await client.send("q", b"1")
            process.kill()
            before = written()
            # Not a word: whoever is connected sees the end of the stream, or that it was reset.
            assert await heard(stream) == b""
            await process.ended()
            assert written() == before
            later = Process(env)
            broker = Broker("hq", env=later.env, data_dir=str(tmp_path / "hq"))
            await nursery.start(later.live, broker)
            assert broker.statistics().ready == 1
            await broker.stop()

    async def heard(stream: abc.Stream) -> bytes:
        try:
            return await stream.receive(1_000)
        except ConnectionBrokenError:
            return b""
        finally:
            stream.close()

    trio.run(main)
