"""Large messages that are broken off in the middle: what is left of them, what goes on, and what is said of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from meshq import Client, UnblockedError
from meshq.address import Target
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.queue._run import StoredRun
from qa.matrix.sending import Sending
from qa.matrix.stage import House
from tests.broker.kit import turns
from tests.node.lives import Lives, lives
from tests.node.test_large_messages import BLOCK, BODY, files, one, quiet
from tests.process import ENDS, End


async def test_a_cancelled_send_leaves_nothing() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield BODY
        await trio.sleep_forever()

    async with lives() as life, life.client() as client:
        with trio.move_on_after(5):
            await client.send("q", stuck())
        await quiet()
        assert files(life) == []
        await client.send("q", b"next")
        assert await one(client) == b"next"


async def test_a_client_that_goes_in_the_middle_leaves_nothing() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield BODY
        await trio.sleep_forever()

    async def live(life: Lives) -> None:
        async with life.client() as client:
            await client.send("q", stuck())

    async with lives() as life, trio.open_nursery() as nursery:
        nursery.start_soon(live, life)
        await quiet()
        assert [name.endswith(".part") for name in files(life)] == [True]
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await quiet()
            assert files(life) == []


async def test_what_a_crash_leaves_of_an_upload_goes_at_the_next_start() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield BODY
        await trio.sleep(10)

    async with lives() as life, life.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(_unblocked, client, stuck())
        await quiet()
        (part,) = files(life)
        assert part.endswith(".part")
        await life.again(killed=True)
        await quiet()
        assert part not in files(life)


async def _unblocked(client: Client, source: AsyncIterator[bytes]) -> None:
    with pytest.raises(UnblockedError) as caught:
        await client.send("q", source)
    assert caught.value.outcome == "not_done"


@pytest.mark.parametrize("end", ENDS)
async def test_a_broker_that_goes_in_the_middle_gets_the_body_again_if_it_can_be_had_again(end: End) -> None:
    class Slow:
        """Pieces that can be had again; the first time the broker goes in the middle of them."""

        begun = 0

        async def __aiter__(self) -> AsyncIterator[bytes]:
            self.begun += 1
            yield BODY[: 2 * BLOCK]
            if self.begun == 1:
                await trio.sleep(10)
            yield BODY[2 * BLOCK :]

    source = Slow()
    async with lives(queues=["q"]) as life, life.client() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "q", source)
            await quiet()
            await life.again(end=end)
        assert source.begun == 2
        assert await one(client) == BODY
        assert (await client.queue("q")).ready == 0
        await quiet()
        assert files(life) == []


class Once:
    """Pieces that can't be had again."""

    def __init__(self) -> None:
        self.given = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        self.given += 1
        if self.given > 4:
            raise StopAsyncIteration
        return BODY[: BLOCK // 2]


@pytest.mark.parametrize("stored", [False, True])
async def test_a_message_whose_confirm_was_lost_is_asked_about_and_its_body_sent_again_only_if_need_be(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker dies after it has the message, or before: in doubt, but the next life knows."""
    async with lives(queues=["q"]) as life, life.client() as client:
        place, life_ends = Ingress.place, trio.Event()

        def dying(ingress: Ingress, run: StoredRun, target: Target, kinds: int, then: Callable[[], None]) -> None:
            if run.body is None or life_ends.is_set():
                place(ingress, run, target, kinds, then)
                return
            life_ends.set()
            if stored:
                place(ingress, run, target, kinds, lambda: None)
            else:
                # It is as if the frame had never come.
                run.body.refs += 1

        monkeypatch.setattr(Ingress, "place", dying)
        sent = []

        async def send() -> None:
            await client.send("q", BODY)
            sent.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await life_ends.wait()
            await quiet()
            assert not sent
            await life.again(killed=True)
        assert sent
        assert (await client.queue("q")).ready == 1
        await quiet()
        assert len(files(life)) == 1
        assert await one(client) == BODY


async def test_a_body_that_cannot_be_had_again_says_that_nothing_was_done() -> None:
    async with lives(queues=["q"]) as life, life.client() as client:
        source = Once()
        await client.send("q", source)
        assert (await one(client)) == BODY[: BLOCK // 2] * 4
        caught: list[UnblockedError] = []

        async def send() -> None:
            try:
                await client.send("q", Stopping())
            except UnblockedError as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await quiet()
            await life.again(killed=True)
        assert [error.outcome for error in caught] == ["not_done"]
        assert (await client.queue("q")).ready == 0


class Stopping(Once):
    """It stands still after a while."""

    async def __anext__(self) -> bytes:
        if self.given == 2:
            await trio.sleep(10)
        return await super().__anext__()


async def test_without_resend_a_send_that_was_cut_off_says_so() -> None:
    async with lives(queues=["q"]) as life, life.client(resend=False) as client:
        caught: list[UnblockedError] = []

        async def send() -> None:
            try:
                await client.send("q", Stopping())
            except UnblockedError as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await quiet()
            await life.again(killed=True)
        assert [error.outcome for error in caught] == ["not_done"]


async def test_a_body_and_a_producer_that_wait_for_the_link_are_opened_in_the_order_of_their_channels() -> None:
    async with House({}, durable=True, tcp=True, sending=Sending()).life() as stage, stage.another() as client:
        session, link = client._session, client._session.stream.link
        session.stream.link = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "q", bytes(300_000))
            await turns()
            nursery.start_soon(client.send, "other", b"small")
            await turns()
            session.stream.link = link
            session.send_queue.resume()
            session.pump()
            session.stream.flush()
        assert client.statistics().resumed == client.statistics().renewed == 0
        assert [(await stage.client.queue(name)).ready for name in ("q", "other")] == [1, 1]
