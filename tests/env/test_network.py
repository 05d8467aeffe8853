"""TCP streams, over loopback."""

from __future__ import annotations

import errno
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from meshq.env import TcpNetwork, TcpStream
from meshq.errors import ConnectionBrokenError
from meshq.limits import MIB
from meshq.testing import NETWORK_CHECKS, STREAM_CHECKS, NetworkCheck, NetworkSides
from meshq.testing.conformance._network import closing
from meshq.testing.conformance._stream import read_exactly


@asynccontextmanager
async def tcp_sides(host: str = "127.0.0.1") -> AsyncIterator[NetworkSides]:
    yield NetworkSides(TcpNetwork(), TcpNetwork(), host)


async def raw_pair() -> tuple[TcpStream, socket.socket]:
    """One of our streams, and a plain non-blocking socket at its other end."""
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        stream = await TcpNetwork().connect("127.0.0.1", listening.getsockname()[1])
        peer, _ = listening.accept()
    assert isinstance(stream, TcpStream)
    return stream, peer


def reset(peer: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("check", (*NETWORK_CHECKS, *STREAM_CHECKS))
async def test_tcp_conforms(check: NetworkCheck) -> None:
    async with tcp_sides() as sides:
        await check(sides)


@pytest.mark.parametrize("check", NETWORK_CHECKS)
async def test_tcp_over_ipv6_conforms(check: NetworkCheck) -> None:
    async with tcp_sides("::1") as sides:
        await check(sides)


async def test_a_peer_that_only_stops_sending_still_hears() -> None:
    stream, peer = await raw_pair()
    async with closing(stream):
        with peer:
            peer.sendall(b"all I had to say")
            peer.shutdown(socket.SHUT_WR)
            assert await read_exactly(stream, 16) == b"all I had to say"
            assert await stream.receive(10) == b""
            assert stream.send_nowait(b"understood") == 0
            assert peer.recv(100) == b"understood"
            assert await stream.receive(10) == b""


async def test_a_reset_breaks_the_reader() -> None:
    stream, peer = await raw_pair()
    async with closing(stream), trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(ConnectionBrokenError, match="reset by peer") as caught:
                await stream.receive(10)
            assert isinstance(caught.value.__cause__, ConnectionResetError)
            assert caught.value.outcome == "unknown"

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        reset(peer)


async def test_a_reset_breaks_the_flusher_and_stays() -> None:
    stream, peer = await raw_pair()
    async with closing(stream):
        assert stream.send_nowait(bytes(64 * MIB)) > 0
        async with trio.open_nursery() as nursery:

            async def flush() -> None:
                with pytest.raises(ConnectionBrokenError):
                    await stream.flush()

            nursery.start_soon(flush)
            await trio.testing.wait_all_tasks_blocked()
            reset(peer)
        assert "broken waiting_bytes=0" in repr(stream)
        for again in (stream.flush, lambda: stream.receive(10)):
            with pytest.raises(ConnectionBrokenError) as caught:
                await again()
            assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(ConnectionBrokenError):
            stream.send_nowait(b"x")


async def test_a_reset_met_by_sending_is_no_orderly_end_to_the_reader() -> None:
    stream, peer = await raw_pair()
    async with closing(stream):
        reset(peer)
        with pytest.raises(ConnectionBrokenError):
            stream.send_nowait(b"x")
        with pytest.raises(ConnectionBrokenError):
            await stream.receive(10)


async def test_what_the_peer_said_before_it_left_is_heard_although_sending_fails() -> None:
    stream, peer = await raw_pair()
    async with closing(stream):
        peer.sendall(b"go away")
        peer.close()
        with pytest.raises(ConnectionBrokenError):
            for _ in range(100):
                stream.send_nowait(b"x")
        assert await stream.receive(3) == b"go "
        assert await stream.receive(100) == b"away"
        with pytest.raises(ConnectionBrokenError):
            await stream.receive(10)


async def test_many_small_pieces_wait_in_order_and_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = socket.socket.sendmsg

    def counted(self: socket.socket, pieces: list[Any]) -> int:
        calls.append(len(pieces))
        return real(self, pieces)

    monkeypatch.setattr(socket.socket, "sendmsg", counted)
    async with tcp_sides() as sides:
        near, far = await sides.pair()
        async with closing(near, far), trio.open_nursery() as nursery:
            size = 8 * MIB
            assert near.send_nowait(bytes(size)) > 0
            for number in range(3_000):
                near.send_nowait(b"%04d" % number)
            nursery.start_soon(near.flush)
            await read_exactly(far, size)
            assert await read_exactly(far, 12_000) == b"".join(b"%04d" % number for number in range(3_000))
    assert max(calls) > 500
    assert calls[0] == 1  # the large piece is enough for one call


async def test_a_stream_says_what_it_is() -> None:
    async with tcp_sides("::1") as sides:
        near, far = await sides.pair()
        async with closing(near, far):
            assert near.peer.startswith("[::1]:")
            assert repr(near) == f"<TcpStream {near.peer} open waiting_bytes=0>"
        assert repr(near) == f"<TcpStream {near.peer} closed waiting_bytes=0>"
        listener = await sides.listen()
        assert repr(listener) == f"<TcpListener port={listener.port} open>"
        listener.close()
        assert repr(listener) == f"<TcpListener port={listener.port} closed>"


async def test_small_packets_are_not_held_back() -> None:
    async with tcp_sides() as sides:
        for stream in await sides.pair():
            assert isinstance(stream, TcpStream)
            assert stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            stream.close()


async def test_a_name_is_listened_to_on_its_ipv4_address() -> None:
    listener = await TcpNetwork().listen("localhost", 0)
    stream = await TcpNetwork().connect("127.0.0.1", listener.port)
    async with closing(listener, stream):
        assert stream.peer == f"127.0.0.1:{listener.port}"


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "two..dots"])
async def test_a_name_that_is_none_can_not_be_reached(host: str) -> None:
    with pytest.raises(ConnectionBrokenError, match="can't be reached: ") as caught:
        await TcpNetwork().connect(host, 5000)
    assert caught.value.outcome == "not_done"


async def test_too_many_open_files_come_out_of_accept_and_lose_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tcp_sides() as sides:
        listener = await sides.listen()
        near = await sides.client.connect(sides.host, listener.port)
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", failing(errno.EMFILE))
            with pytest.raises(OSError, match="Too many open files"):
                await listener.accept()
        far = await listener.accept()
        async with closing(listener, near, far):
            near.send_nowait(b"here")
            assert await far.receive(4) == b"here"


async def test_a_connection_that_was_gone_before_it_was_accepted_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tcp_sides() as sides:
        listener = await sides.listen()
        near = await sides.client.connect(sides.host, listener.port)
        accept = socket.socket.accept
        calls = []

        def aborted_once(self: socket.socket) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise OSError(errno.ECONNABORTED, "aborted")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", aborted_once)
        far = await listener.accept()
        async with closing(listener, near, far):
            assert len(calls) == 2


def failing(number: int) -> Any:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


async def test_a_listener_that_can_not_be_made_leaves_no_socket() -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match="assign requested address"):
        await TcpNetwork().listen("203.0.113.1", 0)
    assert open_descriptors() == before


def open_descriptors() -> list[str]:
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


async def test_no_descriptor_is_left_open() -> None:
    before = open_descriptors()
    async with tcp_sides() as sides:
        listener = await sides.listen()
        for _ in range(3):
            near = await sides.client.connect(sides.host, listener.port)
            far = await listener.accept()
            near.send_nowait(bytes(8 * MIB))
            near.close()
            far.close()
        with trio.CancelScope() as scope:
            scope.cancel()
            await sides.client.connect(sides.host, listener.port)
        listener.close()
        with pytest.raises(ConnectionBrokenError):
            await sides.client.connect(sides.host, listener.port)
    assert open_descriptors() == before


async def test_a_cancelled_attempt_under_way_leaves_nothing() -> None:
    """192.0.2.1 is for documentation: an attempt waits, or is told that there is no way."""
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect_quietly)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert open_descriptors() == before


async def connect_quietly() -> None:
    try:
        await TcpNetwork().connect("192.0.2.1", 9)
    except ConnectionBrokenError:
        return


async def test_closing_a_stream_outside_of_its_readers_task_frees_the_number_at_once() -> None:
    """The system gives a closed descriptor's number to the next file; a late waiter must not watch that one."""
    async with tcp_sides() as sides:
        near, far = await sides.pair()
        async with closing(far), trio.open_nursery() as nursery:

            async def read() -> None:
                with pytest.raises(ConnectionBrokenError, match="is closed"):
                    await near.receive(10)

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            near.close()
            other_near, other_far = await sides.pair()
            async with closing(other_near, other_far):
                other_far.send_nowait(b"not for the closed one")
                assert await other_near.receive(100) == b"not for the closed one"


async def test_what_is_ready_passes_by_the_scheduler_63_times_of_64() -> None:
    async with tcp_sides() as sides:
        near, far = await sides.pair()
        async with closing(near, far):
            near.send_nowait(bytes(1_000))
            passed_by = 0
            for _ in range(640):
                try:
                    with trio.testing.assert_no_checkpoints():
                        await far.receive(1)
                    passed_by += 1
                except AssertionError:
                    continue
            assert passed_by == 630


async def test_what_the_system_took_is_forgotten_here() -> None:
    async with tcp_sides() as sides:
        near, far = await sides.pair()
        async with closing(near, far):
            for _ in range(10):
                assert near.send_nowait(b"x") == 0
            assert isinstance(near, TcpStream)
            assert not near._waiting


async def test_a_closed_stream_says_that_it_was_closed_here() -> None:
    async with tcp_sides() as sides:
        near, far = await sides.pair()
        near.close()
        async with closing(far):
            with pytest.raises(ConnectionBrokenError, match="is closed"):
                near.send_nowait(b"late")
            for call in (near.flush, lambda: near.receive(10)):
                with pytest.raises(ConnectionBrokenError, match="is closed"):
                    await call()


async def test_a_port_that_nobody_listens_at_says_that_the_connection_was_refused() -> None:
    listener = await TcpNetwork().listen("127.0.0.1", 0)
    port = listener.port
    listener.close()
    with pytest.raises(ConnectionBrokenError) as caught:
        await TcpNetwork().connect("127.0.0.1", port)
    assert str(caught.value) == f"127.0.0.1:{port} can't be reached: connection refused"
    assert isinstance(caught.value.__cause__, OSError)
