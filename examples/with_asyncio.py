"""asyncio: a broker, a task that sends, and two tasks that share its queue."""

import asyncio

from meshq.aio import Broker, Delivery, connect

MEASUREMENTS = 2_000


async def main() -> None:
    """In real life the broker is another program."""
    seen: list[int] = []
    done = asyncio.Event()

    async def take(message: Delivery) -> None:
        """Work on one message, which is acknowledged when this ends."""
        seen.append(int(message.body))
        if len(seen) == MEASUREMENTS:
            done.set()

    async with (
        Broker("hq", data_dir="data/hq", acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(2):
            group.create_task(client.serve("measurements", take, window=500))
        async with client.producer("measurements") as producer:  # leaving the block waits for every confirm
            for number in range(MEASUREMENTS):
                await producer.send(b"%d" % number, properties={"sensor": number % 7})
        await done.wait()
        client.stop_serving()
    print(len(seen), "measurements taken,", len(set(seen)), "different")


asyncio.run(main())
