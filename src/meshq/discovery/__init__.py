"""Discovery: nodes announce where they are reached.  An announcement is only a hint where to dial."""

from meshq.discovery._datagram_format import Announcement, ConnectorPair, RefusalReason

__all__ = ["Announcement", "ConnectorPair", "RefusalReason"]
