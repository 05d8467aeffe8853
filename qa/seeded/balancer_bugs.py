"""Seeded bugs of balancers, for their own simulation."""

from __future__ import annotations

from functools import partial
from typing import Final

from qa.seeded.bug import Bug

_Bug: Final = partial(Bug, mesh=True, stage="balanced")

BALANCER_BUGS: Final = (
    _Bug(
        name="offer a target that has failed its probe",
        function="meshq.lb:PoolMachine.ready",
        old='if one.life.state == "ready":',
        new='if one.life.state != "new":',
        checkers=("P6", "P7"),
    ),
    _Bug(
        name="let a target that was lost stay lost",
        function="meshq.lb:PoolMachine.answered",
        old="    one.sent = [at for at in one.sent if at > began - ARRIVAL_S]\n",
        new='    if one.life.state == "not_ready":\n        return\n',
        checkers=("P1", "P3"),
    ),
    _Bug(
        name="look for no target in the cache",
        function="meshq.lb:AffinityCache.get",
        old='return (place, node_id) if now - used < self._timeout_s else ("", "")',
        new='return "", ""',
        checkers=("P4",),
    ),
    _Bug(
        name="hash a key over the places of the list",
        function="meshq.lb:ConsistentHash.select",
        old='return max(targets, key=partial(_weight, key.encode(errors="surrogatepass")))',
        new="return targets[sum(key.encode()) % len(targets)]",
        checkers=("P6",),
    ),
    _Bug(
        name="send a client where most are",
        function="meshq.lb:LeastConnections.select",
        old="fewest = min(target.connections for target in targets)",
        new="fewest = max(target.connections for target in targets)",
        checkers=("P5",),
    ),
    _Bug(
        name="forget the clients that are on their way",
        function="meshq.lb:PoolMachine.sent",
        old="one.sent.append(now)",
        new="one.sent.clear()",
        checkers=("P5",),
    ),
    _Bug(
        name="take any number of targets for a quorum",
        function="meshq.lb:PoolMachine.active",
        old="return len(self.ready()) >= self._quorum_size",
        new="return len(self.ready()) >= 0",
        checkers=("P7",),
    ),
    _Bug(
        name="send on what the local filter keeps",
        function="meshq.lb:BalancingMachine._decide",
        old="if local.matches(key):",
        new="if local.matches(key) and pool is None:",
        checkers=("P4",),
    ),
    _Bug(
        name="answer a client that waits only when there is a target",
        function="meshq.lb.balancer:WaitingClients._answer_late",
        old="client.answer(client.decide())",
        new="(lambda late: None if late.waits else client.answer(late))(client.decide())",
        checkers=("P1", "P2", "P7"),
    ),
    _Bug(
        name="give up when a balancer has no target",
        function="meshq.client:closed_by",
        old="if entry is not None and entry.name in _LEAVE:",
        new='if entry is not None and entry.name in _LEAVE and entry.name != "use_another_server":',
        checkers=("P2",),
    ),
)
