"""Seeded bugs of networks of brokers, for their own simulation."""

from __future__ import annotations

from functools import partial
from typing import Final

from qa.seeded.bug import Bug

_Bug: Final = partial(Bug, mesh=True, stage="network")

NETWORK_BUGS: Final = (
    _Bug(
        name="forward a message to a broker that has had it",
        function="meshq.broker:_path_condition",
        old="NOT LIKE '%{target_id}%'",
        new="LIKE '%'",
        checkers=("W3",),
    ),
    _Bug(
        name="do not extend the path of a message that goes on",
        function="meshq.client:path_beyond",
        old="been.beyond(PathStep(node_id, name), target_id)",
        new="been if been.steps else been.beyond(PathStep(node_id, name), target_id)",
        checkers=("W3",),
    ),
    _Bug(
        name="take a message back although a consumer here accepts it",
        function="meshq.broker:ReplayFilter.__init__",
        old=" and not any(accepts(view) is True for accepts in verdicts)",
        new="",
        checkers=("W9",),
    ),
    _Bug(
        name="take a message back to a consumer that does not accept it",
        function="meshq.broker:ReplayFilter.__init__",
        old="wanted.verdict(view) is True and",
        new="",
        checkers=("W9",),
    ),
    _Bug(
        name="lengthen the path of a message that goes back",
        function="meshq.wire:BrokerPath.beyond",
        old="if target_id not in on_way:",
        new="if target_id:",
        checkers=("W3",),
    ),
    _Bug(
        name="tell nobody of demand behind this broker",
        function="meshq.broker:told_routes",
        old='    told, more_routes, asked = "",',
        new='    open_ways, told, more_routes, asked = [], "",',
        checkers=("W4",),
    ),
    _Bug(
        name="answer a question about demand once and never again",
        function="meshq.broker:NetworkDemand.changed",
        old="if self._question is not None:",
        new="if self._question is None:",
        checkers=("W4", "W5"),
    ),
    _Bug(
        name="keep network consumers that nobody wants any more",
        function="meshq.network:Direction.compare",
        old="        else:\n            forwarding.stop()",
        new="        else:\n            pass",
        checkers=("W5",),
    ),
    _Bug(
        name="remember the epoch of a link that is lost",
        function="meshq.network:NetworkLink._lost",
        old='self._known = b""',
        new="pass",
        checkers=("W4",),
    ),
    _Bug(
        name="give a message of a topic another id at each broker",
        function="meshq.client:topic_id",
        old="if delivery._broker_path.steps and",
        new="if delivery._broker_path is None and",
        checkers=("W6",),
    ),
    _Bug(
        name="take a durable subscription without consumers for no demand",
        function="meshq.broker:NetworkDemand._demand",
        old="(topic and queue.durable)",
        new="False",
        checkers=("W6", "W7"),
    ),
    _Bug(
        name="keep nothing of a topic for a broker behind a link that is down",
        function="meshq.network:Direction.compare",
        old="if one.kept and",
        new="if not one.kept and",
        checkers=("W7",),
    ),
    _Bug(
        name="delete what is kept for a broker when the link to it breaks",
        function="meshq.network:Direction._forward",
        old="if forwarding.over and key.kept",
        new="if key.kept",
        checkers=("W7",),
    ),
    _Bug(
        name="keep a connector that is removed among those that are there",
        function="meshq.node:ServedServices._take_out",
        old="self.all.remove(service)",
        new="pass",
        checkers=("W4",),
    ),
    _Bug(
        name="tell of the consumers of a queue at the advisories of topics",
        function="meshq.broker:advisories",
        old='_DESTINATIONS[routing]}"',
        new="_DESTINATIONS['multicast']}\"",
        checkers=("W8",),
    ),
)
