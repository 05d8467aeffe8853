"""The same wrong frames, over sockets: to a broker's own listener, while a client is served beside them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from meshq import Broker, Client, Consumer, connect, limits
from meshq.errors import MeshqError, RemoteProtocolError
from meshq.wire import BY_NUMBER, Close, Frame, FrameType, ReceiveBuffer, encode, error_of, header_of
from tests.wire._frames_strategy import Action, Mutation, Plan, mutations, plans
from tests.wire._mutations import apply
from tests.wire.test_wrong_frames import BATCH, BY_FRAMES, Tally, chunks

#: After so many wrong conversations a message of the client's goes through the broker.
SERVED_EVERY = 16
#: Longer than anything here takes on the slowest machine; the broker gives up a silent handshake after 5 s.
PATIENCE_S = 60.0

#: A conversation in which messages are settled, and every change of the tags that it names: few of those that are drawn
#: are about tags.
SETTLING = Plan(tuple(Action(name, 0, 9) for name in ("produce", "send", "consume", "settle")))
WRONG_TAGS = [Mutation("rows", len(SETTLING.render()) - 2, number % 8, number * 3) for number in range(BATCH)]


class Stranger:
    """A connection to the broker that speaks bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = ReceiveBuffer(limits.BODY_BYTES_MAX)
        self.heard: list[Frame] = []
        #: The broker has closed the connection while bytes were on their way to it.
        self.reset = False

    @classmethod
    async def come(cls, port: int) -> Stranger:
        return cls(await trio.open_tcp_stream("127.0.0.1", port))

    async def say(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            self.reset = True

    async def _hear(self) -> bool:
        try:
            data = await self._stream.receive_some()
        except trio.BrokenResourceError:
            self.reset = True
            return False
        self.heard += self._buffer.feed(data)
        return bool(data)

    async def delivered(self, channel: int, count: int) -> None:
        """Wait until so many messages have come on a channel."""
        while count > sum(f.count for f in self.heard if f.type is FrameType.DELIVER and f.channel == channel):
            assert await self._hear(), "the broker has ended a valid conversation"

    async def leave(self) -> str | None:
        """Say no more, hear the broker out; returns the entry with which it closed the connection, if it did."""
        try:
            await self._stream.send_eof()
        except trio.BrokenResourceError:
            self.reset = True
        while await self._hear():
            pass
        self._buffer.end()
        await self._stream.aclose()
        closes = [header_of(frame, Close) for frame in self.heard if frame.type is FrameType.CLOSE]
        if not closes:
            return None
        assert len(closes) == 1 and self.heard[-1].type is FrameType.CLOSE
        assert isinstance(error_of(closes[0].code, closes[0].text), MeshqError)
        return BY_NUMBER[closes[0].code].name


class Beside:
    """A client of the same broker, whose messages go through it all the while."""

    def __init__(self, client: Client, consumer: Consumer) -> None:
        self._client = client
        self._consumer = consumer
        self.served = 0

    async def serve(self) -> None:
        body = b"%d" % self.served
        await self._client.send("beside", body, durable=False)
        delivery = await self._consumer.receive()
        assert delivery is not None and delivery.body == body and not delivery.redelivered
        await delivery.ack(confirm=True)
        self.served += 1


def port_of(broker: Broker) -> int:
    return int(broker.urls[0].rpartition(":")[2])


@settings(max_examples=60)
@given(plans)
def test_a_valid_conversation_is_served_over_a_socket(plan: Plan) -> None:
    async def main() -> None:
        async with Broker("n", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
            stranger = await Stranger.come(port_of(broker))
            for step in plan.render():
                await stranger.delivered(step.frame.channel, step.after_tag)
                await stranger.say(encode(step.frame))
            refusal = await stranger.leave()
            assert (refusal, stranger.reset, broker.statistics().violations) == (None, False, 0)

    with_patience(main)


@pytest.mark.processes
def test_wrong_frames_get_typed_refusals_over_sockets_and_a_second_connection_is_served_throughout() -> None:
    tally = Tally()
    serial = itertools.count(1)
    seen: Counter[str] = Counter()

    @settings(max_examples=60)
    @example(SETTLING, WRONG_TAGS, 0)
    @given(plans, st.lists(mutations, min_size=BATCH, max_size=BATCH), st.integers(0, 2**16))
    def examples(plan: Plan, changes: list[Mutation], cut: int) -> None:
        async def main() -> None:
            async with (
                Broker("n", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker,
                connect(broker.urls[0]) as client,
                client.consumer("beside") as consumer,
            ):
                beside = Beside(client, consumer)
                violations = 0
                for mutation in changes:
                    note(f"{mutation}")
                    number = next(serial)
                    wrong = apply(plan.render(number.to_bytes(16, "big"), f"q{number}-"), mutation)
                    stranger = await Stranger.come(port_of(broker))
                    for chunk in chunks(b"".join(wrong.pieces) or b"\0", cut):
                        await stranger.say(chunk)
                    refusal = await stranger.leave()
                    tally.count(wrong, refusal)
                    seen["reset"] += stranger.reset
                    # What the stranger has heard of, the broker has counted.
                    before, violations = violations, broker.statistics().violations
                    if refusal is not None and refusal != "truncated":
                        entry = next(entry for entry in BY_NUMBER.values() if entry.name == refusal)
                        broke_a_rule = issubclass(entry.error, RemoteProtocolError)
                        assert violations - before == broke_a_rule, refusal
                    if number % SERVED_EVERY == 0:
                        await beside.serve()
                seen["served"] += beside.served
                assert client.statistics().connected == 1

        with_patience(main)

    examples()
    print(tally, dict(seen))
    assert tally.tried >= 2_800
    assert tally.semantic * 2 >= tally.tried
    assert seen["served"] * SERVED_EVERY >= tally.tried - SERVED_EVERY
    assert set(tally.refusals) >= {*BY_FRAMES, "bad_tag"}


def with_patience(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await main()

    trio.run(bounded)
