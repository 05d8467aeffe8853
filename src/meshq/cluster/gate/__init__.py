"""The gate of a node for clients of nodes that leave for good."""

from meshq.cluster.gate._handover_gate_machine import GRACE_S, GateFacts, HandoverGate

__all__ = ["GRACE_S", "GateFacts", "HandoverGate"]
