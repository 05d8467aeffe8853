"""Answer every order once and only once, while the broker stops and starts again in the middle of the work.

Three rules do it:

1. what is read and what is sent belong to one transaction;
2. every message sent has a duplicate id that follows from the message read, and is the same each time;
3. a transaction that was rolled back, or of which nobody knows, is begun anew with the order when that comes again.
"""

import trio

from meshq import Broker, Client, DuplicateError, TransactionRolledBackError, connect

ORDERS = 200


class Shop:
    """A broker that stops and starts again when it is told to."""

    def __init__(self) -> None:
        self.stop = trio.Event()
        self.closed = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """One life after the other, on the same directory."""
        while not self.closed:
            self.stop = trio.Event()
            async with Broker("shop", data_dir="shop-data"):
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await self.stop.wait()


async def work(client: Client, shop: Shop) -> int:
    """Answer all orders; returns how often an answer was begun anew."""
    again = seen = 0
    answered: set[bytes] = set()
    async with client.consumer("orders", window=10) as consumer:
        while (order := await consumer.receive(timeout=3)) is not None:
            seen += 1
            try:
                async with client.transaction() as tx:
                    if order.body not in answered:
                        await tx.send("invoices", b"for " + order.body, duplicate_id=order.body)
                        answered.add(order.body)
                    await tx.ack(order)
                    if seen % 40 == 0:
                        # Now of all times: is it done or not?  Nobody can know yet.
                        shop.stop.set()
            except TransactionRolledBackError:
                # Undo what is our own; the order comes again, unless its transaction was committed after all.
                answered.discard(order.body)
                again += 1
            except DuplicateError:
                # The invoice stands there already, and stays noted: when the order comes again, only that is settled.
                again += 1
    return again


async def main() -> None:
    shop = Shop()
    async with trio.open_nursery() as nursery:
        await nursery.start(shop.run)
        async with connect("inproc://shop", max_retry_interval=0.1) as client:
            await client.send_many("orders", [b"%d" % number for number in range(ORDERS)])
            again = await work(client, shop)
            invoices: list[bytes] = []
            async with client.consumer("invoices", ack="auto") as consumer:
                while batch := await consumer.receive_many(100, timeout=3):
                    invoices += [invoice.body for invoice in batch]
        shop.closed = True
        shop.stop.set()
    once = sorted(invoices) == sorted(b"for %d" % number for number in range(ORDERS))
    print(f"{len(invoices)} invoices for {ORDERS} orders, each of them once: {once}; begun anew: {again > 0}")


if __name__ == "__main__":
    trio.run(main)
