"""The demo of Spark: a query over the queues of a mesh, killed and started again, as is a node."""

from meshq.demo._sparked._hours_format import Account, Hour, account_of, hours_of, parse_hour
from meshq.demo._sparked._node_process import run_mesh_node
from meshq.demo._sparked._options import SparkOptions, parse_sparked
from meshq.demo._sparked._plan import Strikes, plan_strikes, span_of
from meshq.demo._sparked._query_process import run_query
from meshq.demo._sparked._run import account_table, run_sparked

__all__ = [
    "Account",
    "Hour",
    "SparkOptions",
    "Strikes",
    "account_of",
    "account_table",
    "hours_of",
    "parse_hour",
    "parse_sparked",
    "plan_strikes",
    "run_mesh_node",
    "run_query",
    "run_sparked",
    "span_of",
]
