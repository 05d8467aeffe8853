"""A broker in your process: send an order, take it, settle it.  Run it twice: the queue is where it was."""

import trio

from meshq import Broker


async def main() -> None:
    """Leave one order unsettled, so that the next run finds it."""
    async with Broker("shop", data_dir="data/shop") as broker, broker.client() as client:
        await client.create_queue("orders")
        for item in (b"umbrella", b"raincoat"):
            await client.send("orders", item, properties={"region": "emea"})

        async with client.consumer("orders") as consumer:
            order = await consumer.receive(timeout=5)
            if order is None:
                raise SystemExit("no order came")
            async with order:  # acknowledged at the end, and given back if this raises
                print(order.body.decode(), "for", order.properties["region"], "again" if order.redelivered else "")


if __name__ == "__main__":
    trio.run(main)
