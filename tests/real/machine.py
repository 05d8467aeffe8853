"""A machine of a laboratory: one broker in a network namespace of its own, which does what the laboratory says.

``python -m tests.real.machine NAME ADDRESS PORT DIRECTORY`` in the namespace; commands come in lines, and each is
answered by a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import trio

from meshq import BroadcastGroup, Broker, Client, ClusterConnection, DiscoveryGroup, Message, UDPMulticast

#: The interface of the machine in the laboratory's network.
INTERFACE = "lan"
QUEUE = "q"
#: Seconds for everything that a command waits for.
PATIENCE_S = 30.0


def configure(address: str) -> None:
    """Give the interfaces of this namespace their addresses; groups are in the laboratory's network, too."""
    for command in (
        "ip link set lo up",
        f"ip addr add {address}/24 dev {INTERFACE}",
        f"ip link set {INTERFACE} up",
        f"ip route add 224.0.0.0/4 dev {INTERFACE}",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)


def broker(name: str, address: str, port: int, directory: str) -> Broker:
    """The broker of the machine, which is told nothing but a multicast group."""
    lan = UDPMulticast("231.7.7.7", port, bind_address=address)
    # Nobody else is in this network.
    url = f"tcp://{address}:61616?insecure=true"
    mesh = ClusterConnection(
        "mesh",
        connector="me",
        discovery=DiscoveryGroup("lan", lan, secret="ours"),
        user="u",
        password="p",
        retry_interval=0.1,
        max_retry_interval=0.5,
        check_period=0.5,
        connection_ttl=2.0,
    )
    announcing = BroadcastGroup("lan", lan, connectors=["me"], broadcast_period=0.2, secret="ours")
    return Broker(
        name,
        data_dir=f"{directory}/{name}",
        acceptors=[url],
        connectors={"me": url},
        services=[announcing, mesh],
        queues=[QUEUE],
    )


class Machine:
    """The broker and its one consumer."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self._got: list[int] = []

    async def wait(self, nodes: str, consumers: str = "0") -> None:
        """Wait for nodes, and for consumers of the queue on all of them."""
        cluster = self._broker.cluster("mesh")
        await cluster.wait_for(nodes=int(nodes), queue=QUEUE, consumers=int(consumers), timeout=PATIENCE_S)

    async def states(self) -> list[str]:
        """How the others are."""
        return sorted(peer.state for peer in self._broker.cluster("mesh").peers())

    async def send(self, first: str, stop: str) -> None:
        """Send numbers, each confirmed."""
        async with self._broker.client() as client:
            await client.send_many(QUEUE, [Message(b"%d" % number) for number in range(int(first), int(stop))])

    async def consume(self) -> None:
        """Receive from now on."""

        async def consume(client: Client, task_status: trio.TaskStatus[None]) -> None:
            async with client, client.consumer(QUEUE) as consumer:
                task_status.started()
                async for delivery in consumer:
                    await delivery.ack(confirm=True)
                    self._got.append(int(delivery.body))

        async def begin(*, task_status: trio.TaskStatus[None]) -> None:
            await consume(self._broker.client(), task_status)

        await self._nursery.start(begin)

    async def got(self, count: str) -> list[int]:
        """What was received, once it is so much, or after a while."""
        with trio.move_on_after(PATIENCE_S):
            while len(self._got) < int(count):  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.05)
        await trio.sleep(0.5)
        return self._got

    async def leave(self) -> int:
        """Hand over all that is here to another node; how many messages went."""
        async with self._broker.drain() as drain:
            pass
        return drain.moved


async def main(name: str, address: str, port: str, directory: str) -> None:
    """Do what comes in, until nothing comes any more."""
    answer({"ready": name})
    lines = trio.wrap_file(sys.stdin)
    # The interface is here now.
    await lines.readline()
    configure(address)
    async with broker(name, address, int(port), directory) as made, trio.open_nursery() as nursery:
        machine = Machine(made, nursery)
        answer({"serves": name})
        async for line in lines:
            command, *arguments = line.split()
            value: Any = await getattr(machine, command)(*arguments)
            answer({command: value})
        nursery.cancel_scope.cancel()


def answer(value: dict[str, Any]) -> None:
    """Write an answer."""
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
