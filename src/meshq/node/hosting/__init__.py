"""Nodes that run the backups of other nodes, and nodes that ask for one."""
