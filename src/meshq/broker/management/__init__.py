"""Management of a node: the table of operations, and requests by messages."""
