"""The run of a broker: its turns as the active node, and how it is seen."""
