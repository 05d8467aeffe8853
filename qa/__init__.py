"""Quality assurance of meshq: simulations, seeded bugs, the delivery matrix and long-running commands.

The package is for people who work on meshq.  The wheel does not contain it; `meshq.testing` is the kit for users.
"""
