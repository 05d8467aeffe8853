"""Work of many steps: long operations, and turns for costly filters."""
