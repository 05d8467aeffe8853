"""What stands around a core in a test: a node, and the disk for its pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from meshq.broker.core._host_node import BackupTold, EndTold
from meshq.broker.paging._pager import PageRequests
from meshq.errors import MeshqError, RefusedError
from meshq.wire import LinkOpening


@attrs.define(eq=False)
class FakeHost:
    """A node that notes what its core says; unless a test gives ``wake``, all work is done at once."""

    wake: Callable[[], object] | None = None
    #: Names and texts of warnings, and what strangers said.
    warnings: list[tuple[str, str]] = attrs.field(factory=list)
    strangers: list[LinkOpening] = attrs.field(factory=list)

    @property
    def resumes(self) -> bool:
        return self.wake is not None

    def resume_soon(self) -> None:
        assert self.wake is not None
        self.wake()

    def warn(self, event: str, text: str) -> None:
        self.warnings.append((event, text))

    def meet_stranger(self, opening: LinkOpening, error: MeshqError) -> None:
        self.strangers.append(opening)

    def describe(self) -> dict[str, Any]:
        return {}

    def role(self) -> dict[str, Any]:
        return {"waiting": []}

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        return {"backups": 0, "max_backups": 0, "mine": "", "hosted": []}

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        told("", "the node runs no backups")

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        told(RefusedError("the node of the backup answers"))

    def order_role(self, *, back: bool, force: bool) -> int:
        raise RefusedError("the node is alone")


@attrs.define(eq=False)
class FakePageRequests:
    """What a core asks of its paging task; ``pages`` is that task, if there is one."""

    pages: PageRequests | None = None

    def wake(self) -> None:
        if self.pages is not None:
            self.pages.wake()

    def forget(self, spill: Any) -> None:
        assert self.pages is not None
        self.pages.forget(spill)
