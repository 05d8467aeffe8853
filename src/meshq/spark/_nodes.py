"""The nodes of a cluster as a connector reaches them: one client for each, which stays at its node."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import attrs

from meshq.blocking import Client, ClientFactory
from meshq.client import ClientSettings, TopologyNode
from meshq.errors import (
    BrokenError,
    ConnectionBrokenError,
    MeshqError,
    NotActiveError,
    NotFoundError,
    SecurityError,
    SettingsError,
)
from meshq.settings import TLS
from meshq.spark._options_plan import Access

_log: Final = logging.getLogger("meshq.spark")
#: Spark's name for that folder.
_STREAM_FOLDER: Final = "streaming_job"
#: Seconds between two tries to reach a node.
_PAUSE_S: Final = 0.2
#: A node that does not answer for now, or that waits for its turn to serve.
AWAY: Final = (BrokenError, NotActiveError)


class NodeAddress(NamedTuple):
    """A node, and the URLs at which it may be: its own and that of its backup."""

    node: str
    urls: tuple[str, ...]


class NodeLink(NamedTuple):
    """A node with a client that is connected to it, and goes to its backup when that has taken over."""

    address: NodeAddress
    client: Client
    #: What ends the client.
    ending: ExitStack

    @property
    def node(self) -> str:
        """The id of the node."""
        return self.address.node

    @property
    def up(self) -> bool:
        """Whether it is connected now, and not to another node that has come to one of the URLs."""
        statistics = self.client.statistics()
        return statistics.state == "connected" and statistics.node_id.hex() == self.node

    @property
    def astray(self) -> bool:
        """Whether it is connected to another node that has come to one of the URLs, and so looks no further."""
        statistics = self.client.statistics()
        return statistics.state == "connected" and statistics.node_id.hex() != self.node


def missing_queue(links: Iterable[NodeLink], name: str) -> MeshqError:
    """Make the error of a queue that no node has."""
    for link in links:
        # Who may not look there learns nothing.
        with suppress(SecurityError, *AWAY):
            route = link.client.explain_route(name)
            if route.exists and route.routing == "multicast":
                allowed = f"the name of a queue: of this multicast address a durable subscription, as {name}::audit"
                return SettingsError("subscribe", name, allowed)
    return NotFoundError(
        f"no node has the queue {name!r}: subscribe names queues, not addresses; make it first, or, for a multicast "
        f"address, subscribe to a durable subscription of it, address::name"
    )


def _file(name: str | None) -> str | None:
    """A path of a file on this machine: as given, or where Spark has put a file of this bare name."""
    if name is None or "/" in name:
        return name
    from pyspark import SparkFiles

    there = Path(SparkFiles.get(name))
    # The process that has the cursors of a stream is told a folder of its own, below the one with the files.
    places = [there, there.parents[1] / name] if there.parent.name == _STREAM_FOLDER else [there]
    return str(next((place for place in places if place.exists()), name))


def _settings_of(access: Access) -> ClientSettings:
    """The settings of all clients, with the options of the URL.

    Raises:
        SettingsError: one is not allowed, or a file is missing.
    """
    given: dict[str, Any] = {"call_timeout": access.answer_s, "call_failover_timeout": access.answer_s}
    if access.user is not None:
        given["user"] = access.user
    if access.password is not None:
        given["password"] = access.password
    elif access.password_file is not None:
        try:
            given["password"] = Path(str(_file(access.password_file))).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            allowed = f"a file that can be read on each machine ({error.strerror})"
            raise SettingsError("passwordFile", access.password_file, allowed) from error
    if access.authorities is not None or access.certificate is not None:
        files = (access.certificate, access.key, access.authorities)
        certificate, key, authorities = map(_file, files)
        given["tls"] = TLS(certificate=certificate, key=key, authorities=authorities)
    return ClientFactory(access.url, **given).settings


class Brokers:
    """The brokers that the options lead to; used as ``with``.  Each node has one client, made when it is first seen."""

    def __init__(self, access: Access) -> None:
        self.access: Access = access
        self._settings = attrs.asdict(_settings_of(access), recurse=False) | {"use_topology": False}
        self._scheme = "tls" if access.url.lstrip("(").startswith("tls") else "tcp"
        self._links: dict[str, NodeLink] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all clients.  Twice is silent."""
        links, self._links = self._links, {}
        with ExitStack() as stack:
            for link in links.values():
                stack.push(link.ending)

    def addresses(self) -> dict[str, NodeAddress]:
        """The nodes of the cluster as a node that is connected knows them, or as one of the given URLs does.

        Raises:
            ConnectionBrokenError: none of these can be reached.
        """
        for link in self._links.values():
            if link.up and (told := link.client.topology()):
                return self._told(told, link.address.urls[0])
        given = _settings_of(self.access)
        with ClientFactory(self.access.url, **attrs.asdict(given, recurse=False)).connect() as client:
            statistics = client.statistics()
            own, node = f"{self._scheme}://{statistics.peer}", statistics.node_id.hex()
            told = client.topology()
        return self._told(told, own) if told else {node: NodeAddress(node, (own,))}

    def addresses_in_time(self) -> dict[str, NodeAddress]:
        """As ``addresses``; while no node serves it is asked again, until ``partitionTimeout`` is over.

        Raises:
            ConnectionBrokenError, NotActiveError: none serves.
        """
        until = time.monotonic() + self.access.reach_s
        told = False
        while True:
            try:
                return self.addresses()
            except AWAY as error:
                if time.monotonic() >= until:
                    raise
                if not told:
                    _log.warning("no node serves now, and is asked for %g s more: %s", self.access.reach_s, error)
                told = True
            time.sleep(_PAUSE_S)

    def _told(self, nodes: tuple[TopologyNode, ...], own: str) -> dict[str, NodeAddress]:
        """Nodes that were told of; the teller itself is also where it was reached."""
        found = {}
        for node in nodes:
            urls = [url for url in (node.primary, node.backup) if url]
            if node.distance == 0 and own not in urls:
                urls.insert(0, own)
            found[node.node_id] = NodeAddress(node.node_id, tuple(urls))
        return found

    def links(self) -> dict[str, NodeLink]:
        """Connect to the nodes that are new, or away and told to be elsewhere, or whose client has come to another
        node; return all that are connected now.

        Raises:
            ConnectionBrokenError: none can be reached.
            SecurityError: they do not let this user in.
        """
        for address in self.addresses().values():
            known = self._links.get(address.node)
            told = known is not None and not set(address.urls) <= set(known.address.urls)
            if known is None or known.astray or (told and not known.up):
                try:
                    self._links[address.node] = self._link(address)
                    if known is not None:
                        known.ending.close()
                except ConnectionBrokenError as error:
                    _log.warning("the node %s can't be reached now: %s", address.node, error)
        return {node: link for node, link in self._links.items() if link.up}

    def _link(self, address: NodeAddress, **changed: Any) -> NodeLink:
        """A client at a node.

        Raises:
            ConnectionBrokenError: the node is at none of its URLs.
        """
        failed: BaseException | None = None
        for number, url in enumerate(address.urls):
            # This one first; the others are of the same node, when its backup serves.
            others = [*address.urls[number:], *address.urls[:number]]
            where = url if len(others) == 1 else f"({','.join(others)})"
            settings = self._settings | {"load_balancing": "first_element"} | changed
            ending = ExitStack()
            try:
                client = ending.enter_context(ClientFactory(where, **settings).connect())
                if client.statistics().node_id.hex() == address.node:
                    return NodeLink(address, client, ending)
                failed = LookupError(f"another node is at {url}")
            except AWAY as error:
                failed = error
            ending.close()
        text = f"the node {address.node} is at none of its URLs: {', '.join(address.urls) or 'none is known'}"
        raise ConnectionBrokenError(text, outcome="not_done") from failed

    @contextmanager
    def reached(self, address: NodeAddress, what: str, **changed: Any) -> Iterator[Client]:
        """Connect a client to a node, whose URLs may change meanwhile, until ``partitionTimeout`` is over.

        ``what`` is wanted there.  ``changed``: settings of the client.

        Raises:
            ConnectionBrokenError: it was not reached; names the URLs.
            SecurityError: it does not let this user in.
        """
        until = time.monotonic() + self.access.reach_s
        tried: dict[str, None] = {}
        with ExitStack() as stack:
            while True:
                tried.update(dict.fromkeys(address.urls))
                try:
                    link = self._link(address, **changed)
                    break
                except ConnectionBrokenError as error:
                    if time.monotonic() >= until:
                        text = f"{what} is not reached on the node {address.node}; tried: {', '.join(tried)}"
                        raise ConnectionBrokenError(text, outcome="not_done") from error
                time.sleep(_PAUSE_S)
                address = self._found_again(address)
            stack.push(link.ending)
            yield link.client

    def _found_again(self, address: NodeAddress) -> NodeAddress:
        """Return the present address of a node, or the old address where no broker answers."""
        try:
            return self.addresses().get(address.node, address)
        except AWAY:
            return address
