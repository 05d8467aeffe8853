"""A node without a backup: it is active from its start to its stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar

import attrs
import trio

from meshq.abc import Activation, ActiveTerm, HAPolicy, NodeControl, StepBack
from meshq.ha._scale_down import ScaleDown, check_scale_down


class _AloneActivation(Activation):
    """The part of a node without a rival."""

    async def wait(self) -> ActiveTerm:
        await trio.lowlevel.checkpoint()
        return ActiveTerm()

    async def lost(self) -> StepBack:
        await trio.sleep_forever()
        raise AssertionError("slept for ever")

    async def release(self, *, failover: bool) -> None:
        await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True)
class LiveOnly(HAPolicy):
    """The policy of a node that is active from its start to its stop, as a broker without a policy is.

    ``scale_down``: what it holds goes to another node when it stops; None: a stop keeps what is durable in its store.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "live_only"
    wait_for_activation = True

    scale_down: ScaleDown | None = attrs.field(default=None, validator=check_scale_down)

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Join no competition: the node is active at once."""
        return _alone()


@asynccontextmanager
async def _alone() -> AsyncIterator[Activation]:
    yield _AloneActivation()
