"""asyncio: a broker, a task that sends, and two tasks that share its queue."""

import asyncio

from meshq.aio import Broker, Client, connect

MEASUREMENTS = 2_000


async def work(client: Client, seen: list[int]) -> None:
    """Take what comes, in batches, until nothing comes for a second."""
    async with client.consumer("measurements", window=500) as consumer:
        while batch := await consumer.receive_many(200, timeout=1):
            seen += [int(message.body) for message in batch]
            await consumer.ack(*batch, confirm=True)


async def main() -> None:
    """In real life the broker is another program."""
    seen: list[int] = []
    async with (
        Broker("hq", data_dir="data/hq", acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(2):
            group.create_task(work(client, seen))
        async with client.producer("measurements") as producer:  # leaving the block waits for every confirm
            for number in range(MEASUREMENTS):
                await producer.send(b"%d" % number, properties={"sensor": number % 7})
    print(len(seen), "measurements taken,", len(set(seen)), "different")


asyncio.run(main())
