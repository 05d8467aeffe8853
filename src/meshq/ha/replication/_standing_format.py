"""The memory of a node about its pair, as a file: JSON with a checksum before it."""

from __future__ import annotations

import json
import zlib
from typing import Final

import attrs

from meshq.errors import DamagedError
from meshq.ha._store_claim_plan import CLAIM_EPOCHS

NAME: Final = "standing"
BYTES_MAX: Final = 512 * 1024


@attrs.frozen(kw_only=True)
class Standing:
    """The memory of a node.

    ``epoch``: of the last term that it has served in, or of the log that it has followed.  ``activation``: how often
    the pair has changed who acts.  ``claimed``: an operator wants the node to serve at its next start, and to ask
    nobody.  ``acted``: it has served in that epoch.  ``in_sync``: its store had all that was
    confirmed, when it was last known.  ``partner``: the name of the other node; empty: there was none.  ``members``:
    who was in sync, and ``replica``: the life of the other one of them, in hexadecimal digits; empty: it is not known.
    ``named``: the latest epoch that another node has named; with an older store the node never serves
    by itself.  ``as_backup``: it has followed as a configured backup.  ``node_id``: in hexadecimal digits, the id for
    which it has asked a quorum before it had a store; empty: it has not.  ``marked_ms``: when the operator has said so,
    in milliseconds since 1970.  ``against``: the counter of the quorum that the node found then; -1: it has found none
    yet.  ``number``: the changes of who has all that was confirmed, as far as this node took part.  ``voters``: who
    votes about the next change, and ``later``: who does from now on, of which the other node may not know yet.
    ``place``: where the replica is reached that came in sync last, if another node hosts it.
    """

    epoch: int = 0
    activation: int = 0
    claimed: bool = False
    acted: bool = False
    in_sync: bool = False
    partner: str = ""
    members: tuple[str, ...] = ()
    replica: str = ""
    named: int = 0
    as_backup: bool = False
    node_id: str = ""
    marked_ms: int = 0
    against: int = -1
    number: int = 0
    voters: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    place: str = ""

    @property
    def unclaimed(self) -> Standing:
        """The memory of a node that serves because it is claimed: the epoch that follows is later than any other.

        Who votes is found anew, and no remembered place is asked: those of before may be lost for good.
        """
        epoch, number = max(self.epoch, self.named) + CLAIM_EPOCHS - 1, self.number + CLAIM_EPOCHS - 1
        return attrs.evolve(self, epoch=epoch, number=number, claimed=False, voters=(), later=(), place="")


def forgotten(standing: Standing, epoch: int) -> Standing:
    """Return the memory of a node whose file can't be read after the log of an epoch was followed; 0: none was.

    Its store may be a copy that is not whole by now: it has no counter, and never serves by itself.
    """
    if not epoch:
        return standing
    named = max(standing.named, epoch)
    return attrs.evolve(standing, named=named, activation=0, acted=False, in_sync=False, members=())


def encode_standing(standing: Standing) -> bytes:
    """Return the bytes of the file.

    The life of a replica and its place, which versions before these fields take for damage, are left out where they
    are not known.
    """
    fields = attrs.asdict(standing)
    for name in ("replica", "place"):
        if not fields[name]:
            del fields[name]
    body = json.dumps(fields, sort_keys=True).encode()
    return b"%08x\n" % zlib.crc32(body) + body


def decode_standing(data: bytes, file: str) -> Standing:
    """Read the file; a field of a later version is ignored.  Raises: DamagedError."""
    check, _, body = data.partition(b"\n")
    try:
        if int(check, 16) != zlib.crc32(body):
            raise ValueError("another checksum")
        found = json.loads(body)
        lists = {name: tuple(found.get(name, ())) for name in ("members", "voters", "later")}
        known = {one.name: found[one.name] for one in attrs.fields(Standing) if one.name in found}
        return Standing(**{**known, **lists})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(file, 0, "what the node remembers of its pair", "other bytes") from error
