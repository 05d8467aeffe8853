"""The calls about stages and batches, as something that can be made, cancelled, and looked at afterwards."""

from __future__ import annotations

from typing import Final

from tests.node.calls import Call
from tests.node.ground import Ground


async def _with_a_stage(ground: Ground) -> None:
    async with ground.client.stage("s", 2):
        pass


async def _stages(ground: Ground) -> list[int]:
    return [stage.batch for stage in await ground.client.stages() if stage.state == "prepared"]


async def _with_a_sink(ground: Ground) -> None:
    await ground.client.commit_batch("s", 1, [])


async def _sinks(ground: Ground) -> list[str]:
    return [sink.sink for sink in await ground.client.sinks()]


async def _nothing(ground: Ground) -> object:
    return None


STAGE_CALLS: Final = (
    Call(name="Client.sinks", make=lambda ground, _: ground.client.sinks(), look=_nothing, outcomes=(None,)),
    Call(name="Client.stages", make=lambda ground, _: ground.client.stages(), look=_nothing, outcomes=(None,)),
    Call(
        name="Client.commit_batch",
        make=lambda ground, _: ground.client.commit_batch("s", 1, []),
        look=_sinks,
        outcomes=([], ["s"]),
    ),
    Call(
        name="Client.abandon_batch",
        prepare=_with_a_stage,
        make=lambda ground, _: ground.client.abandon_batch("s", 2),
        look=_stages,
        outcomes=([2], []),
    ),
    Call(
        name="Client.delete_sink",
        prepare=_with_a_sink,
        make=lambda ground, _: ground.client.delete_sink("s"),
        look=_sinks,
        outcomes=(["s"], []),
    ),
)
