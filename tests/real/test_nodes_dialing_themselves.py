"""A node that dials another one, and is led back to itself by whoever sits at the other one's address."""

from __future__ import annotations

import trio

from meshq import Broker, ClusterConnection, ConnectionBrokenError
from meshq.abc import Listener, Stream
from meshq.env import TcpNetwork
from meshq.wire import BY_NAME, Close, Frame, FrameType, ReceiveBuffer, header_of
from tests.cluster.kit import until


def node(name: str, port: int, other: int) -> Broker:
    """A node of a cluster of two, which looks again soon."""
    mine = f"tcp://127.0.0.1:{port}"
    mesh = ClusterConnection(
        "mesh",
        connector="me",
        static_connectors=[f"tcp://127.0.0.1:{other}"],
        user="cluster",
        password="canary",
        check_period=0.1,
        retry_interval=0.05,
    )
    return Broker(name, data_dir=None, acceptors=[mine], connectors={"me": mine}, services=[mesh])


async def pump(source: Stream, target: Stream, heard: list[Frame]) -> None:
    """Pass on what comes, as it came, and read it."""
    buffer = ReceiveBuffer()
    try:
        while data := await source.receive(1 << 16):
            heard += buffer.feed(data)
            target.send_nowait(data)
            await target.flush()
    except ConnectionBrokenError:
        pass
    target.close()


async def lead_back(listener: Listener, port: int, said: list[list[Frame]]) -> None:
    """Connect whoever comes to this port; ``said``: what was answered there, connection by connection."""
    async with trio.open_nursery() as nursery:
        while True:
            near = await listener.accept()
            far = await TcpNetwork().connect("127.0.0.1", port)
            said.append([])
            nursery.start_soon(pump, near, far, [])
            nursery.start_soon(pump, far, near, said[-1])


async def test_a_node_that_is_led_back_to_itself_lets_nobody_in_and_looks_again_later() -> None:
    between, free = [await TcpNetwork().listen("127.0.0.1", 0) for _ in range(2)]
    free.close()
    here, there = free.port, between.port
    said: list[list[Frame]] = []
    async with node("one", here, there) as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead_back, between, here, said)
            # It does so again and again.
            await until(lambda: any(frame.type is FrameType.CLOSE for frames in said[1:] for frame in frames))
            nursery.cancel_scope.cancel()
        between.close()
        answers = [frame for frames in said for frame in frames]
        assert FrameType.AUTHENTICATED not in [frame.type for frame in answers]
        closes = [header_of(frame, Close) for frame in answers if frame.type is FrameType.CLOSE]
        assert {close.code for close in closes} == {BY_NAME["same_node"].number}
        assert one.statistics().sessions == 0
        # When the other node is there, it is found.
        async with node("two", there, here):
            await one.cluster("mesh").wait_for(nodes=2, timeout=30)
