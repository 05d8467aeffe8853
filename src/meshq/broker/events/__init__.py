"""Notifications of a node, and who is told."""
