"""No async: a broker, a script that sends, and two worker threads that share its queue."""

import threading

from meshq.blocking import Broker, Delivery, connect

MEASUREMENTS = 2_000


def main() -> None:
    """In real life the broker is another program."""
    seen: list[int] = []
    done = threading.Event()

    def take(message: Delivery) -> None:
        """Work on one message, which is acknowledged when this ends."""
        seen.append(int(message.body))
        if len(seen) == MEASUREMENTS:
            done.set()

    with (
        Broker("hq", data_dir="data/hq", acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,  # any thread may use it, several at once
    ):
        workers = [threading.Thread(target=client.serve, args=("measurements", take)) for _ in range(2)]
        for worker in workers:
            worker.start()
        with client.producer("measurements") as producer:  # leaving the block waits for every confirm
            for number in range(MEASUREMENTS):
                producer.send(b"%d" % number, properties={"sensor": number % 7})
        done.wait()
        client.stop_serving()
        for worker in workers:
            worker.join()
    print(len(seen), "measurements taken,", len(set(seen)), "different")


if __name__ == "__main__":
    main()
