"""Whether a node runs a backup for another one, under which name, and at which places; plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from meshq.endpoint import Endpoint
from meshq.errors import RefusedError, SettingsError
from meshq.ha.colocated._backup_request_format import BackupRequest
from meshq.ha.colocated._ended_backups_plan import PREFIX
from meshq.ha.colocated._ports_plan import check_own_ports, check_requester_port, moved_url
from meshq.ha.colocated._store_place_plan import check_place
from meshq.ids import IDENTITY_BYTES

#: The connector of a backup that leads to its host, within the process.
HOST_CONNECTOR: Final = "colocated_host"
#: So many places more than backups: where somebody else has a port, another place is taken.
SPARE_PLACES: Final = 3


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
    shared_root: str = ""


@attrs.frozen(kw_only=True)
class HostedPlaces:
    """The name and the places of a backup; ``number``: that in its name; ``place``: by how many offsets its ports are
    higher."""

    name: str
    number: int
    place: int
    data_dir: str
    acceptors: tuple[str, ...]
    connectors: dict[str, str]


@attrs.define
class _HostedPlaces:
    """A backup that there is, and at which of the places."""

    places: HostedPlaces
    request: str


class HostingPlan:
    """Decides about the requests of other nodes, for the life of a host.

    Names are counted and come once; of the places, which have the ports, the lowest free one is taken, and those where
    a backup could not begin after the others.
    """

    def __init__(self, rules: HostRules) -> None:
        self.rules = rules
        self._made = 0
        # How many backups in a row could not begin, by their place.
        self._failures: dict[int, int] = {}
        # By the id of the node whose backup it is.
        self._hosted: dict[str, _HostedPlaces] = {}
        # The places of backups of before that are not begun, by their number.
        self._held: dict[int, int] = {}

    @property
    def backups(self) -> int:
        """The number of backups, held backups included."""
        return len(self._hosted) + len(self._held)

    def name_for(self, node_id: str) -> str:
        """Return the name of the backup of a node; empty: there is none."""
        found = self._hosted.get(node_id)
        return found.places.name if found is not None else ""

    def request_of(self, node_id: str) -> str:
        """Return the digest of the request with which a backup was asked for; empty: there is none."""
        found = self._hosted.get(node_id)
        return found.request if found is not None else ""

    def taken(self, without: str = "") -> tuple[str, ...]:
        """The directories that are in use.  ``without``: the node whose backup is about to end."""
        return (
            self.rules.data_dir,
            *(one.places.data_dir for node_id, one in self._hosted.items() if node_id != without),
        )

    def places_for(self, request: BackupRequest, without: str = "") -> HostedPlaces:
        """Check a request, and return where the backup would be; nothing changes.

        ``without``: the node whose backup ends before.

        Raises:
            RefusedError: the node runs no more backups, or none for this one.
            SettingsError: a place of the backup is not allowed.
        """
        rules = self.rules
        self.check(request)
        if request.node_id in self._hosted:
            raise RefusedError(f"{rules.name!r} runs the backup of {request.name[:64]!r} already")
        if self.backups - (without in self._hosted) >= rules.max_backups:
            raise self._full()
        number = self._made + 1
        return self._free_places(request, number, without)

    def places_again(self, request: BackupRequest, number: int, place: int) -> HostedPlaces:
        """Return where a backup is, by its number and its place, that was begun in another life of the host, or ended.

        Raises:
            SettingsError: a place of the backup is not allowed.
        """
        return self._places(request, number, place, self._directory(request, number, ""))

    def places_of(self, node_id: str) -> HostedPlaces:
        """Return where the backup of a node is that there is."""
        return self._hosted[node_id].places

    def count_from(self, number: int) -> None:
        """Count the names of new backups on from a number."""
        self._made = max(self._made, number)

    def begin_again(self, request: BackupRequest, places: HostedPlaces) -> None:
        """Note that a backup is run that this host has accepted before, also if it runs too many."""
        self.count_from(places.number)
        self._hosted[request.node_id] = _HostedPlaces(places, request.digest)

    def accept(self, request: BackupRequest, places: HostedPlaces) -> None:
        """Note that a backup is run at the places that were found for it.

        Raises:
            RefusedError: there is no room any more; nothing has changed.
        """
        if self.backups >= self.rules.max_backups:
            raise self._full()
        self.begin_again(request, places)

    def _full(self) -> RefusedError:
        return RefusedError(f"{self.rules.name!r} runs {self.backups} backups, which is its max_backups")

    def hold(self, number: int, place: int) -> None:
        """Keep the number and the place of an earlier backup that is not begun.

        No other backup gets them, and it counts as one that there is.
        """
        self.count_from(number)
        self._held[number] = place

    def release(self, number: int) -> None:
        """Give the place of a held backup free; the number stays used.  Twice is silent."""
        self._held.pop(number, None)

    def place_of(self, waiting: Sequence[str]) -> str:
        """Return the node whose backup makes room for another one; empty: there is room, or none of them may go.

        ``waiting``: the nodes whose backups do not serve, in the order of these.
        """
        return next(iter(waiting), "") if self.backups >= self.rules.max_backups else ""

    def began(self, node_id: str) -> None:
        """Note that a backup listens at its place."""
        self._failures.pop(self._hosted[node_id].places.place, None)

    def ended(self, node_id: str, *, begun: bool = True) -> None:
        """Note that a backup runs no more; ``begun``: it did.  Twice is silent."""
        found = self._hosted.pop(node_id, None)
        if found is not None and not begun:
            place = found.places.place
            self._failures[place] = self._failures.get(place, 0) + 1

    def check(self, request: BackupRequest) -> None:
        """Check whether the backup of a node may run here at all.

        Raises:
            RefusedError: the two do not fit.
            SettingsError: the request is wrong.
        """
        rules, whose = self.rules, f"the backup of {request.name[:64]!r}"
        if not _is_id(request.node_id):
            raise SettingsError("node_id", request.node_id[:64], "the id of a node")
        if rules.replicates and any(_is_moving(url) for url in rules.acceptors):
            text = "an acceptor has a port that the system chooses, where no node that comes back finds its backup"
            raise RefusedError(f"{whose} is not run by {rules.name!r}: {text}")
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

    def _free_places(self, request: BackupRequest, number: int, without: str) -> HostedPlaces:
        data_dir = self._directory(request, number, without)
        used = {one.places.place for node_id, one in self._hosted.items() if node_id != without}
        used.update(self._held.values())
        free = [one for one in range(1, self.rules.max_backups + SPARE_PLACES + 1) if one not in used]
        failure: SettingsError | None = None
        for place in sorted(free, key=lambda one: (self._failures.get(one, 0), one)):
            try:
                return self._places(request, number, place, data_dir)
            except SettingsError as error:
                failure = failure or error
        assert failure is not None, "there are more places than backups"
        raise failure

    def _places(self, request: BackupRequest, number: int, place: int, data_dir: str) -> HostedPlaces:
        rules, name, offset = self.rules, f"{PREFIX}{number}", place * self.rules.backup_port_offset
        check_own_ports(rules.acceptors, rules.backup_port_offset, (place,))
        own = [url for one, url in rules.connectors.items() if one not in rules.excludes]
        acceptors = tuple(moved_url(url, name, offset) for url in rules.acceptors)
        check_requester_port(acceptors, request.url, (*own, *rules.acceptors), rules.backup_port_offset)
        moved = {
            one: url if one in rules.excludes else moved_url(url, name, offset) for one, url in rules.connectors.items()
        }
        return HostedPlaces(
            name=name,
            number=number,
            place=place,
            data_dir=data_dir,
            acceptors=acceptors,
            # The first one within the process is where a backup scales down to.
            connectors={HOST_CONNECTOR: f"inproc://{rules.name}", **moved},
        )

    def _directory(self, request: BackupRequest, number: int, without: str) -> str:
        if self.rules.replicates:
            return f"{self.rules.data_dir.rstrip('/')}/{PREFIX}{number}"
        check_place(request.data_dir, self.taken(without), self.rules.shared_root)
        return request.data_dir


def _is_moving(url: str) -> bool:
    endpoint = Endpoint.parse(url)
    return endpoint.scheme != "inproc" and endpoint.port == 0


def _is_id(text: str) -> bool:
    return len(text) == 2 * IDENTITY_BYTES and not set(text) - set("0123456789abcdef")
