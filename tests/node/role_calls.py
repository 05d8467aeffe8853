"""The calls of a client that are about high availability, at a broker that has no pair."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from meshq import Client, NotFoundError, RefusedError
from tests.node.calls import Call
from tests.node.ground import Ground


async def _role(ground: Ground) -> object:
    return (await ground.client.ha()).role


def _refused(call: Callable[[Client], Awaitable[object]]) -> Callable[[Ground, object], Awaitable[None]]:
    async def make(ground: Ground, _: object) -> None:
        with suppress(NotFoundError, RefusedError):
            await call(ground.client)

    return make


ROLE_CALLS: Final = (
    Call(name="Client.ha", make=lambda ground, _: ground.client.ha(), look=_role, outcomes=("live_only",)),
    Call(name="Client.fail_over", make=_refused(Client.fail_over), look=_role, outcomes=("live_only",)),
    Call(
        name="Client.end_backup",
        make=_refused(lambda client: client.end_backup("colocated_backup_1")),
        look=_role,
        outcomes=("live_only",),
    ),
    Call(name="Client.fail_back", make=_refused(Client.fail_back), look=_role, outcomes=("live_only",)),
)
