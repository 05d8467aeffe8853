"""Policies of balancing: which of several brokers a connection goes to.  They decide, and do nothing else."""

from meshq.lb._affinity_cache import AffinityCache
from meshq.lb._balancing_machine import HERE, BalancerDecision, BalancingMachine
from meshq.lb._consistent_hash import ConsistentHash
from meshq.lb._key_filter import KeyFilter
from meshq.lb._least_connections import LeastConnections
from meshq.lb._naming import NAMES, begun_policy, policy_of
from meshq.lb._policies import FirstElement, Random, RandomSticky, RoundRobin
from meshq.lb._pool_machine import PoolChange, PoolMachine, TargetAnswer, TargetState
from meshq.lb._target_key import NO_KEY, TARGET_KEYS, filtered, key_of, source_ip
from meshq.lb._target_life import TARGET_TRANSITIONS

__all__ = [
    "HERE",
    "NAMES",
    "NO_KEY",
    "TARGET_KEYS",
    "TARGET_TRANSITIONS",
    "AffinityCache",
    "BalancerDecision",
    "BalancingMachine",
    "ConsistentHash",
    "FirstElement",
    "KeyFilter",
    "LeastConnections",
    "PoolChange",
    "PoolMachine",
    "Random",
    "RandomSticky",
    "RoundRobin",
    "TargetAnswer",
    "TargetState",
    "begun_policy",
    "filtered",
    "key_of",
    "policy_of",
    "source_ip",
]
