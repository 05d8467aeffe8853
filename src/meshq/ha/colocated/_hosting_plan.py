"""Whether a node runs a backup for another one, under which name, and at which places; plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from meshq.endpoint import Endpoint
from meshq.errors import RefusedError, SettingsError
from meshq.ha.colocated._backup_request_format import BackupRequest
from meshq.ids import IDENTITY_BYTES

#: What the names of backups begin with; their number follows.
PREFIX: Final = "colocated_backup_"
#: The connector of a backup that leads to its host, within the process.
HOST_CONNECTOR: Final = "colocated_host"
_PORT_MAX: Final = 65_535


def moved_url(url: str, name: str, offset: int) -> str:
    """Return a URL of a host as it is for a backup: with a higher port, or in the process with the name at its end.

    A port 0, which the system chooses, stays 0.

    Raises:
        SettingsError: the port would be above 65,535, or it is no URL of one endpoint.
    """
    endpoint = Endpoint.parse(url)
    if endpoint.scheme == "inproc":
        return str(attrs.evolve(endpoint, host=f"{endpoint.host}.{name}"))
    if endpoint.port == 0:
        return url
    if endpoint.port + offset > _PORT_MAX:
        raise SettingsError("backup_port_offset", offset, f"so much that {endpoint.port} + {offset} is a port")
    return str(attrs.evolve(endpoint, port=endpoint.port + offset))


@attrs.frozen(kw_only=True)
class HostRules:
    """The settings of a host by which it decides about backups.

    ``kind``: of its policy for backups; ``replicates``: with it each node has a store of its own.  ``group_name``: of
    that policy.  ``users`` and ``encrypted``: as in a request, of the host itself.
    """

    name: str
    data_dir: str
    kind: str
    replicates: bool
    max_backups: int
    backup_port_offset: int
    acceptors: Sequence[str] = ()
    connectors: Mapping[str, str] = attrs.field(factory=dict)
    excludes: Sequence[str] = ()
    group_name: str | None = None
    users: str = ""
    encrypted: bool = False


@attrs.frozen(kw_only=True)
class HostedPlaces:
    """The name and the places of a backup."""

    name: str
    data_dir: str
    acceptors: tuple[str, ...]
    connectors: dict[str, str]


class HostingPlan:
    """Decides about the requests of other nodes, for the life of a host."""

    def __init__(self, rules: HostRules) -> None:
        self.rules = rules
        self._number = 0
        # By the id of the node whose backup it is.
        self._hosted: dict[str, HostedPlaces] = {}

    @property
    def backups(self) -> int:
        """How many backups there are."""
        return len(self._hosted)

    def name_for(self, node_id: str) -> str:
        """Return the name of the backup of a node; empty: there is none."""
        places = self._hosted.get(node_id)
        return places.name if places is not None else ""

    def accept(self, request: BackupRequest) -> HostedPlaces:
        """Accept a request, and return where the backup is.

        Raises:
            RefusedError: the node runs no more backups, or none for this one; nothing has changed.
            SettingsError: a place of the backup is not allowed; nothing has changed.
        """
        rules = self.rules
        self._check(request)
        if len(self._hosted) >= rules.max_backups:
            raise RefusedError(f"{rules.name!r} runs {len(self._hosted)} backups, which is its max_backups")
        number = self._number + 1
        places = self._places(request, number)
        self._number = number
        self._hosted[request.node_id] = places
        return places

    def place_of(self, waiting: Sequence[str]) -> str:
        """Return the node whose backup makes room for another one; empty: there is room, or none of them may go.

        ``waiting``: the nodes whose backups do not serve, in the order of these.
        """
        return next(iter(waiting), "") if len(self._hosted) >= self.rules.max_backups else ""

    def ended(self, node_id: str) -> None:
        """Note that a backup runs no more.  Twice is silent."""
        self._hosted.pop(node_id, None)

    def _check(self, request: BackupRequest) -> None:
        rules, whose = self.rules, f"the backup of {request.name[:64]!r}"
        if not _is_id(request.node_id):
            raise SettingsError("node_id", request.node_id[:64], "the id of a node")
        if request.node_id in self._hosted:
            raise RefusedError(f"{rules.name!r} runs {whose} already")
        if request.kind != rules.kind:
            raise RefusedError(f"{whose} would be one of {request.kind[:64]!r}, and {rules.name!r} has {rules.kind!r}")
        if None not in (request.group_name, rules.group_name) and request.group_name != rules.group_name:
            text = f"is in the group {str(request.group_name)[:64]!r}, and backups here in {rules.group_name!r}"
            raise RefusedError(f"{request.name[:64]!r} {text}")
        if request.users != rules.users:
            text = "security= of both nodes names different users, roles or permissions, or only one has it"
            raise RefusedError(f"{whose} is not run by {rules.name!r}: {text}")
        if request.encrypted != rules.encrypted:
            text = "the store of only one of the two nodes is encrypted"
            raise RefusedError(f"{whose} is not run by {rules.name!r}: {text}")

    def _places(self, request: BackupRequest, number: int) -> HostedPlaces:
        rules = self.rules
        name, offset = f"{PREFIX}{number}", number * rules.backup_port_offset
        moved = {
            one: url if one in rules.excludes else moved_url(url, name, offset) for one, url in rules.connectors.items()
        }
        return HostedPlaces(
            name=name,
            data_dir=self._directory(request, name),
            acceptors=tuple(moved_url(url, name, offset) for url in rules.acceptors),
            # The first one within the process is where a backup scales down to.
            connectors={HOST_CONNECTOR: f"inproc://{rules.name}", **moved},
        )

    def _directory(self, request: BackupRequest, name: str) -> str:
        if self.rules.replicates:
            return f"{self.rules.data_dir.rstrip('/')}/{name}"
        wanted, taken = request.data_dir, [self.rules.data_dir, *(one.data_dir for one in self._hosted.values())]
        if not wanted or any(_overlap(wanted, one) for one in taken):
            raise SettingsError("data_dir", wanted, "a directory of the node that asks, apart from those in use here")
        return wanted


def _is_id(text: str) -> bool:
    return len(text) == 2 * IDENTITY_BYTES and not set(text) - set("0123456789abcdef")


def _overlap(one: str, other: str) -> bool:
    """Whether one of two directories is, or holds, the other one."""
    first, second = _parts(one), _parts(other)
    shared = min(len(first), len(second))
    return first[:shared] == second[:shared]


def _parts(path: str) -> list[str]:
    found = ["/" if path.startswith("/") else "."]
    for part in path.split("/"):
        if part == "..":
            del found[max(1, len(found) - 1) :]
        elif part not in ("", "."):
            found.append(part)
    return found
