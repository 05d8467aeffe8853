"""What a client promises of a failover, with a broker that is killed while it works: each promise as a whole."""

from __future__ import annotations

import random
import runpy
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest
import trio

from meshq import (
    Client,
    ConnectionBrokenError,
    DuplicateError,
    NotFoundError,
    StaleDeliveryError,
    TransactionRolledBackError,
    UnblockedError,
)
from meshq.client import ConnectionEvent, Disconnected, FailedOver, Reattached
from meshq.settings import Acceptor
from tests.client._waiting import Result, until
from tests.node.lives import lives
from tests.node.test_transactions import clean, everything
from tests.node.wires import CALL_S, Wires, wires
from tests.process import End

KILLS: tuple[End, ...] = ("killed", "power")
EXAMPLE = Path(__file__).parents[2] / "examples" / "once_and_only_once.py"
Lost = Literal["request", "reply"]
LOST: tuple[Lost, ...] = ("request", "reply")
XID = b"order-7"


async def renewed(client: Client, times: int = 1) -> None:
    """A client has a session in the next life."""
    await until(lambda: client.statistics().renewed == times)


# -- once and only once


class Kills:
    """A broker is killed at random, as long as there is work; what it struck is counted."""

    def __init__(self, seed: int, at: Wires) -> None:
        self._rng = random.Random(seed)
        self._at = at
        self.doing = "nothing"
        self.struck: Counter[str] = Counter()

    async def run(self, count: int = 24) -> None:
        """Kill so often; what was done just before is often not heard of."""
        for _ in range(count):
            await trio.sleep(self._rng.uniform(0.01, 0.1))
            if self._rng.random() < 0.7:
                self._at.lose(self._rng.choice([*LOST, "reply"]))
                await trio.sleep(self._rng.uniform(0, 0.02))
            self.struck[self.doing] += 1
            await self._at.again(self._rng.choice(KILLS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_two_hundred_messages_come_through_any_number_of_random_kills_once_each(seed: int) -> None:
    """Sent, passed on and acknowledged in transactions; whatever is not known is repeated with its duplicate id."""
    bodies = [b"%d" % number for number in range(200)]
    outcomes: Counter[str] = Counter()
    stored: set[bytes] = set()

    async def once(client: Client, address: str, body: bytes) -> None:
        while True:
            try:
                async with client.transaction() as tx:
                    await tx.send(address, body, duplicate_id=body)
            except TransactionRolledBackError as error:
                outcomes[error.outcome] += 1
            except DuplicateError:
                outcomes["done before"] += 1
                return
            else:
                return

    async def produce(client: Client) -> None:
        for body in bodies:
            await once(client, "in", body)

    async with wires() as at, at.client(max_retry_interval=0.05) as client:
        kills = Kills(seed, at)
        async with trio.open_nursery() as nursery, client.consumer("in", window=20) as consumer:
            nursery.start_soon(kills.run)
            nursery.start_soon(produce, client)
            while (delivery := await consumer.receive(timeout=2)) is not None:
                kills.doing = "work"
                try:
                    async with client.transaction() as tx:
                        if delivery.body not in stored:
                            await tx.send("out", delivery.body, duplicate_id=delivery.body)
                        await tx.ack(delivery)
                        await trio.sleep(0.004)
                        kills.doing = "commit"
                except (TransactionRolledBackError, StaleDeliveryError) as error:
                    outcomes[error.outcome] += 1
                    if error.outcome == "unknown":
                        # If its work was not done, its message comes again.
                        await once(client, "out", delivery.body)
                except DuplicateError:
                    # Its message comes again, to be acknowledged only.
                    outcomes["done before"] += 1
                    stored.add(delivery.body)
                kills.doing = "nothing"
        assert sorted(await everything(client, "out")) == sorted(bodies)
        assert await everything(client, "in") == []
        clean(at.node)
    # The broker died in the middle of a commit, and of what nobody knew some was done.
    assert kills.struck.total() == 24
    assert kills.struck["commit"]
    assert outcomes["unknown"] and outcomes["done before"]


class Shop:
    """What the example stops in the middle of its work; here it is killed."""

    def __init__(self, nursery: trio.Nursery, at: Wires) -> None:
        self.stop = self
        self.kills = 0
        self._nursery = nursery
        self._at = at

    def set(self) -> None:
        """Now of all times."""
        self.kills += 1
        self._nursery.start_soon(self._at.again, KILLS[self.kills % 2])


@pytest.mark.slow
async def test_the_example_undoes_what_is_its_own_and_goes_on_through_kills_and_duplicates() -> None:
    work = runpy.run_path(str(EXAMPLE), run_name="example")["work"]
    bodies = [b"%d" % number for number in range(200)]
    async with wires() as at, at.client(max_retry_interval=0.1) as client, trio.open_nursery() as nursery:
        await client.send_many("orders", bodies)
        # Somebody has answered these before.
        for body in bodies[:5]:
            await client.send("invoices", b"for " + body, duplicate_id=body)
        shop = Shop(nursery, at)
        again = await work(client, shop)
        assert shop.kills >= 5
        assert again >= 5
        assert sorted(await everything(client, "invoices")) == sorted(b"for " + body for body in bodies)
        assert await everything(client, "orders") == []
        clean(at.node)


# -- what was in flight


@pytest.mark.parametrize("end", KILLS)
@pytest.mark.parametrize("lost", LOST)
async def test_a_session_made_anew_knows_nothing_of_the_sends_and_acknowledgements_of_the_one_before(
    lost: Lost, end: End
) -> None:
    async with wires() as at, at.client(resend=False) as client, client.consumer("in") as consumer:
        await client.send("out", b"0")
        await client.send_many("in", [b"settled", b"in flight"])
        settled, open_one = await consumer.receive_many(2, timeout=1)
        await settled.ack(confirm=True)
        sent, acked = Result(), Result()
        async with trio.open_nursery() as nursery:
            at.lose(lost)
            nursery.start_soon(sent.of, client.send, "out", b"x")
            nursery.start_soon(acked.of, lambda: open_one.ack(confirm=True))
            await trio.sleep(CALL_S)
            assert not sent.done and not acked.done
            await at.again(end)
        assert isinstance(acked.error, UnblockedError) and acked.error.outcome == "unknown"
        # Of a send the next life may know that it was stored.
        assert lost == "reply" or (isinstance(sent.error, UnblockedError) and sent.error.outcome == "unknown")
        assert lost == "request" or sent.error is None
        assert client.statistics().renewed == 1
        # What was done has been done, though nobody was told; what was not comes again, and says so.
        again = await consumer.receive(timeout=0.5)
        if lost == "request":
            assert again is not None and again.body == b"in flight" and again.redelivered
        else:
            assert again is None
        assert await everything(client, "out") == ([b"0"] if lost == "request" else [b"0", b"x"])


CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "create_queue": lambda client: client.create_queue("new"),
    "delete_queue": lambda client: client.delete_queue("old"),
    "purge_queue": lambda client: client.purge_queue("full"),
    "queue": lambda client: client.queue("full"),
    "queues": lambda client: client.queues(),
    "create_address": lambda client: client.create_address("new.address", routing="multicast"),
    "flush": lambda client: client.flush(),
    "recover": lambda client: client.recover(),
    "send": lambda client: client.send("full", b"y", duplicate_id="y"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("lost", LOST)
async def test_a_call_that_waits_through_a_kill_raises_at_once_and_may_be_made_again(lost: Lost, name: str) -> None:
    async with wires() as at, at.client(resend=False) as client:
        await client.create_queue("old")
        await client.send("full", b"x")
        result = Result()
        async with trio.open_nursery() as nursery:
            at.lose(lost)
            nursery.start_soon(result.of, CALLS[name], client)
            await trio.sleep(CALL_S)
            assert not result.done
            await at.again()
            began = trio.current_time()
            await until(lambda: result.done)
        assert trio.current_time() - began < 1
        if (name, lost) == ("send", "reply"):
            # The next life knows what was stored of a producer.
            assert result.error is None
        else:
            assert isinstance(result.error, UnblockedError)
            assert result.error.outcome == "unknown"
        # The caller decides to call again: the same client does it, in its new session.
        try:
            await CALLS[name](client)
        except NotFoundError:
            assert (name, lost) == ("delete_queue", "reply")
        assert client.statistics().renewed == 1
        changed = {"create_queue": {"full", "old", "new"}, "delete_queue": {"full"}}
        assert set(await client.queues()) == changed.get(name, {"full", "old"})
        count = 0 if name == "purge_queue" else 2 if name == "send" else 1
        assert (await client.queue("full")).ready == count


# -- transactions


@pytest.mark.parametrize("end", KILLS)
@pytest.mark.parametrize("work", ["sent", "acknowledged", "both"])
async def test_a_transaction_that_has_done_something_before_a_kill_can_only_be_rolled_back(work: str, end: End) -> None:
    async with wires() as at, at.client() as client, client.consumer("in") as consumer:
        await client.send("in", b"1")
        delivery = await consumer.receive(timeout=1)
        assert delivery is not None
        tx = await client.transaction().__aenter__()
        if work != "acknowledged":
            await tx.send("out", b"x", duplicate_id="d")
        if work != "sent":
            await tx.ack(delivery)
        await client.flush()
        await at.again(end)
        await renewed(client)
        with pytest.raises(TransactionRolledBackError) as caught:
            await tx.commit()
        assert caught.value.outcome == "not_done"
        assert tx.state == "rolled back"
        # Nothing of it is there, and the same session does it again.
        again = await consumer.receive(timeout=1)
        assert again is not None and again.body == b"1" and again.redelivered
        async with client.transaction() as tx:
            await tx.send("out", b"x", duplicate_id="d")
            await tx.ack(again)
        await at.again(end)
        await renewed(client, 2)
        assert await everything(client, "out") == [b"x"]
        assert await consumer.receive(timeout=0.5) is None
        clean(at.node)


@pytest.mark.parametrize("end", KILLS)
@pytest.mark.parametrize("verdict", ["commit", "rollback"])
async def test_what_was_acknowledged_before_a_prepare_comes_again_only_after_a_rollback(verdict: str, end: End) -> None:
    bodies = [b"%d" % number for number in range(50)]
    async with wires() as at, at.client() as client, client.consumer("in") as consumer:
        await client.send_many("in", bodies)
        async with client.transaction(XID) as tx:
            await tx.ack(*await consumer.receive_many(50, timeout=1))
            await tx.prepare()
        await at.again(end)
        await renewed(client)
        assert await consumer.receive(timeout=0.5) is None
        await getattr(client, verdict)(XID)
        await at.again(end)
        await renewed(client, 2)
        again = [delivery.body for delivery in await consumer.receive_many(50, timeout=0.5)]
        assert again == ([] if verdict == "commit" else bodies)
        clean(at.node)


@pytest.mark.parametrize("end", KILLS)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("how", ["send", "commit"])
async def test_a_send_that_is_repeated_with_its_id_after_a_kill_is_stored_once(how: str, lost: Lost, end: End) -> None:
    async def send(client: Client) -> None:
        if how == "send":
            await client.send("out", b"x", duplicate_id="d")
        else:
            async with client.transaction() as tx:
                await tx.send("out", b"x", duplicate_id="d")

    async with wires() as at, at.client(resend=False) as client:
        await client.send("out", b"0")
        result = Result()
        async with trio.open_nursery() as nursery:
            at.lose(lost)
            nursery.start_soon(result.of, send, client)
            await trio.sleep(CALL_S)
            # The broker has done it, or has not heard of it: the client can't know.
            assert at.node.broker.statistics().ready == 1 + (lost == "reply")
            await at.again(end)
        if how == "commit":
            assert isinstance(result.error, TransactionRolledBackError)
        else:
            assert isinstance(result.error, UnblockedError) == (lost == "request")
        if how == "commit" and lost == "reply":
            with pytest.raises(DuplicateError):
                await send(client)
        else:
            await send(client)
        assert await everything(client, "out") == [b"0", b"x"]


# -- who is told


async def test_an_application_fails_over_by_itself_to_another_broker() -> None:
    told: list[ConnectionEvent] = []
    other = {"acceptors": [Acceptor("tcp://hq:5001", insecure=True)]}
    async with wires() as at, lives(env=at.node.env, data_dir="/data/other", name="other", **other):
        client = at.client(reconnect_attempts=0)
        events = client.events()
        with pytest.raises(ConnectionBrokenError):
            async with client:
                await client.send("q", b"1")
                await at.node.end("killed")
                async for event in events:
                    told.append(event)
        assert isinstance(told[-1], Disconnected) and told[-1].final
        async with at.client("tcp://hq:5001?insecure=true", reconnect_attempts=0) as successor:
            await successor.send("q", b"2")
            assert await everything(successor, "q") == [b"2"]
        # The one that was lost has not tried again.
        assert len(at.dials.dialed_at) == 2
        await at.node.start()


async def test_a_session_tells_its_own_watcher_once_and_nobody_elses() -> None:
    async with wires() as at, at.client() as client, client.session() as second:
        watched, quiet = second.events(), client.events()
        at.dials.streams[1].close()
        await until(lambda: second.statistics().resumed == 1)
        await at.again()
        await renewed(client)
        await renewed(second)
    kinds = [[type(event) for event in [event async for event in stream]] for stream in (watched, quiet)]
    assert kinds == [[Disconnected, Reattached, Disconnected, FailedOver], [Disconnected, FailedOver]]
