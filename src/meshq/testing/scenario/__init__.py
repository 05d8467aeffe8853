"""Scenarios of users, with many seeds and faults: the package's room for ``simulate`` and ``simulated``."""
