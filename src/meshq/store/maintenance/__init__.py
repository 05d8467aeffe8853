"""Maintenance of an open journal: removing, compacting and indexing its segments."""
