"""A broker that others reach over a socket, a pipelined producer, and two workers that share its queue."""

import trio

from meshq import Broker, Client, Delivery, connect

MEASUREMENTS = 2_000


async def produce(client: Client) -> None:
    """Send without waiting for each confirm; leaving the block waits for all of them."""
    async with client.producer("measurements") as producer:
        for number in range(MEASUREMENTS):
            await producer.send(b"%d" % number, properties={"sensor": number % 7}, duplicate_id=f"day-1/{number}")


async def work(url: str, seen: list[int], done: trio.Event) -> None:
    """Take what comes; each message is acknowledged when its handler ends."""

    async def take(message: Delivery) -> None:
        seen.append(int(message.body))
        if len(seen) == MEASUREMENTS:
            done.set()

    async with connect(url) as client:
        await client.serve("measurements", take, window=500)


async def main() -> None:
    """In real life these are three programs."""
    seen: list[int] = []
    done = trio.Event()
    async with Broker("hq", data_dir="data/hq", acceptors=["tcp://127.0.0.1:0"]) as broker:
        url = broker.urls[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, url, seen, done)
            nursery.start_soon(work, url, seen, done)
            async with connect(url) as client:
                await produce(client)
            await done.wait()
            nursery.cancel_scope.cancel()  # a worker settles what it has begun
    print(len(seen), "measurements taken,", len(set(seen)), "different")


if __name__ == "__main__":
    trio.run(main)
