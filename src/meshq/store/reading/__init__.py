"""Reading the records of an open journal: by position, or all that are live."""
