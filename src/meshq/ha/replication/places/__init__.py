"""The places of replicas that no operator has named."""

from meshq.ha.replication.places._known_place import KnownPlace

__all__ = ["KnownPlace"]
