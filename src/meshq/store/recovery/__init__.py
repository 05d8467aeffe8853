"""Recovery at a start: proving the bytes of the last life, and reading its records."""
