"""The demos of nodes with backups: a pair with a shared store, and two pairs by replication."""

from meshq.demo._paired._account import Change, FlightAccount, account_table
from meshq.demo._paired._replicated import ReplicaTally, run_replica_member, run_witness
from meshq.demo._paired._run import PairOptions, parse_paired, run_paired
from meshq.demo._paired._shared import PairTally, run_pair_member

__all__ = [
    "Change",
    "FlightAccount",
    "PairOptions",
    "PairTally",
    "ReplicaTally",
    "account_table",
    "parse_paired",
    "run_pair_member",
    "run_paired",
    "run_replica_member",
    "run_witness",
]
