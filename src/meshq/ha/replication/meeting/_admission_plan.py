"""The admission of a node that wants to follow: each reason to refuse it."""

from __future__ import annotations

import attrs

from meshq.wire import Replicate


@attrs.frozen(kw_only=True)
class Admission:
    """The node that is to be followed.

    ``group``: the group of its pair; empty: any.  ``fingerprint``: its proof of the encryption key for the node that
    asks; empty: it does not encrypt.  ``locked_epoch``: the epoch of its lock at a quorum; None: it has none.
    """

    name: str
    node_id: bytes
    group: str
    fingerprint: bytes
    locked_epoch: int | None

    def refusal(self, wanted: Replicate) -> tuple[str, str] | None:
        """Return why a node that wants to follow is refused, as a word and as a text; None: it is not."""
        name, who, node_id = self.name, wanted.node_name, self.node_id
        if wanted.node_id and wanted.node_id != node_id:
            return "node_id", f"{who!r} is to follow the node {wanted.node_id.hex()}, and {name!r} is {node_id.hex()}"
        if wanted.group and self.group and wanted.group != self.group:
            return "group", f"{who!r} is of the group {wanted.group!r}, and {name!r} of {self.group!r}"
        if wanted.fingerprint != self.fingerprint:
            text = f"{who!r} and {name!r} do not encrypt with the same key (journal.encryption_keys)"
            return "encryption_key", text
        if who == name:
            text = f"a node with the name {name!r} wants to follow the node {name!r}"
            return "node_id", f"{text}: a quorum tells nodes by name, and so do the nodes that vote"
        if self.locked_epoch is not None and wanted.epoch > self.locked_epoch:
            text = (
                f"{who!r} knows of epoch {wanted.epoch} of the node id, and {name!r} serves with the lock"
                f" of the quorum in epoch {self.locked_epoch}: one of the two stores is of another quorum"
            )
            return "node_id", text
        return None


def is_again(wanted: Replicate, before: Replicate) -> bool:
    """Whether a node that wants to follow says the place and the name of the one that follows."""
    return bool(wanted.place) and (wanted.place, wanted.node_name) == (before.place, before.node_name)
