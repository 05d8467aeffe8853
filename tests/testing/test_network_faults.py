"""What processes see when the memory network fails."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from meshq.errors import BusyError, ConnectionBrokenError, UsageError
from meshq.testing import MemoryNetwork
from meshq.testing._network import EFFECTS, FAULTS, LOSSES
from tests.testing.fabrics import QUIET, join, read_all, running, within


async def test_nothing_arrives_while_nobody_runs_the_network() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        with pytest.raises(BusyError):
            await fabric.run()
    near.send_nowait(b"later")
    assert await within(100, far.receive, 10) == "waits"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fabric.run)
        assert await far.receive(10) == b"later"
        nursery.cancel_scope.cancel()


async def test_what_was_begun_before_the_network_runs_goes_on_with_it() -> None:
    fabric = MemoryNetwork(random.Random(0), QUIET)
    listener = await fabric.host("server").listen("server", 5000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fabric.host("client").connect, "server", 5000)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(fabric.run)
        assert await listener.accept() is not None
        nursery.cancel_scope.cancel()


async def test_segments_take_the_time_of_their_link() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        begun = trio.current_time()
        near.send_nowait(b"x")
        await far.receive(1)
        assert trio.current_time() - begun == pytest.approx(1.0)
        fabric.delay("server", "client", 5.0, 5.0)
        far.send_nowait(b"x")
        await near.receive(1)
        assert trio.current_time() - begun == pytest.approx(6.0)
        assert fabric.counters["delay"] == 1


async def test_a_slow_link_moves_so_many_bytes_a_second_for_all_connections_together() -> None:
    async with running() as fabric:
        first, second = await join(fabric), await join(fabric)
        fabric.slow("client", "server", 100)
        begun = trio.current_time()
        for near, _ in (first, second):
            near.send_nowait(bytes(500))
        await first[1].receive(500)
        assert trio.current_time() - begun == pytest.approx(6.0)
        await second[1].receive(500)
        assert trio.current_time() - begun == pytest.approx(11.0)
        fabric.slow("client", "server", None)
        first[0].send_nowait(bytes(500))
        await first[1].receive(500)
        assert trio.current_time() - begun == pytest.approx(12.0)
        assert fabric.counters["slow"] == 1


async def test_what_the_peer_does_not_read_waits_at_the_sender() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        assert near.send_nowait(bytes(1_200)) == 200
        assert near.send_nowait(bytes(100)) == 300
        assert await within(100, near.flush) == "waits"
        assert len(await far.receive(10_000)) == 1_000
        assert await within(10, near.flush) is None
        assert len(await far.receive(10_000)) == 300


async def test_a_one_way_cut_delays_that_way_only_and_loses_nothing() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        fabric.cut("client", "server")
        near.send_nowait(b"one ")
        far.send_nowait(b"still here")
        assert await near.receive(100) == b"still here"
        near.send_nowait(b"two ")
        assert await within(500, far.receive, 100) == "waits"
        fabric.heal()
        near.send_nowait(b"three")
        heard = bytearray()
        await within(10, read_all, far, heard)
        assert heard == b"one two three"
        assert fabric.counters["cut"] == 1
        assert fabric.counters["held"] >= 2


async def test_a_cut_takes_what_is_under_way_when_it_begins() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        near.send_nowait(b"under way")
        await trio.sleep(0.5)
        fabric.cut("client", "server")
        assert await within(10, far.receive, 100) == "waits"


async def test_the_next_cut_may_come_before_the_sender_has_noticed_the_end_of_the_last() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        fabric.cut("client", "server")
        near.send_nowait(b"held")
        await trio.sleep(2)
        fabric.heal()
        fabric.cut("client", "server")
        assert await within(100, far.receive, 100) == "waits"
        fabric.heal()
        assert await within(QUIET.retransmit_s_max, far.receive, 100) == b"held"
        await trio.sleep(10)
        fabric.cut("client", "server")
        near.send_nowait(b"never heard")
        with pytest.raises(ConnectionBrokenError, match="timed out"):
            await near.receive(1)


async def test_a_sender_whose_peer_can_not_answer_sends_one_buffer_and_waits() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        fabric.cut("server", "client")
        near.send_nowait(bytes(3_000))
        heard = bytearray()
        assert await within(100, read_all, far, heard) == "waits"
        assert len(heard) == 1_000
        fabric.heal("server", "client")
        assert await within(100, read_all, far, heard) == "waits"
        assert len(heard) == 3_000


async def test_a_partition_cuts_between_groups_both_ways_and_nowhere_else() -> None:
    async with running() as fabric:
        pairs = {
            pair: await join(fabric, *pair) for pair in (("a", "b"), ("a", "c"), ("b", "c"), ("a", "d"), ("c", "d"))
        }
        fabric.partition(["a", "b"], ["c"])
        heard = {}
        for pair, (near, far) in pairs.items():
            near.send_nowait(b"x")
            far.send_nowait(b"y")
            heard[pair] = (await within(10, far.receive, 1), await within(10, near.receive, 1))
        apart = ("waits", "waits")
        together = (b"x", b"y")
        assert list(heard.values()) == [together, apart, apart, together, together]
        fabric.heal("c", "a")
        assert await pairs["a", "c"][0].receive(1) == b"y"
        assert await within(10, pairs["a", "c"][1].receive, 1) == "waits"


async def test_a_connection_whose_peer_confirms_nothing_is_given_up_in_the_end() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        fabric.cut("client", "server")
        begun = trio.current_time()
        near.send_nowait(b"x")
        with pytest.raises(ConnectionBrokenError, match="timed out"):
            await near.receive(1)
        assert trio.current_time() - begun == pytest.approx(QUIET.send_timeout_s + 1)
        assert fabric.counters["timed_out"] == 1
        assert await within(10, far.receive, 1) == "waits"


async def test_a_connection_that_was_healed_in_time_is_not_given_up_later() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        for _ in range(2):
            fabric.cut("client", "server")
            near.send_nowait(b"x")
            near.send_nowait(b"y")
            await trio.sleep(QUIET.send_timeout_s - 10)
            fabric.heal()
            heard = bytearray()
            assert await within(QUIET.send_timeout_s, read_all, far, heard) == "waits"
            assert heard == b"xy"
        assert fabric.counters["timed_out"] == 0


async def test_more_segments_do_not_put_off_the_end_of_a_connection() -> None:
    async with running() as fabric:
        near, _ = await join(fabric)
        fabric.cut("client", "server")
        near.send_nowait(b"x")
        await trio.sleep(500)
        near.send_nowait(b"y")
        assert await within(QUIET.send_timeout_s - 505, near.receive, 1) == "waits"
        with pytest.raises(ConnectionBrokenError, match="timed out"):
            await within(10, near.receive, 1)


async def test_a_quick_segment_does_not_push_a_slow_one_forward() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        fabric.delay("client", "server", 10.0, 10.0)
        near.send_nowait(b"slow ")
        fabric.delay("client", "server", 1.0, 1.0)
        near.send_nowait(b"quick")
        assert await within(9.9, far.receive, 100) == "waits"
        heard = bytearray()
        await within(0.2, read_all, far, heard)
        assert heard == b"slow quick"


async def test_a_connection_may_be_reset_while_it_is_cut() -> None:
    for seed in range(20):
        async with running(seed=seed) as fabric:
            near, far = await join(fabric)
            fabric.cut("client", "server")
            for _ in range(5):
                near.send_nowait(b"x")
            await trio.sleep(2)
            fabric.reset("client", "server")
            with pytest.raises(ConnectionBrokenError, match="reset"):
                await near.receive(1)
            assert await within(100, far.receive, 1) == "waits"
            fabric.heal()
            with pytest.raises(ConnectionBrokenError, match="reset"):
                await read_all(far, bytearray())


async def test_a_reset_tells_both_ends_and_loses_what_is_under_way() -> None:
    lengths = set()
    for seed in range(30):
        async with running(seed=seed) as fabric:
            near, far = await join(fabric)
            near.send_nowait(b"0123456789")
            assert fabric.reset("client", "server") == 2
            heard = bytearray()
            for stream in (near, far):
                with pytest.raises(ConnectionBrokenError, match="reset"):
                    await read_all(stream, heard)
                with pytest.raises(ConnectionBrokenError, match="reset"):
                    stream.send_nowait(b"x")
                with pytest.raises(ConnectionBrokenError, match="reset"):
                    await stream.flush()
            assert b"0123456789".startswith(heard)
            lengths.add(len(heard))
            assert fabric.reset("client", "server") == 0
            assert fabric.counters["reset"] == 1
    assert lengths >= {0, 10}
    assert len(lengths) > 3


async def test_a_host_is_reset_with_itself_once_for_each_end() -> None:
    async with running() as fabric:
        await join(fabric, "server", "server")
        assert fabric.reset("server", "server") == 2


async def test_a_forgotten_connection_swallows_all_and_a_new_one_is_well() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        near.send_nowait(b"under way")
        assert fabric.silence("server", "client") == 2
        assert fabric.counters["silence"] == 1
        near.send_nowait(bytes(2_000))
        far.send_nowait(b"?")
        far.close()
        assert await within(500, near.receive, 1) == "waits"
        assert fabric.counters["vanished"] >= 3
        other_near, other_far = await join(fabric)
        other_near.send_nowait(b"hello")
        assert await other_far.receive(10) == b"hello"
        with pytest.raises(ConnectionBrokenError, match="timed out"):
            await near.flush()


async def test_counters_name_every_fault_and_effect_from_the_start() -> None:
    async with running() as fabric:
        assert fabric.counters == dict.fromkeys((*FAULTS, *EFFECTS, *LOSSES), 0)


async def test_what_is_not_there_can_not_fail() -> None:
    async with running() as fabric:
        fabric.host("a")
        for call in (fabric.kill_host, fabric.power_off, fabric.pause_host, fabric.resume_host):
            with pytest.raises(UsageError, match="not known"):
                call("b")
        fabric.kill_host("a")
        for call in (fabric.kill_host, fabric.power_off, fabric.pause_host):
            with pytest.raises(UsageError, match="nothing runs"):
                call("a")
        assert isinstance(fabric, MemoryNetwork)


async def test_a_lost_segment_arrives_late_and_a_lost_datagram_does_not_arrive() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        sockets = [await fabric.datagrams.host(name).bind("0.0.0.0", 9) for name in ("client", "server")]
        fabric.drop("client", "server", 0.9)
        begun = trio.current_time()
        near.send_nowait(b"x")
        await far.receive(1)
        assert trio.current_time() - begun > 1.0 + fabric.settings.retransmit_s_min
        assert fabric.counters["lost_segment"] > 0
        lost = fabric.datagrams._paths.lost
        for _ in range(50):
            await sockets[0].send(b"x", "server", 9)
        assert fabric.datagrams._paths.lost > lost
        fabric.restore()
        begun = trio.current_time()
        near.send_nowait(b"x")
        await far.receive(1)
        assert trio.current_time() - begun == pytest.approx(1.0)
        with pytest.raises(UsageError, match="from 0 to less than 1"):
            fabric.drop("client", "server", 1.0)
