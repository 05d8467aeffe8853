"""The nodes of a run: ports, starts, and knowledge of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from meshq.demo import _report_format as report
from meshq.demo._discovery import place_of
from meshq.demo._kill_plan import CLUSTER_WINDOW, CONSUMERS, WINDOW
from meshq.demo._member import Member, free_ports
from meshq.demo._options import Options
from meshq.demo._process import Child, DemoError
from meshq.demo._processes import STALL_SECONDS, Processes, StalledError
from meshq.demo._settings import ROAMS, STAYS, node_name

#: Ports are chosen anew so often when somebody else takes one of them before its node does.
PORT_ATTEMPTS: Final = 10
#: After a kill the port is asked for again so often, if somebody else has it for a moment.
PORT_SECONDS: Final = 0.1


class Nodes:
    """The nodes of a run, with their consumers.  ``data_dir``: where they keep their data."""

    def __init__(self, options: Options, data_dir: str, processes: Processes) -> None:
        self._options = options
        self._processes = processes
        self._data_dir = data_dir
        # Where nodes that discover find each other; empty: each node is told all ports.
        self._place = ""
        place, several = Path(data_dir), options.nodes > 1
        #: The nodes, by number from 1.
        self.members = [
            Member(number, str(place / node_name(number) if several else place))
            for number in range(1, options.nodes + 1)
        ]

    @property
    def clustered(self) -> bool:
        """Whether there are several."""
        return len(self.members) > 1

    @property
    def present(self) -> list[Member]:
        """The nodes that have not left for good."""
        return [member for member in self.members if not member.left]

    @property
    def consumers(self) -> list[Child]:
        """The consumers of all nodes."""
        return [consumer for member in self.members for consumer in member.consumers]

    def member(self, number: int) -> Member:
        """Return the node of a number."""
        return self.members[number - 1]

    def named(self, name: str) -> Member:
        """Return the node of a name."""
        (found,) = [member for member in self.members if node_name(member.number) == name]
        return found

    # -- starts

    async def choose_ports(self) -> None:
        """Choose the ports of all nodes, and the place where they find each other if they are not told the ports."""
        count = len(self.members)
        if self._options.discover is None:
            ports = await free_ports(count)
        else:
            *ports, port_of_group = await free_ports(2 * count + 1)
            self._place = place_of(self._options.discover, self._data_dir, port_of_group)
            for member, port in zip(self.members, ports[count:], strict=True):
                member.port_for_nodes = port
        for member, port in zip(self.members, ports, strict=False):
            member.port = port

    def start_broker(self, member: Member) -> None:
        """Start the broker of a node."""
        name = f"broker of node {member.number}" if self.clustered else "broker"
        if self._place:
            role, places = "finder", [self._place, str(member.port), str(member.port_for_nodes)]
        else:
            role, places = "broker", [str(other.port) for other in self.members]
        member.process = self._processes.start(name, role, member.data_dir, str(member.number), *places)
        self._processes.serves(member.process)

    def start_consumers(self) -> None:
        """Start the consumers of all nodes; where nodes leave, the last node's consumers follow the topology."""
        window = CLUSTER_WINDOW if self.clustered else WINDOW
        members = self.members if self.clustered else self.members * CONSUMERS
        for number, member in enumerate(members, 1):
            roams = ROAMS if self._options.moves and member is self.members[-1] else STAYS
            member.consumers.append(self._processes.start(f"consumer {number}", "consumer", str(window), roams))

    async def _ready_or_taken(self, *members: Member) -> bool:
        """Wait until these nodes serve, or have found their port taken; whether all serve."""
        brokers = [member.broker for member in members]
        ready, taken = self._processes.states.ready, self._processes.states.taken
        await self._processes.until(lambda: all(each in ready or each in taken for each in brokers), "brokers serve")
        for member in members:
            said = ready.get(member.broker)
            member.url, member.url_for_nodes = (said.url, said.for_nodes) if said is not None else ("", "")
        return all(member.url for member in members)

    async def all_ready(self) -> None:
        """Return when all nodes serve; start them anew on other ports if another process has taken one."""
        for _ in range(PORT_ATTEMPTS):
            if await self._ready_or_taken(*self.members):
                return
            await self._processes.dismiss(*(member.broker for member in self.members))
            await self.choose_ports()
            for member in self.members:
                self.start_broker(member)
        raise DemoError(f"{PORT_ATTEMPTS} times ports that were free were taken by others before the nodes had them")

    async def restart(self, member: Member) -> None:
        """Start a broker again on the same directory and, for clients, the same port; return when it serves.

        A node that discovers the others comes back for them at another port.
        """
        deadline, before = trio.current_time() + STALL_SECONDS, member.port_for_nodes
        while True:
            while before and member.port_for_nodes == before:
                (member.port_for_nodes,) = await free_ports(1)
            self.start_broker(member)
            if await self._ready_or_taken(member):
                return
            if trio.current_time() >= deadline:
                raise StalledError(f"port {member.port} of node {member.number} has been taken by somebody else")
            await trio.sleep(PORT_SECONDS)

    # -- what they know and hold

    async def all_met(self) -> None:
        """Return when every node knows every other one and all consumers: from then on each is dealt a share."""
        if not self.clustered:
            return
        met = self._processes.states.met
        met.clear()
        brokers = [member.broker for member in self.present]
        for broker in brokers:
            await broker.tell(report.AwaitMesh(len(brokers), len(self.consumers)))
        await self._processes.until(lambda: all(broker in met for broker in brokers), "all nodes know each other")

    async def ask_all(self) -> list[int]:
        """Ask each node for the number of its messages; a node that has left for good has none.

        The producer's node is asked first: messages go from there to the others, and stay there until they have
        arrived.  So none of these is missed that changes places in between.
        """
        return [0 if member.left else (await self._processes.ask(member.broker)).total for member in self.members]
