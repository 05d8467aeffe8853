"""Recovery at a start: proving what the last life left, and reading its records."""
