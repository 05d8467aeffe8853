"""The steps of a run: kills, moves of consumers, the departure of a node, and their results."""
