"""No async: a broker, a script that sends, and two worker threads that share its queue."""

import threading

from meshq.blocking import Broker, Client, connect

MEASUREMENTS = 2_000


def work(client: Client, seen: list[int]) -> None:
    """Take what comes, in batches, until nothing comes for a second."""
    with client.consumer("measurements", window=500) as consumer:
        while batch := consumer.receive_many(200, timeout=1):
            seen += [int(message.body) for message in batch]
            consumer.ack(*batch, confirm=True)


def main() -> None:
    """In real life the broker is another program."""
    seen: list[int] = []
    with (
        Broker("hq", data_dir="data/hq", acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,  # any thread may use it, several at once
    ):
        workers = [threading.Thread(target=work, args=(client, seen)) for _ in range(2)]
        for worker in workers:
            worker.start()
        with client.producer("measurements") as producer:  # leaving the block waits for every confirm
            for number in range(MEASUREMENTS):
                producer.send(b"%d" % number, properties={"sensor": number % 7})
        for worker in workers:
            worker.join()
    print(len(seen), "measurements taken,", len(set(seen)), "different")


if __name__ == "__main__":
    main()
