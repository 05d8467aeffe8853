"""The core of a node: its parts, connected, the pass that does pending work, and recovery."""
