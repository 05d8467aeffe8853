"""Policies of balancing: which of several brokers a connection goes to.  They decide, and do nothing else."""

from meshq.lb._naming import NAMES, policy_of
from meshq.lb._policies import FirstElement, Random, RandomSticky, RoundRobin

__all__ = ["NAMES", "FirstElement", "Random", "RandomSticky", "RoundRobin", "policy_of"]
