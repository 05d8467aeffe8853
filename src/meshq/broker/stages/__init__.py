"""Stages and the batch ledger: what is prepared, what was decided; pure."""
