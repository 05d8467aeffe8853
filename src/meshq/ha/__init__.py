"""High availability: the policies by which a node is active, and the order to scale down at its stop."""

from meshq.ha._live_only import LiveOnly
from meshq.ha._scale_down import ScaleDown

__all__ = ["LiveOnly", "ScaleDown"]
