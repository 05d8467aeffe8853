"""Load on a broker that is killed now and then: transactions, large bodies, a backlog that is paged; and its account.

Each message says who sent it and as which one, and the rest of its body follows from that, so that a torn one is seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import trio

from meshq import Client, connect
from meshq.errors import MeshqError, TransactionRolledBackError

PLAIN, DONE, TRANSACTED, LARGE, PAGED = "plain", "done", "transacted", "large", "paged"
#: Where the messages of each worker may be.
QUEUES: Final = {PLAIN: (PLAIN, DONE), TRANSACTED: (TRANSACTED,), LARGE: (LARGE,), PAGED: (PAGED,)}
BODY_BYTES: Final = {PLAIN: 600, TRANSACTED: 900, LARGE: 300_000, PAGED: 4_000}
#: Messages of a transaction, and of a batch of the backlog.
TOGETHER: Final = 3
BATCH: Final = 50
#: Messages of each worker, at most: the disk of a test machine is no larger than that needs.
MOST: Final = {PLAIN: 20_000, TRANSACTED: 20_000, LARGE: 600, PAGED: 20_000}
PAUSE_S: Final = 0.02
#: A life lasts for a second: whoever waits longer between two attempts sees little of it.
QUICK: Final = {"initial_connect_attempts": 1_000, "retry_interval": 0.05, "max_retry_interval": 0.2}


def body_of(worker: str, number: int) -> bytes:
    """The body of a worker's message."""
    head = f"{worker}:{number}:".encode()
    size = BODY_BYTES[worker]
    block = hashlib.sha256(head).digest()
    return (head + block * (size // len(block) + 1))[:size]


class Account:
    """What was sent and what became of it, as JSON can keep it."""

    def __init__(self, kept: dict[str, Any] | None = None) -> None:
        kept = kept or {}
        #: The next number of each worker.
        self.next: dict[str, int] = {worker: kept.get("next", {}).get(worker, 0) for worker in QUEUES}
        self.confirmed: dict[str, set[int]] = {
            worker: set(kept.get("confirmed", {}).get(worker, ())) for worker in QUEUES
        }
        #: Of transactions that were surely not committed.
        self.refused: set[int] = set(kept.get("refused", ()))
        self.moved: int = kept.get("moved", 0)
        #: Set when something is confirmed; whoever waits for the next time puts a new one there.
        self.worked = trio.Event()

    def kept(self) -> dict[str, Any]:
        """The account as JSON can keep it."""
        confirmed = {worker: sorted(numbers) for worker, numbers in self.confirmed.items()}
        return {"next": self.next, "confirmed": confirmed, "refused": sorted(self.refused), "moved": self.moved}

    def confirm(self, worker: str, numbers: Iterable[int]) -> None:
        """Take note of messages that the broker has."""
        self.confirmed[worker].update(numbers)
        self.worked.set()

    def take(self, worker: str, count: int = 1) -> range:
        """Numbers that nobody has had."""
        first = self.next[worker]
        self.next[worker] += count
        return range(first, first + count)


class Load:
    """Workers with a client each, that come back after each kill and go on."""

    def __init__(self, url: str, account: Account, who: dict[str, Any]) -> None:
        self._url = url
        self._account = account
        self._who = who

    async def run(self) -> None:
        """Work until cancelled."""
        work = {PLAIN: self._plain, TRANSACTED: self._transact, LARGE: self._large, PAGED: self._page, DONE: self._move}
        async with trio.open_nursery() as nursery:
            for one in work.values():
                nursery.start_soon(self._keep, one)

    async def _keep(self, work: Callable[[Client], Awaitable[None]]) -> None:
        while True:
            try:
                async with connect(self._url, **self._who, **QUICK) as client:
                    await work(client)
            except MeshqError:
                await trio.sleep(0.1)

    async def fill(self, messages: int) -> None:
        """Send a backlog that memory has no room for."""
        async with connect(self._url, **self._who, **QUICK) as client:
            while len(self._account.confirmed[PAGED]) < messages:
                numbers = self._account.take(PAGED, BATCH)
                await client.send_many(PAGED, [body_of(PAGED, number) for number in numbers])
                self._account.confirm(PAGED, numbers)

    async def _plain(self, client: Client) -> None:
        while self._account.next[PLAIN] < MOST[PLAIN]:
            for number in self._account.take(PLAIN):
                await self._send(client, PLAIN, number)
            await trio.sleep(PAUSE_S)
        await trio.sleep_forever()

    async def _large(self, client: Client) -> None:
        while self._account.next[LARGE] < MOST[LARGE]:
            for number in self._account.take(LARGE):
                await self._send(client, LARGE, number)
            await trio.sleep(PAUSE_S * 5)
        await trio.sleep_forever()

    async def _send(self, client: Client, worker: str, number: int) -> None:
        try:
            await client.send(worker, body_of(worker, number))
        except MeshqError:
            # It may be there, or not: nothing is known.
            return
        self._account.confirm(worker, (number,))

    async def _page(self, client: Client) -> None:
        while self._account.next[PAGED] < MOST[PAGED]:
            numbers = self._account.take(PAGED, BATCH)
            try:
                await client.send_many(PAGED, [body_of(PAGED, number) for number in numbers])
            except MeshqError:
                continue
            self._account.confirm(PAGED, numbers)
            await trio.sleep(PAUSE_S)
        await trio.sleep_forever()

    async def _transact(self, client: Client) -> None:
        while self._account.next[TRANSACTED] < MOST[TRANSACTED]:
            numbers = self._account.take(TRANSACTED, TOGETHER)
            try:
                async with client.transaction() as tx:
                    for number in numbers:
                        await tx.send(TRANSACTED, body_of(TRANSACTED, number))
            except MeshqError as error:
                if error.outcome == "not_done":
                    self._account.refused.update(numbers)
                continue
            self._account.confirm(TRANSACTED, numbers)
            await trio.sleep(PAUSE_S)
        await trio.sleep_forever()

    async def _move(self, client: Client) -> None:
        """Take a message and send it on, in one transaction."""
        async with client.consumer(PLAIN, window=8) as consumer:
            while True:
                delivery = await consumer.receive(timeout=1)
                if delivery is None:
                    continue
                try:
                    async with client.transaction() as tx:
                        await tx.send(DONE, delivery.body)
                        await tx.ack(delivery)
                except TransactionRolledBackError:
                    continue
                self._account.moved += 1


class Verdict:
    """What was found at the end, held against the account."""

    def __init__(self) -> None:
        self.found: dict[str, dict[int, int]] = {worker: {} for worker in QUEUES}
        self.torn = 0
        self.messages = 0

    async def drain(self, url: str, who: dict[str, Any]) -> None:
        """Take everything that there is."""
        async with connect(url, **who, **QUICK) as client:
            for queue in (name for names in QUEUES.values() for name in names):
                async with client.consumer(queue, window=64) as consumer:
                    while True:
                        batch = await consumer.receive_many(64, timeout=0.3)
                        if batch:
                            for delivery in batch:
                                self._note(queue, await delivery.read())
                            await consumer.ack(*batch, confirm=True)
                            continue
                        statistics = await client.queue(queue)
                        if statistics.ready + statistics.delivering == 0:
                            break

    def _note(self, queue: str, body: bytes) -> None:
        self.messages += 1
        head = body.split(b":", 2)
        worker = head[0].decode("ascii", "replace")
        if worker not in QUEUES or queue not in QUEUES[worker] or body != body_of(worker, int(head[1])):
            self.torn += 1
            return
        numbers = self.found[worker]
        numbers[int(head[1])] = numbers.get(int(head[1]), 0) + 1

    def lost(self, account: Account) -> int:
        """Messages that were confirmed and are not there."""
        return sum(number not in self.found[worker] for worker in QUEUES for number in account.confirmed[worker])

    def doubled(self) -> int:
        """Messages that came more than once."""
        return sum(count > 1 for numbers in self.found.values() for count in numbers.values())

    def torn_transactions(self) -> int:
        """Transactions of which a part is there."""
        parts: dict[int, int] = {}
        for number in self.found[TRANSACTED]:
            parts[number // TOGETHER] = parts.get(number // TOGETHER, 0) + 1
        return sum(count != TOGETHER for count in parts.values())

    def undead(self, account: Account) -> int:
        """Messages of transactions that were not done, and are there."""
        return sum(number in self.found[TRANSACTED] for number in account.refused)
