"""The management operations about high availability."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from meshq.broker.management._pages import page_of
from meshq.broker.work._long_operations import AnswerWait, Steps, Values
from meshq.errors import MeshqError, NotFoundError, RefusedError
from meshq.wire import decline

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.core._host_node import BackupTold
    from meshq.broker.management._requester import Requester
    from meshq.statistics import EndedBackup

#: Characters of a reason: a frame has room for that.
_WHY_CHARACTERS_MAX: Final = 1_000


def ha(core: Core, after: int = 0) -> Values:
    """The role of the node, and a page of the nodes that wait to take over."""
    values = dict(core.settings.host.role())
    rows: list[Values] = values.pop("waiting", [])
    return {**values, **page_of("waiting", rows, after)}


def hosted_backups(core: Core, after: int = 0, node_id: str = "") -> Values:
    """A page of the backups that the node runs for others, and how many it runs and may run; `mine` is the name of the
    one that it runs for a node."""
    values = dict(core.settings.host.hosted_backups(node_id))
    rows: list[Values] = values.pop("hosted")
    return {**values, **page_of("hosted", rows, after)}


def host_backup(core: Core, asker: Requester, request: bytes, ends: bool = False, clears: bool = False) -> Steps:
    """Run the backup of the node that asks; `name` is empty if this node does not, and `why` says the reason."""
    if not asker.node[0]:
        raise decline("forbidden", "a node asks for its backup over its own link, and this one has not linked")
    return _hosting(partial(core.settings.host.host_backup, asker.node[0], request, ends=ends, clears=clears))


def _hosting(asked: Callable[[BackupTold], None]) -> Steps:
    answer: Values = {}

    def begin(resume: Callable[[], None]) -> None:
        def told(name: str, why: str) -> None:
            answer.update(name=name, why=why[:_WHY_CHARACTERS_MAX])
            resume()

        asked(told)

    yield AnswerWait(begin)
    yield answer


def end_backup(core: Core, name: str, force: bool = False) -> Steps:
    """End the backup that the node runs for a node that is gone for good; `directory` is where its store lies now."""
    answer: list[EndedBackup | MeshqError] = []

    def begin(resume: Callable[[], None]) -> None:
        def told(ended: EndedBackup | MeshqError) -> None:
            answer.append(ended)
            resume()

        core.settings.host.end_backup(name, told, force=force)

    yield AnswerWait(begin)
    ended = answer[0]
    if isinstance(ended, NotFoundError):
        raise decline("not_found", str(ended)) from ended
    if isinstance(ended, RefusedError):
        raise decline("backup_needed", str(ended)) from ended
    if isinstance(ended, MeshqError):
        raise ended
    yield attrs.asdict(ended)


def fail_over(core: Core, force: bool = False) -> Values:
    """Order the node to hand its role over to a node that waits; the answer has the epoch that ends."""
    return _order(core, back=False, force=force)


def fail_back(core: Core) -> Values:
    """Order the node to hand its role back to the primary that waits; the answer has the epoch that ends."""
    return _order(core, back=True, force=False)


def _order(core: Core, *, back: bool, force: bool) -> Values:
    try:
        return {"epoch": core.settings.host.order_role(back=back, force=force)}
    except RefusedError as error:
        raise decline("no_successor", str(error)) from error
