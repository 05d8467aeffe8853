"""Nothing leaves a node once its term is over: what waits in a stream, links in the process, datagrams."""

from __future__ import annotations

import random
import socket

import pytest
import trio

from meshq.abc import Disk, LocalAcceptor, StepBack, TermGuard
from meshq.env import real_env
from meshq.env._network import TcpStream
from meshq.errors import ConnectionBrokenError
from meshq.node.terms import GuardedStream
from meshq.node.terms._guarded_links import GuardedDatagrams, GuardedLocals
from meshq.portal._pipe import PipeStream
from meshq.testing import MemoryNetwork
from meshq.wire import DirectLink, Frame, FrameType


class Term(TermGuard):
    """A term that a test ends."""

    def __init__(self) -> None:
        self.lasts = True

    def may_act(self) -> bool:
        return self.lasts

    def disk(self, disk: Disk) -> Disk:
        return disk

    @property
    def over(self) -> StepBack | None:
        return None


async def test_bytes_that_wait_in_a_socket_for_room_do_not_leave_after_the_term() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    term = Term()
    stream = GuardedStream(TcpStream(_plain(near), "peer"), term)
    with far:
        assert stream.send_nowait(bytes(16 << 20)) > 0
        term.lasts = False
        while True:
            try:
                far.recv(1 << 20)
            except BlockingIOError:
                break
        with pytest.raises(ConnectionBrokenError), trio.fail_after(5):
            await stream.flush()
        with pytest.raises(BlockingIOError):
            far.recv(1)
        stream.close()


def _plain(end: socket.socket) -> socket.socket:
    """A local socket, of which a stream asks for no delay as of one over TCP."""

    class End(socket.socket):
        def setsockopt(self, *settings: object) -> None:
            return

    return End(fileno=end.detach())


async def test_bytes_that_wait_in_a_simulated_stream_do_not_leave_after_the_term() -> None:
    network, term = MemoryNetwork(random.Random(1)), Term()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.run)
        listener = await network.host("a").listen("a", 7001)
        client = await network.host("b").connect("a", 7001)
        server = GuardedStream(await listener.accept(), term)
        waiting = server.send_nowait(bytes(8 << 20))
        assert waiting
        term.lasts = False
        got = 0
        with pytest.raises(ConnectionBrokenError):
            while data := await client.receive(1 << 20):
                got += len(data)
            raise ConnectionBrokenError("the orderly end")
        assert 0 < got <= (8 << 20) - waiting
        with pytest.raises(ConnectionBrokenError):
            server.send_nowait(b"x")
        nursery.cancel_scope.cancel()


async def test_a_link_to_another_broker_of_the_process_hands_nothing_over_after_the_term() -> None:
    term, got = Term(), list[Frame]()

    class Receiver:
        def frames(self, frames: list[Frame], /) -> None:
            got.extend(frames)

        def lost(self) -> None:
            return

        def backlogged(self) -> None:
            return

    class Acceptor(LocalAcceptor):
        def connect_local(self, label: str) -> DirectLink:
            here, there = DirectLink.pair(label, "other")
            there.start(Receiver())
            return here

    places: dict[str, LocalAcceptor] = {"other": Acceptor()}
    link = GuardedLocals(places, term)["other"].connect_local("bridge")
    link.start(Receiver())
    frame = Frame(FrameType.PING)
    link.send(frame)
    link.flush()
    assert len(got) == 1
    term.lasts = False
    link.send(frame)
    link.flush()
    link.close()
    assert len(got) == 1


async def test_a_client_of_another_loop_gets_nothing_from_a_node_after_its_term() -> None:
    token = trio.lowlevel.current_trio_token()
    near, far = PipeStream.pair("pipe", token, token)
    term = Term()
    stream = GuardedStream(far, term)
    stream.send_nowait(b"x")
    term.lasts = False
    with pytest.raises(ConnectionBrokenError):
        stream.send_nowait(b"y")
    assert await near.receive(10) == b"x"
    assert await near.receive(10) == b""


async def test_no_datagram_leaves_after_the_term() -> None:
    term = Term()
    datagrams = GuardedDatagrams(real_env().datagrams, term)
    receiver, sender = await datagrams.bind("127.0.0.1", 0), await datagrams.bind("127.0.0.1", 0)
    await sender.send(b"1", "127.0.0.1", receiver.port)
    with trio.fail_after(5):
        assert await receiver.receive() == b"1"
    term.lasts = False
    with pytest.raises(OSError, match="term is over"):
        await sender.send(b"2", "127.0.0.1", receiver.port)
    sender.close()
    receiver.close()
