"""Seeded bugs: small changes of the product that the simulation must find."""
