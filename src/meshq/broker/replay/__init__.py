"""Reading a queue by sequence: the cursors of a node, and browses of a range."""
