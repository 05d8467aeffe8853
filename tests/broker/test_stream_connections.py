"""Connections over a network in memory: their tasks, their clocks, their ends."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from meshq.abc import Listener, Network, Stream
from meshq.broker import Credentials, LinkServer, Listeners
from meshq.broker.connection._connection_bounds_plan import ConnectionBounds, connection_bounds
from meshq.broker.connection._connection_guard_machine import DELAY_S_MIN
from meshq.broker.connection._stream_connection import HANDSHAKE_S
from meshq.errors import ConnectionBrokenError
from meshq.limits import UNAUTHENTICATED_PER_ADDRESS_MAX, UNAUTHENTICATED_READ_BYTES_MAX
from meshq.settings import Acceptor, Secret
from meshq.testing import MemoryNetwork, NetworkSettings
from meshq.wire import (
    BY_NAME,
    FLAG_DURABLE,
    Attach,
    Attached,
    Authenticate,
    Challenge,
    ClientExchange,
    Close,
    Consume,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    Hello,
    IncomingStream,
    OutgoingStream,
    Produce,
    ReceiveBuffer,
    Role,
    encode,
    encode_ranges,
    encode_run,
    header_of,
    salted_password,
)
from tests.broker.kit import PRODUCER, FakeLog, House, make_core

#: Nothing takes time, and nothing is left to chance.
AT_ONCE = NetworkSettings(latency_s_min=0.0, latency_s_max=0.0, split_chance=0.0, short_read_chance=0.0)
PORT = 5_000
Parts = tuple[House, Listeners, MemoryNetwork, trio.Nursery]


@asynccontextmanager
async def listening(
    *, settings: NetworkSettings = AT_ONCE, log: FakeLog | None = None, url: str = "tcp://broker:0"
) -> AsyncIterator[Parts]:
    """A house whose door is open to the network."""
    network = MemoryNetwork(random.Random(0), settings)
    house = House(make_core(log), clock=trio.current_time)
    listeners = Listeners(LinkServer(house.core, house.sessions, house.counts), network.host("broker"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.run)
        await listeners.listen((Acceptor(url, insecure=True),), nursery)
        yield house, listeners, network, nursery
        nursery.cancel_scope.cancel()


@attrs.define
class Peer:
    """A client over a byte stream."""

    stream: Stream
    buffer: ReceiveBuffer = attrs.field(factory=lambda: ReceiveBuffer(1 << 24))
    outgoing: OutgoingStream = attrs.field(factory=OutgoingStream)
    incoming: IncomingStream = attrs.field(factory=IncomingStream)
    frames: list[Frame] = attrs.field(factory=list)
    ended: bool = False
    over: trio.Event = attrs.field(factory=trio.Event)

    def send(self, frame_type: FrameType, header: Header | None = None, **fields: Any) -> None:
        frame = Frame(frame_type, header=b"" if header is None else header.encode(), **fields)
        self.outgoing.number(frame, keep=True)
        frame.received = self.incoming.last
        self.stream.send_nowait(encode(frame))

    async def read(self) -> None:
        """Take in what comes until the end."""
        try:
            while data := await self.stream.receive(1 << 20):
                for frame in self.buffer.feed(data):
                    if frame.type is not FrameType.CLOSE:
                        self.incoming.accept(frame)
                    self.frames.append(frame)
        except ConnectionBrokenError:
            pass
        self.ended = True
        self.over.set()

    async def wait_for(self, frame_type: FrameType) -> Frame:
        """The frame of this type, which must be here soon."""
        for _ in range(20_000):
            if frame_type in self.types():
                break
            await trio.sleep(0.001)
        return self.last(frame_type)

    def types(self) -> list[FrameType]:
        return [frame.type for frame in self.frames]

    def last(self, frame_type: FrameType) -> Frame:
        return [frame for frame in self.frames if frame.type is frame_type][-1]

    @property
    def reason(self) -> str:
        """The name of what the connection was closed with."""
        code = header_of(self.last(FrameType.CLOSE), Close).code
        return next(name for name, entry in BY_NAME.items() if entry.number == code)

    async def shake(self, **attach: Any) -> Attached:
        self.send(FrameType.HELLO, Hello(oldest=1, newest=1))
        await trio.sleep(0.001)
        self.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
        await trio.sleep(0.001)
        self.send(FrameType.ATTACH, Attach(**attach))
        await trio.sleep(0.001)
        return header_of(self.last(FrameType.ATTACHED), Attached)


@attrs.define
class FlushSpy:
    """A stream that notes when somebody has seen to what waited in it."""

    stream: Stream
    flushed: bool = False

    async def flush(self) -> None:
        await self.stream.flush()
        self.flushed = True


async def connect(parts: Parts, *, reads: bool = True, host: str = "broker", source: str = "client") -> Peer:
    """A client's connection."""
    _, listeners, network, nursery = parts
    port = int(listeners.urls[0].rpartition(":")[2])
    peer = Peer(await network.host(source).connect(host, port))
    if reads:
        nursery.start_soon(peer.read)
    return peer


async def test_a_client_is_served_over_bytes() -> None:
    async with listening(log=FakeLog()) as parts:
        house, listeners, _, _ = parts
        assert listeners.urls[0].startswith("tcp://broker:")
        peer = await connect(parts)
        attached = await peer.shake()
        assert not attached.resumed
        assert len(listeners.connections) == 1
        peer.send(FrameType.PRODUCE, Produce(producer=PRODUCER, address="q"), channel=1, first=1)
        run = encode_run([b"x" * 100] * 200)
        await trio.sleep(0.001)
        house.log.sync()
        peer.send(
            FrameType.SEND, channel=1, first=1, flags=FLAG_DURABLE, count=200, table=run.table, body=bytes(run.body)
        )
        peer.send(FrameType.CONSUME, Consume(queue="q", window=500, window_bytes=1 << 20), channel=2, first=2)
        await trio.sleep(0.001)
        for _ in range(3):
            house.log.sync()
        await trio.sleep(0.001)
        assert peer.last(FrameType.CONFIRM).first == 200
        assert peer.last(FrameType.DELIVER).count == 200
        peer.send(FrameType.SETTLE, channel=2, count=1, table=encode_ranges([(1, 200)]))
        await trio.sleep(0.001)
        assert house.queue().counts.acknowledged == 200
        peer.send(FrameType.CLOSE, Close())
        await trio.sleep(0.001)
        assert peer.ended and listeners.connections == [] and house.sessions.by_number == {}


async def test_a_handshake_that_takes_too_long_is_given_up() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await trio.sleep(HANDSHAKE_S - 0.1)
        peer.send(FrameType.HELLO, Hello(oldest=1, newest=1))
        await trio.sleep(0.05)
        assert FrameType.WELCOME in peer.types() and not peer.ended
        # Who has come so far has the same time again for what is next, and no more by saying nothing new.
        await trio.sleep(HANDSHAKE_S - 0.2)
        assert not peer.ended
        await trio.sleep(0.2)
        assert peer.reason == "silent" and peer.ended
        assert parts[1].connections == []


async def test_a_client_that_says_nothing_at_all_is_given_up_too() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await trio.sleep(HANDSHAKE_S + 0.1)
        assert peer.ended and parts[1].connections == []


async def test_a_session_is_resumed_over_another_stream_and_taken_from_a_stuck_one() -> None:
    async with listening() as parts:
        house, listeners, _, _ = parts
        peer = await connect(parts)
        attached = await peer.shake()
        peer.send(FrameType.CONSUME, Consume(queue="q", window=10, window_bytes=100), channel=1, first=1)
        await trio.sleep(0.001)
        second = await connect(parts)
        second.outgoing, second.incoming = peer.outgoing, peer.incoming
        again = await second.shake(session=attached.session, key=attached.key, received=peer.incoming.last)
        assert again.resumed and again.received == 1
        await trio.sleep(0.001)
        assert peer.reason == "session_taken" and peer.ended
        assert len(listeners.connections) == 1 and len(house.sessions.by_number) == 1


async def test_bytes_that_are_no_frames_end_the_connection_and_its_session() -> None:
    async with listening() as parts:
        house = parts[0]
        good, bad = await connect(parts), await connect(parts)
        await good.shake()
        await bad.shake()
        bad.stream.send_nowait(b"GET / HTTP/1.1\r\n\r\n")
        await trio.sleep(0.001)
        assert bad.reason == "bad_magic" and bad.ended
        assert len(house.sessions.by_number) == 1 and house.counts.violations == 1
        good.send(FrameType.PING)
        await trio.sleep(0.001)
        assert good.types()[-1] is FrameType.PONG


@pytest.mark.parametrize("part", [b"", b"MQ\x01"])
async def test_a_stream_that_ends_leaves_the_session_to_its_client_also_inside_a_frame(part: bytes) -> None:
    async with listening() as parts:
        house = parts[0]
        peer = await connect(parts)
        await peer.shake()
        if part:
            peer.stream.send_nowait(part)
            await trio.sleep(0.001)
        peer.stream.close()
        await trio.sleep(0.001)
        # So it looks when a client dies while it sends: no rule is broken.
        assert house.counts.violations == 0
        assert [session.stream.link for session in house.sessions.by_number.values()] == [None]
        assert parts[1].connections == []


async def test_a_reset_leaves_the_session_to_its_client() -> None:
    async with listening() as parts:
        house, listeners, network, _ = parts
        peer = await connect(parts)
        await peer.shake()
        network.reset("client", "broker")
        await trio.sleep(0.001)
        assert peer.ended and listeners.connections == []
        assert [session.stream.link for session in house.sessions.by_number.values()] == [None]


async def test_what_cannot_go_at_once_goes_as_the_client_reads() -> None:
    small = attrs.evolve(AT_ONCE, buffer_bytes=2_000)
    async with listening(settings=small) as parts:
        house, _, _, nursery = parts
        peer = await connect(parts, reads=False)
        with trio.move_on_after(0.1):
            # Only the handshake is read.
            async with trio.open_nursery() as reading:
                reading.start_soon(peer.read)
                await peer.shake()
                reading.cancel_scope.cancel()
        (connection,) = parts[1].connections
        connection.stream = spy = FlushSpy(connection.stream)  # type: ignore[assignment]
        other = house.client()
        producer = other.produce()
        for _ in range(20):
            other.put(producer, bytes(1_000))
        peer.send(FrameType.CONSUME, Consume(queue="q", window=50, window_bytes=1 << 20), channel=1, first=1)
        await trio.sleep(1)
        assert house.queue().counts.unacked == 20
        nursery.start_soon(peer.read)
        await trio.sleep(1)
        assert sum(frame.count for frame in peer.frames if frame.type is FrameType.DELIVER) == 20
        # A stream need not send by itself what it could not send at once.
        assert spy.flushed


async def test_a_client_that_stops_reading_and_resets_harms_nobody() -> None:
    small = attrs.evolve(AT_ONCE, buffer_bytes=2_000)
    async with listening(settings=small) as parts:
        house, listeners, network, _ = parts
        peer = await connect(parts, reads=False)
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as reading:
                reading.start_soon(peer.read)
                await peer.shake()
                reading.cancel_scope.cancel()
        other = house.client()
        producer = other.produce()
        other.put(producer, bytes(50_000))
        peer.send(FrameType.CONSUME, Consume(queue="q", window=50, window_bytes=1 << 20), channel=1, first=1)
        await trio.sleep(0.1)
        network.reset("client", "broker")
        await trio.sleep(0.1)
        assert listeners.connections == []
        other.put(producer, b"x")
        assert other.confirmed[-1] == (producer, 2)


async def test_a_good_bye_that_was_said_is_followed_by_no_ping() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=300)
        (connection,) = parts[1].connections
        connection.server.say_close(BY_NAME["stopping"].number, "the node is stopping")
        await trio.sleep(1)
        assert peer.reason == "stopping"
        assert peer.types()[-1] is FrameType.CLOSE


async def test_a_cancelled_connection_closes_its_stream_and_leaves_its_session() -> None:
    house = House(make_core(), clock=trio.current_time)
    network = MemoryNetwork(random.Random(0), AT_ONCE)
    async with trio.open_nursery() as outer:
        outer.start_soon(network.run)
        async with trio.open_nursery() as nursery:
            listeners = Listeners(LinkServer(house.core, house.sessions, house.counts), network.host("broker"))
            await listeners.listen((Acceptor("tcp://broker:0", insecure=True),), nursery)
            peer = await connect((house, listeners, network, outer))
            await peer.shake()
            nursery.cancel_scope.cancel()
        await trio.sleep(0.001)
        assert peer.ended
        assert [session.stream.link for session in house.sessions.by_number.values()] == [None]
        listeners.close()
        outer.cancel_scope.cancel()


async def test_when_the_system_has_no_room_for_a_connection_the_node_tries_again() -> None:
    async with listening() as parts:
        _, _, network, _ = parts
        network.exhaust_files("broker")
        peer = await connect(parts)
        await trio.sleep(0.3)
        assert network.counters["files_exhausted"] > 0
        network.exhaust_files("broker", False)
        await trio.sleep(0.3)
        await peer.shake()


async def test_after_close_nobody_comes_in_and_whoever_is_there_stays() -> None:
    async with listening() as parts:
        _, listeners, _, _ = parts
        peer = await connect(parts)
        await peer.shake()
        listeners.close()
        listeners.close()
        with pytest.raises(ConnectionBrokenError):
            await connect(parts)
        peer.send(FrameType.PING)
        await trio.sleep(0.001)
        assert peer.types()[-1] is FrameType.PONG


async def test_an_address_that_is_taken_cannot_be_bound() -> None:
    async with listening() as parts:
        house, listeners, network, nursery = parts
        other = Listeners(LinkServer(house.core, house.sessions, house.counts), network.host("broker"))
        with pytest.raises(ConnectionBrokenError, match="can't be bound") as caught:
            await other.listen((Acceptor(listeners.urls[0], insecure=True),), nursery)
        assert caught.value.outcome == "not_done"


async def test_little_is_read_of_somebody_who_does_not_say_who_they_are() -> None:
    async with listening(settings=attrs.evolve(AT_ONCE, buffer_bytes=1 << 20)) as parts:
        peer = await connect(parts)
        frame = Frame(FrameType.SEND, channel=1, number=1, count=1, table=bytes(20), body=bytes(1 << 16))
        # A frame that may have as many bytes, and does not come to its end.
        peer.stream.send_nowait(encode(frame)[:UNAUTHENTICATED_READ_BYTES_MAX])
        await trio.sleep(0.01)
        assert peer.reason == "too_large" and peer.ended
        assert "it is not known who says them" in header_of(peer.last(FrameType.CLOSE), Close).text


async def guarded_doors(parts: Parts, bounds: ConnectionBounds) -> Parts:
    """Doors of the same house where one says who one is, with bounds of their own."""
    house, _, network, nursery = parts
    credentials = Credentials.derive({"client": {"app": Secret("right")}}, b"secret")
    guarded = Listeners(
        LinkServer(house.core, house.sessions, house.counts, credentials), network.host("broker"), bounds=bounds
    )
    await guarded.listen((Acceptor("tcp://broker:0", insecure=True),), nursery)
    return house, guarded, network, nursery


async def test_who_failed_waits_and_who_is_known_makes_room() -> None:
    async with listening() as parts:
        bounds = connection_bounds(256)
        doors = await guarded_doors(parts, bounds)
        known = []
        for _ in range(bounds.per_address + 4):
            peer = await log_in(await connect(doors), "right")
            peer.send(FrameType.ATTACH, Attach(ttl_ms=60_000, window_bytes=1 << 20))
            await peer.wait_for(FrameType.ATTACHED)
            known.append(peer)
        assert not any(peer.ended for peer in known)
        for failures in range(4):
            began = trio.current_time()
            peer = await log_in(await connect(doors), "wrong")
            await peer.over.wait()
            assert peer.reason == "not_authenticated"
            expected = DELAY_S_MIN * 2 ** (failures - 1) if failures else 0.0
            assert trio.current_time() - began == pytest.approx(expected, abs=0.05)
        doors[1].close()


class Refusing(Network, Listener):
    """A system that has no room for a connection, as when too many files are open."""

    async def connect(self, host: str, port: int) -> Stream:
        raise NotImplementedError

    async def listen(self, host: str, port: int) -> Listener:
        return self

    async def accept(self) -> Stream:
        await trio.lowlevel.checkpoint()
        raise OSError(errno.EMFILE, "Too many open files")

    @property
    def port(self) -> int:
        return PORT

    def close(self) -> None:
        """Nothing is open."""


async def test_a_system_without_room_for_connections_is_a_warning_that_does_not_repeat_itself() -> None:
    house = House(make_core(FakeLog()), clock=trio.current_time)
    listeners = Listeners(LinkServer(house.core, house.sessions, house.counts), Refusing())
    async with trio.open_nursery() as nursery:
        await listeners.listen((Acceptor("tcp://broker:0", insecure=True),), nursery)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    # Whoever takes warnings counts those that repeat.
    said = [f"{event}: {text}" for event, text in house.host.warnings]
    assert 9 <= len(said) <= 11
    assert set(said) == {"accept_refused: no connection can be accepted: [Errno 24] Too many open files"}


async def log_in(peer: Peer, password: str, *, role: Role = "client") -> Peer:
    """Prove, rightly or wrongly, who one is."""
    hello = Frame(FrameType.HELLO, header=Hello(oldest=1, newest=1, role=role).encode())
    peer.stream.send_nowait(encode(hello))
    welcome = await peer.wait_for(FrameType.WELCOME)
    exchange = ClientExchange(HandshakeFrames(role, hello, welcome, b""), "app", bytes(32))
    peer.send(FrameType.AUTHENTICATE, exchange.begin)
    challenge = header_of(await peer.wait_for(FrameType.CHALLENGE), Challenge)
    salted = salted_password(password.encode(), challenge.salt, challenge.iterations)
    peer.send(FrameType.PROOF, exchange.prove(challenge, salted))
    await trio.sleep(0.001)
    return peer


async def test_a_crowd_does_not_come_in_without_the_delay_where_only_peers_are_asked() -> None:
    async with listening() as parts:
        house, _, network, nursery = parts
        credentials = Credentials.derive({"peer": {"cluster": Secret("right")}}, b"secret")
        guarded = Listeners(LinkServer(house.core, house.sessions, house.counts, credentials), network.host("broker"))
        await guarded.listen((Acceptor("tcp://broker:0", insecure=True),), nursery)
        doors = (house, guarded, network, nursery)
        first = await log_in(await connect(doors), "wrong", role="peer")
        await first.over.wait()
        # Clients are not asked here, and so not counted: as many as like may come, after the delay.
        crowd = [await connect(doors) for _ in range(UNAUTHENTICATED_PER_ADDRESS_MAX + 4)]
        for peer in crowd:
            peer.send(FrameType.HELLO, Hello(oldest=1, newest=1))
        await trio.sleep(DELAY_S_MIN - 0.01)
        assert [peer.frames for peer in crowd] == [[]] * len(crowd)
        await trio.sleep(0.02)
        assert [peer.types() for peer in crowd] == [[FrameType.WELCOME]] * len(crowd)
        doors[1].close()
