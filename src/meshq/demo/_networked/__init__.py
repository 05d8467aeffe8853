"""The demo of a network: two hubs with their spokes, and a slow link between the hubs."""

from meshq.demo._networked._account import NetworkAccount
from meshq.demo._networked._brokers import run_network_broker
from meshq.demo._networked._run import parse_network, run_networked

__all__ = ["NetworkAccount", "parse_network", "run_network_broker", "run_networked"]
