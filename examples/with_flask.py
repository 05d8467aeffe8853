"""A Flask service that is its own broker: orders come by HTTP, are kept on disk, and are packed by a thread.

Run it with ``python examples/with_flask.py``.
"""

import threading
from functools import partial
from typing import Any

from flask import Flask

from meshq import Message
from meshq.blocking import Broker, Client, Delivery


def pack(packed: list[str], order: Delivery) -> None:
    """Work on one order: acknowledged at the end, and given back if this raises."""
    packed.append(order.json()["name"])


def make_app(client: Client, packed: list[str]) -> Flask:
    """The service; its threads share one client."""
    app = Flask(__name__)

    @app.post("/orders/<name>")
    def order(name: str) -> Any:
        """Accepted means: it is on the disk."""
        client.send("orders", Message.json({"name": name}))
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
    with Broker("shop", data_dir="data/shop") as broker, broker.client() as client:
        packer = threading.Thread(target=client.serve, args=("orders", partial(pack, packed)))
        packer.start()
        try:
            make_app(client, packed).run(port=8000)
        finally:
            client.stop_serving()  # the order that is being packed is finished first
            packer.join()


if __name__ == "__main__":
    main()
