"""A Flask service that is its own broker: orders come by HTTP, are kept on disk, and are packed by a thread.

Run it with ``python examples/with_flask.py``.
"""

import threading
from typing import Any

from flask import Flask

from meshq.blocking import Broker, Client


def pack(client: Client, packed: list[str], stopping: threading.Event) -> None:
    """Work on orders until the service stops; one that is not done by then comes again."""
    with client.consumer("orders", window=10) as consumer:
        while not stopping.is_set():
            order = consumer.receive(timeout=0.1)
            if order is not None:
                packed.append(order.body.decode())
                order.ack()


def make_app(client: Client, packed: list[str]) -> Flask:
    """The service; its threads share one client."""
    app = Flask(__name__)

    @app.post("/orders/<name>")
    def order(name: str) -> Any:
        """Accepted means: it is on the disk."""
        client.send("orders", name.encode())
        return {"accepted": name}, 202

    @app.get("/orders")
    def orders() -> Any:
        """What waits, and what is done."""
        queue = client.queue("orders")
        return {"waiting": queue.ready + queue.delivering, "packed": len(packed)}

    return app


def main() -> None:
    """Serve until Ctrl-C."""
    packed: list[str] = []
    stopping = threading.Event()
    with Broker("shop", data_dir="data/shop") as broker, broker.client() as client:
        packer = threading.Thread(target=pack, args=(client, packed, stopping))
        packer.start()
        try:
            make_app(client, packed).run(port=8000)
        finally:
            stopping.set()
            packer.join()


if __name__ == "__main__":
    main()
