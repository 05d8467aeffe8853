"""Filters: SQL-92 conditions on the properties and headers of a message.

A text is read once, into closures; what a message is, the caller shows through ``MessageView``.
"""

from meshq.selector._equality_index import EqualityIndex, index_key
from meshq.selector._filter import Filter, parse_filter
from meshq.selector._message_view import ABSENT, MessageView, Value

__all__ = ["ABSENT", "EqualityIndex", "Filter", "MessageView", "Value", "index_key", "parse_filter"]
