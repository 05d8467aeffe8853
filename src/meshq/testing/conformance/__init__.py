"""Conformance suites for the interfaces of ``meshq.abc``."""
