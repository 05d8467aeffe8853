"""A broker that others reach over a socket, a pipelined producer, and two workers that share its queue."""

import trio

from meshq import Broker, Client, connect

MEASUREMENTS = 2_000


async def produce(client: Client) -> None:
    """Send without waiting for each confirm; leaving the block waits for all of them."""
    async with client.producer("measurements") as producer:
        for number in range(MEASUREMENTS):
            await producer.send(b"%d" % number, properties={"sensor": number % 7}, duplicate_id=f"day-1/{number}")


async def work(url: str, seen: list[int]) -> None:
    """Take what comes, in batches, until nothing comes for a second."""
    async with connect(url) as client, client.consumer("measurements", window=500) as consumer:
        while batch := await consumer.receive_many(200, timeout=1):
            seen += [int(message.body) for message in batch]
            await consumer.ack(*batch, confirm=True)


async def main() -> None:
    """In real life these are three programs."""
    seen: list[int] = []
    async with Broker("hq", data_dir="data/hq", acceptors=["tcp://127.0.0.1:0"]) as broker:
        url = broker.urls[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, url, seen)
            nursery.start_soon(work, url, seen)
            async with connect(url) as client:
                await produce(client)
    print(len(seen), "measurements taken,", len(set(seen)), "different")


if __name__ == "__main__":
    trio.run(main)
