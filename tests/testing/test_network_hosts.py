"""Hosts of the memory network: killed, without power, paused, restarted; and where they listen."""

from __future__ import annotations

import errno

import attrs
import pytest
import trio
import trio.testing

from meshq.abc import Stream
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.testing._network_host import PORT_MAX
from tests.testing.fabrics import QUIET, join, read_all, running, within


async def heard_in_the_end(stream: Stream) -> tuple[bytes, str]:
    """What a stream gives, and how it ends."""
    heard = bytearray()
    try:
        await read_all(stream, heard)
    except ConnectionBrokenError:
        return bytes(heard), "broken"
    return bytes(heard), "end"


async def test_the_kernel_of_a_killed_process_sends_what_it_has_taken_and_closes() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        assert far.send_nowait(b"x" * 1_500) == 500
        fabric.kill_host("server")
        assert await heard_in_the_end(near) == (b"x" * 1_000, "end")
        assert fabric.counters["kill_host"] == 1


async def test_a_killed_process_that_had_not_read_all_resets() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        near.send_nowait(b"unread")
        await trio.sleep(2)
        fabric.kill_host("server")
        assert (await heard_in_the_end(near))[1] == "broken"
        assert far.peer.startswith("client:")


async def test_what_reaches_a_killed_process_is_answered_with_a_reset() -> None:
    async with running() as fabric:
        near, _ = await join(fabric)
        near.send_nowait(b"under way")
        fabric.kill_host("server")
        assert await near.receive(1) == b""
        await trio.sleep(3)
        with pytest.raises(ConnectionBrokenError, match="reset"):
            near.send_nowait(b"x")


async def test_nothing_that_a_killed_process_waits_for_ever_comes() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        victim = fabric.host("server")
        listener = await victim.listen("server", 5000)
        far.send_nowait(bytes(2_000))
        ended: list[str] = []

        async def task(name: str, call: object, *arguments: object) -> None:
            try:
                await call(*arguments)  # type: ignore[operator]
            except trio.Cancelled:
                ended.append("cancelled")
                raise
            ended.append(name)

        async with trio.open_nursery() as nursery:
            for waiting in (False, True):
                if waiting:
                    await trio.testing.wait_all_tasks_blocked()
                    fabric.kill_host("server")
                    near.send_nowait(b"anybody?")
                nursery.start_soon(task, "connect", victim.connect, "client", 1)
                nursery.start_soon(task, "listen", victim.listen, "server", 6000) if waiting else None
                if not waiting:
                    nursery.start_soon(task, "receive", far.receive, 1)
                    nursery.start_soon(task, "flush", far.flush)
                    nursery.start_soon(task, "accept", listener.accept)
            await trio.sleep(1_000)
            assert ended == []
            with pytest.raises(ConnectionBrokenError):
                far.send_nowait(b"x")
            far.close()
            listener.close()
            await trio.sleep(1_000)
            assert ended == []
            nursery.cancel_scope.cancel()
        assert ended == ["cancelled"] * 6
        for call in (far.flush, lambda: far.receive(1), listener.accept):
            assert await within(100, call) == "waits"


async def test_a_new_process_takes_the_old_ones_port() -> None:
    async with running() as fabric:
        client = fabric.host("client")
        await fabric.host("server").listen("server", 5000)
        waiting = await client.connect("server", 5000)
        fabric.kill_host("server")
        with pytest.raises(ConnectionBrokenError, match="reset"):
            await waiting.receive(1)
        with pytest.raises(ConnectionBrokenError, match="refused"):
            await client.connect("server", 5000)
        listener = await fabric.host("server").listen("server", 5000)
        near = await client.connect("server", 5000)
        far = await listener.accept()
        far.send_nowait(b"new")
        assert await near.receive(10) == b"new"
        assert fabric.host("server") is fabric.host("server")


async def test_nobody_is_told_of_a_power_loss() -> None:
    async with running() as fabric:
        near, _ = await join(fabric)
        fabric.power_off("server")
        near.send_nowait(bytes(1_500))
        assert await within(500, near.receive, 1) == "waits"
        assert await within(100, near.flush) == "waits"
        with pytest.raises(ConnectionBrokenError, match="timed out"):
            await near.receive(1)
        assert fabric.counters["power_off"] == 1
        assert fabric.counters["vanished"] == 1


async def test_a_host_that_is_back_resets_what_it_no_longer_knows() -> None:
    async with running() as fabric:
        talking, _ = await join(fabric)
        silent, _ = await join(fabric)
        fabric.power_off("server")
        talking.send_nowait(b"x")
        await trio.sleep(10)
        fabric.host("server")
        with pytest.raises(ConnectionBrokenError, match="reset"):
            await talking.receive(1)
        assert await within(5_000, silent.receive, 1) == "waits"
        silent.send_nowait(b"x")
        with pytest.raises(ConnectionBrokenError, match="reset"):
            await silent.receive(1)


async def test_what_a_host_had_sent_before_it_lost_power_may_arrive_in_part() -> None:
    arrived = set()
    for seed in range(30):
        async with running(seed=seed) as fabric:
            near, far = await join(fabric)
            for _ in range(4):
                far.send_nowait(b"0123456789")
            fabric.power_off("server")
            heard = bytearray()
            assert await within(10, read_all, near, heard) == "waits"
            assert (b"0123456789" * 4).startswith(heard)
            arrived.add(len(heard))
    assert {0, 40} < arrived


async def test_connecting_to_a_host_without_power_waits_for_it() -> None:
    async with running() as fabric:
        client, server = fabric.host("client"), fabric.host("server")
        await server.listen("server", 5000)
        fabric.power_off("server")
        begun = trio.current_time()
        with pytest.raises(ConnectionBrokenError, match="timed out") as caught:
            await client.connect("server", 5000)
        assert trio.current_time() - begun == pytest.approx(QUIET.connect_timeout_s)
        assert caught.value.outcome == "not_done"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.connect, "server", 5000)
            await trio.sleep(20)
            listener = await fabric.host("server").listen("server", 5000)
            assert (await listener.accept()).peer.startswith("client:")
        assert fabric.counters["unanswered"] > 3


async def test_connecting_across_a_cut_waits_for_its_end_either_way() -> None:
    for source, target in (("client", "server"), ("server", "client")):
        async with running() as fabric:
            client, server = fabric.host("client"), fabric.host("server")
            listener = await server.listen("server", 5000)
            fabric.cut(source, target)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.connect, "server", 5000)
                await trio.sleep(20)
                assert len(nursery.child_tasks) == 1
                fabric.heal()
                await listener.accept()


async def test_a_refusal_that_does_not_get_back_is_asked_for_again() -> None:
    async with running() as fabric:
        client, _ = fabric.host("client"), fabric.host("server")
        fabric.cut("server", "client")
        async with trio.open_nursery() as nursery:

            async def connect() -> None:
                with pytest.raises(ConnectionBrokenError, match="refused"):
                    await client.connect("server", 5000)

            nursery.start_soon(connect)
            await trio.sleep(20)
            assert len(nursery.child_tasks) == 1
            fabric.heal()


async def test_a_paused_process_gets_and_sends_nothing_and_its_kernel_takes_what_fits() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        server = fabric.host("server")
        listener = await server.listen("server", 5000)
        fabric.pause_host("server")
        assert near.send_nowait(bytes(1_200)) == 200
        assert far.send_nowait(b"not yet") == 7
        other = await fabric.host("client").connect("server", 5000)
        for call in (lambda: far.receive(1), near.flush, far.flush, listener.accept):
            assert await within(100, call) == "waits"
        assert await within(100, server.listen, "server", 0) == "waits"
        assert await within(100, near.receive, 1) == "waits"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept)
            nursery.start_soon(far.flush)
            nursery.start_soon(server.listen, "server", 0)
            await trio.testing.wait_all_tasks_blocked()
            fabric.resume_host("server")
        assert await near.receive(100) == b"not yet"
        assert len(await far.receive(10_000)) == 1_000
        assert await within(10, near.flush) is None
        assert other.peer == "server:5000"
        assert fabric.counters["pause_host"] == 1


async def test_a_paused_process_closes_and_learns_when_it_goes_on() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        other_near, other_far = await join(fabric)
        fabric.pause_host("server")
        far.close()
        other_near.close()
        assert await within(100, near.receive, 1) == "waits"
        assert await within(100, other_far.receive, 1) == "waits"
        fabric.resume_host("server")
        assert await near.receive(1) == b""
        assert await other_far.receive(1) == b""


async def test_the_kernel_closes_all_of_a_process_that_is_killed_while_paused() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        other_near, _ = await join(fabric)
        fabric.pause_host("server")
        far.close()
        fabric.kill_host("server")
        assert await within(100, near.receive, 1) == b""
        assert await within(100, other_near.receive, 1) == b""
        new_near, new_far = await join(fabric)
        new_near.send_nowait(b"to the new process, which is not paused")
        assert await within(10, new_far.receive, 2) == b"to"


async def test_what_a_paused_process_asked_for_is_lost_with_the_power() -> None:
    async with running() as fabric:
        near, far = await join(fabric)
        fabric.pause_host("server")
        far.close()
        fabric.power_off("server")
        fabric.host("server")
        fabric.pause_host("server")
        fabric.resume_host("server")
        assert await within(100, near.receive, 1) == "waits"
        near.send_nowait(b"x")
        with pytest.raises(ConnectionBrokenError, match="reset"):
            await near.receive(1)


async def test_a_process_can_be_paused_again() -> None:
    async with running() as fabric:
        server = fabric.host("server")
        for _ in range(2):
            fabric.pause_host("server")
            assert await within(10, server.listen, "server", 0) == "waits"
            fabric.resume_host("server")
            (await server.listen("server", 0)).close()


async def test_whoever_is_not_accepted_yet_is_told_of_no_power_loss_either() -> None:
    async with running() as fabric:
        await fabric.host("server").listen("server", 5000)
        near = await fabric.host("client").connect("server", 5000)
        fabric.power_off("server")
        assert await within(100, near.receive, 1) == "waits"


async def test_a_listener_without_descriptors_refuses_and_loses_no_connection() -> None:
    async with running() as fabric:
        listener = await fabric.host("server").listen("server", 5000)
        near = await fabric.host("client").connect("server", 5000)
        fabric.exhaust_files("server")
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files") as caught:
                await listener.accept()
            assert caught.value.errno == errno.EMFILE
        fabric.exhaust_files("server", False)
        far = await listener.accept()
        near.send_nowait(b"here")
        assert await far.receive(10) == b"here"
        assert (fabric.counters["exhaust_files"], fabric.counters["files_exhausted"]) == (1, 2)


async def test_a_full_backlog_answers_nobody_until_there_is_room() -> None:
    async with running(attrs.evolve(QUIET, backlog=1)) as fabric:
        client = fabric.host("client")
        listener = await fabric.host("server").listen("server", 5000)
        await client.connect("server", 5000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.connect, "server", 5000)
            await trio.sleep(5)
            assert len(nursery.child_tasks) == 1
            await listener.accept()
        assert fabric.counters["unanswered"] > 0


async def test_closing_a_listener_resets_what_was_not_accepted() -> None:
    async with running() as fabric:
        listener = await fabric.host("server").listen("server", 5000)
        near = await fabric.host("client").connect("server", 5000)
        listener.close()
        with pytest.raises(ConnectionBrokenError, match="reset"):
            await near.receive(1)
        with pytest.raises(ClosedError):
            await listener.accept()


async def test_whoever_gave_up_connecting_leaves_a_reset_to_the_server() -> None:
    async with running() as fabric:
        listener = await fabric.host("server").listen("server", 5000)
        assert await within(0.5, fabric.host("client").connect, "server", 5000) == "waits"
        far = await listener.accept()
        with pytest.raises(ConnectionBrokenError, match="reset"):
            await far.receive(1)


@pytest.mark.parametrize(
    ("listened", "dialled", "source", "reached"),
    [
        ("server", "server", "client", True),
        ("server", "server", "server", True),
        ("server", "localhost", "server", True),
        ("server", "localhost", "client", False),
        ("0.0.0.0", "server", "client", True),
        ("127.0.0.1", "server", "client", False),
        ("127.0.0.1", "127.0.0.1", "server", True),
        ("localhost", "server", "server", True),
        ("server", "nowhere", "client", False),
    ],
)
async def test_who_is_reached_under_which_name(listened: str, dialled: str, source: str, reached: bool) -> None:
    async with running() as fabric:
        listener = await fabric.host("server").listen(listened, 5000)
        network = fabric.host(source)
        if not reached:
            with pytest.raises(ConnectionBrokenError, match="can't be reached"):
                await network.connect(dialled, 5000)
            return
        near = await network.connect(dialled, 5000)
        assert near.peer == f"{dialled}:5000"
        assert (await listener.accept()).peer.startswith(f"{source}:")


async def test_a_host_listens_under_its_own_names_only() -> None:
    async with running() as fabric:
        fabric.host("other")
        with pytest.raises(OSError, match="assign requested address") as caught:
            await fabric.host("server").listen("other", 5000)
        assert caught.value.errno == errno.EADDRNOTAVAIL


async def test_ports_of_the_systems_choice_pass_over_taken_ones_and_begin_anew() -> None:
    async with running() as fabric:
        server = fabric.host("server")
        first = (await server.listen("server", 0)).port
        taken = await server.listen("server", first + 1)
        assert (await server.listen("server", 0)).port == taken.port + 1
        host = fabric.find("server")
        assert host is not None
        host.next_port = PORT_MAX
        assert [(await server.listen("server", 0)).port for _ in range(2)] == [PORT_MAX, first + 3]
